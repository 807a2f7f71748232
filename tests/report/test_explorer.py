"""The explorer: the committed page is the built one, its numbers are Python's, and it works in a browser."""

import re
from math import exp, inf, sqrt
from pathlib import Path

import numpy as np
import pytest

from rqm import PBM, RQM, Gaussian, Participation, StochasticRounding, ThreatModel, renyi
from rqm._util.checks import padded
from rqm.accounting.calibration import coordinate_clip, gaussian_noise
from rqm.accounting.release import Release
from rqm.bounds import gaussian_deltas, gaussian_mu
from rqm.report.explorer import PLOTTED_INPUTS, PLOTTED_ORDERS, build_explorer, mechanism_table, mechanism_tables
from tests.browser import chromium
from tests.commands import rqm

ROOT = Path(__file__).parents[2]
FIELDS = ("epsilon", "delta", "dim", "rounds", "participations", "clients", "honest", "bits")
REQUESTS = [
    dict(zip(FIELDS, values, strict=True))
    for values in (
        (3, 1e-6, 10**6, 250, 1, 1000, 1000, 1),
        (8, 1e-5, 48_670, 54, 1, 400, 400, 1),
        (10, 1e-5, 10**5, 340, 10, 100, 80, 4),
        (0.1, 1e-9, 1, 20, 5, 7, 3, 2),
        (50, 1e-3, 3, 2, 1, 1, 1, 1),
        (1, 1e-6, 10**4, 100, 100, 2**53 - 1, 2**40, 1),
        (1, 1e-6, 10**4, 100, 100, 2**49 - 1, 2**40, 1),
    )
]


def random_request(seed):
    rng = np.random.default_rng(seed)
    rounds, clients = int(rng.integers(1, 200)), int(10 ** rng.uniform(0, 9))
    participations, honest = int(rng.integers(1, rounds + 1)), int(rng.integers(1, clients + 1))
    epsilon, delta, dim = 10 ** rng.uniform(-2, 1.5), 10 ** rng.uniform(-12, -2), int(10 ** rng.uniform(0, 7))
    bits = int(rng.integers(1, 17))
    return dict(zip(FIELDS, (epsilon, delta, dim, rounds, participations, clients, honest, bits), strict=True))


REQUESTS += [random_request(seed) for seed in range(30)]

# -- without a browser ----------------------------------------------------------------------------


def test_committed_page_is_the_built_one():
    committed = (ROOT / "docs/explorer.html").read_text(encoding="utf-8")
    assert committed == build_explorer(), "run: rqm explore --no-open --out docs/explorer.html"


def test_page_is_one_small_file_that_loads_nothing():
    page = build_explorer()
    assert len(page.encode()) < 200_000
    assert not re.findall(r"https?://|@import|\burl\(|\bfetch\(|XMLHttpRequest|importScripts|<script[^>]*\bsrc=", page)


def test_command_writes_and_opens(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    printed = rqm("explore", "--out", tmp_path / "new" / "page.html", "--no-open").stdout + rqm("explore").stdout
    paths = [Path(line) for line in printed.split()]
    assert paths == [tmp_path / "new" / "page.html", tmp_path / "cache" / "rqm" / "explorer.html"]
    assert all(path.read_text(encoding="utf-8") == build_explorer() for path in paths)
    assert opened == [paths[1].as_uri()]


@pytest.mark.parametrize(
    "mechanism", [RQM(margin=0.66, keep=0.33), PBM(theta=0.35), StochasticRounding(margin=2.0, levels=2)]
)
def test_tables_have_the_pmf_and_certified_divergences(mechanism):
    table = mechanism_table(mechanism)
    np.testing.assert_allclose(table["pmfs"], mechanism.pmf(PLOTTED_INPUTS), rtol=1e-3)
    np.testing.assert_allclose(mechanism.pmf(-PLOTTED_INPUTS), mechanism.pmf(PLOTTED_INPUTS)[:, ::-1], atol=1e-12)
    certified = np.array([bound.upper for bound in renyi(mechanism, PLOTTED_ORDERS, 1)])
    assert (table["renyi"] >= certified * (1 - 1e-8)).all()
    assert (table["renyi"] <= certified * 1.001).all()


# -- in a browser ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def started():
    with chromium() as watched:
        yield watched


@pytest.fixture
def browser(started):
    yield started
    started.close_pages()
    started.assert_clean()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("explorer") / "explorer.html"
    path.write_text(build_explorer(), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def page(browser, address):
    return browser.open(address)


def expected_noise(request):
    participation = Participation(request["honest"], request["rounds"], max_participations=request["participations"])
    release = Release(Gaussian(1.0), 1, 1.0)
    honest_std = gaussian_noise(release, participation, ThreatModel(), request["delta"], request["epsilon"])
    coordinates = padded(request["dim"])
    std = honest_std * sqrt(request["clients"] / request["honest"])
    return {
        "honestStd": honest_std,
        "std": std,
        "meanNorm": std * sqrt(coordinates) / request["clients"],
        "coordinateStd": std / request["clients"],
        "margin": honest_std / sqrt(request["honest"]) / coordinate_clip(1.0, coordinates) - 1,
        "coordinates": coordinates,
        "sumBits": PBM(levels=2 ** request["bits"]).sum_bits(request["clients"]),
    }


def test_noise_is_pythons(page):
    computed = page.evaluate("(requests) => requests.map(noiseFor)", REQUESTS)
    for request, noise in zip(REQUESTS, computed, strict=True):
        for name, value in expected_noise(request).items():
            assert noise[name] == pytest.approx(value, rel=1e-6), (request, name)
            assert noise[name] != pytest.approx(value * 1.0001 + 1e-12, rel=1e-6)  # an error would be detected


def test_margin_has_the_noise_that_is_needed(page):
    request = REQUESTS[1]
    margin = page.evaluate("(request) => noiseFor(request).margin", request)
    mechanism = StochasticRounding(clip=coordinate_clip(1.0, padded(request["dim"])), levels=2, margin=margin)
    noise = sqrt(request["honest"] * mechanism.variance(0.0))
    assert noise == pytest.approx(expected_noise(request)["honestStd"], rel=1e-6)


def test_gaussian_privacy_profile_is_pythons(page):
    mus, epsilons = [1e-3, 0.1, 0.6477, 1, 5, 30], [0, 0.01, 1, 8, 100]
    computed = page.evaluate(
        "([mus, epsilons]) => mus.map((mu) => epsilons.map((e) => gaussianDelta(mu, e)))", [mus, epsilons]
    )
    expected, shifted = (
        np.array([gaussian_deltas(factor * mu, np.array(epsilons)) for mu in mus]) for factor in (1, 1.01)
    )
    np.testing.assert_allclose(computed, expected, rtol=1e-7, atol=1e-15)
    assert not np.allclose(computed, shifted, rtol=1e-7, atol=1e-15)
    for epsilon, delta in ((0.1, 1e-5), (3, 1e-6), (40, 1e-12)):
        computed = page.evaluate("(request) => gaussianMu(...request)", [epsilon, delta])
        assert computed == pytest.approx(gaussian_mu(epsilon, delta), rel=1e-8)


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [
        ("clients", "0", "clients per round: "),
        ("clients", "2.5", "clients per round: "),
        ("clients", "1e300", "clients per round: "),
        ("clients", "", "clients per round: "),
        ("clients", "999", "honest clients per round, at least: must be at most the clients per round"),
        ("epsilon", "0", "ε: "),
        ("delta", "1", "δ: "),
        ("participations", "251", "rounds of one user, at most: must be at most the rounds"),
        ("bits", "17", "bits per coordinate that a client sends: "),
    ],
)
def test_invalid_values_are_refused(page, field, text, message):
    page.fill(f"#{field}", text)
    assert page.inner_text("#refusal").startswith(message)
    assert page.is_hidden("#answer")
    page.click("text=keyboard")
    assert page.is_visible("#answer")
    assert page.is_hidden("#refusal")


def test_presets_have_an_answer_and_links_restore_it(browser, page):
    for label in page.locator("[data-preset]").all_inner_texts():
        page.click(f"text={label}")
        assert page.is_visible("#answer"), label
    page.fill("#epsilon", "2.5")
    page.select_option("#mechanism", label="PBM, 16 levels")
    page.fill("#x", "-4")
    restored = browser.open(page.url)
    assert restored.inner_text("main") == page.inner_text("main")
    assert f"{exp(2.5):.2f} times" in restored.inner_text("#odds")


@pytest.mark.parametrize(
    "damaged", ["#%%%&&==&m", "#mechanism=__proto__&x=<b>", "#mechanism=7&parameter-0=1e9&epsilon=abc"]
)
def test_a_damaged_link_shows_a_page(browser, address, damaged):
    damaged_page = browser.open(address + damaged)
    assert "≤" in damaged_page.inner_text("#mechanism-table")
    assert "NaN" not in damaged_page.inner_text("body")


def test_sliders_choose_the_table(page):
    for index, mechanism in enumerate(mechanism_tables()["mechanisms"]):
        page.select_option("#mechanism", str(index))
        position = 0
        for number, values in enumerate(mechanism["parameters"].values()):
            page.fill(f"#parameter-{number}", str(len(values) - 2))
            position = position * len(values) + len(values) - 2
        for x in (-7, 4):
            page.fill("#x", str(x))
            table = mechanism["tables"][position]
            assert f"≤ {table['renyi'][PLOTTED_ORDERS.index(inf)]}" in page.inner_text("#mechanism-table")
            titles = page.locator("#pmf-chart title").all_text_contents()
            shown = [float(title.split(": ")[1]) for title in titles]
            assert shown == table["pmfs"][abs(x)][:: 1 if x > 0 else -1]


def test_it_opens_with_the_papers_mechanism(page):
    bound = renyi(RQM(), 2, 1).upper
    assert f"≤ {mechanism_table(RQM())['renyi'][PLOTTED_ORDERS.index(2)]}" in page.inner_text("#mechanism-table")
    assert mechanism_table(RQM())["renyi"][PLOTTED_ORDERS.index(2)] == pytest.approx(bound, rel=1e-3)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_follows_the_theme(browser, address, scheme):
    opened = browser.open(address, viewport={"width": 390, "height": 844}, color_scheme=scheme)
    assert opened.evaluate("document.documentElement.scrollWidth") <= 390
    assert opened.evaluate("document.documentElement.dataset.theme") == scheme
    opened.click("#theme")
    assert opened.evaluate("document.documentElement.dataset.theme") != scheme
    labeled = "(one) => one.labels?.length || one.textContent.trim()"
    assert opened.evaluate(f"[...document.querySelectorAll('input, select, button')].every({labeled})")
