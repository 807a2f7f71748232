"""The explorer: the committed page is the built one, its numbers are Python's, and it works in a browser."""

import json
import re
from math import inf
from pathlib import Path

import numpy as np
import pytest

from rqm import PBM, RQM, Rounding, renyi
from rqm.cli import explore
from rqm.mechanisms.response import RandomizedResponse
from rqm.report import explorer
from tests.browser import chromium, until

ROOT = Path(__file__).parents[2]
KINDS = {one.kind: one for one in (RQM, PBM, Rounding, RandomizedResponse)}
GRID = json.loads((ROOT / "src/rqm/report/explorer/grid.json").read_text())

# -- without a browser ----------------------------------------------------------------------------


def test_committed_page_is_the_built_one():
    assert (ROOT / "docs/explorer.html").read_text(encoding="utf-8") == explorer.build(), (
        "run: python -m rqm.report.explorer page docs/explorer.html"
    )


def test_page_is_one_small_file_that_loads_nothing():
    page = explorer.build()
    assert len(page.encode()) < 400_000
    assert not re.findall(r"https?://|@import|\burl\(|\bfetch\(|XMLHttpRequest|importScripts|<script[^>]*\bsrc=", page)
    assert "/*{" not in page


def test_module_writes_the_page(tmp_path):
    from rqm.report.explorer.__main__ import main

    main(["page", str(tmp_path / "page.html")])
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == explorer.build()


def test_command_writes_and_opens(tmp_path, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    explore.command(out=tmp_path / "new" / "page.html", open_=False)
    explore.command()
    paths = [Path(line) for line in capsys.readouterr().out.split()]
    assert paths == [tmp_path / "new" / "page.html", tmp_path / "cache" / "rqm" / "explorer.html"]
    assert all(path.read_text(encoding="utf-8") == explorer.build() for path in paths)
    assert opened == [paths[1].as_uri()]


def test_grid_holds_the_settings_it_should():
    listed = [(explorer._parameters(mech), [str(n) for n in counts]) for mech, counts in explorer._settings()]
    stored = [({k: v for k, v in one.items() if k != "bounds"}, list(one["bounds"])) for one in GRID["settings"]]
    assert stored == listed
    assert explorer.format_grid(GRID) == (ROOT / "src/rqm/report/explorer/grid.json").read_text()
    assert GRID["orders"] == ["inf" if alpha == inf else alpha for alpha in explorer.ORDERS]


@pytest.mark.parametrize(("place", "clients"), [(0, 2), (1, 5), (8, 10), (11, 100), (14, 2)])
def test_grid_is_what_renyi_says(place, clients):
    setting = GRID["settings"][place]
    bounds = renyi(made(setting), explorer.ORDERS, clients)
    for entry, bound in zip(setting["bounds"][str(clients)], bounds, strict=True):
        assert entry[:2] == pytest.approx([bound.lower, bound.upper], rel=1e-9)


# -- the laws in the page are the laws in Python -----------------------------------------------------


def made(fields):
    fields = {name: value for name, value in fields.items() if name != "bounds"}
    return KINDS[fields.pop("mechanism")](**fields)


def case(p, xs=(-1.0, -0.37, 0.0, 0.3, 1.0), runs=((1.1, 1), (2, 1), (64, 1), (inf, 1))):
    return {"p": p, "xs": list(xs), "runs": [list(run) for run in runs]}


def few(*counts):
    return [(alpha, n) for n in counts for alpha in (1.1, 2, 7.5, inf)]


def cases():
    """A seeded sweep over all mechanisms, and the corners."""
    rng = np.random.default_rng(7)
    out = []
    for _ in range(14):
        m = int(rng.integers(2, 33))
        margin, q = round(rng.uniform(0.05, 4), 2), round(rng.uniform(0.02, 0.98), 2)
        xs = rng.uniform(-1, 1, 3).tolist()
        each = rng.uniform(0.02, 0.98, m - 2).round(2).tolist()
        out += [
            case({"mechanism": "rqm", "levels": m, "margin": margin, "keep": q}, xs),
            case({"mechanism": "rqm", "levels": m, "margin": margin, "keep": each}, xs),
            case({"mechanism": "pbm", "levels": m, "theta": round(rng.uniform(0.01, 0.49), 2)}, xs),
            case({"mechanism": "rounding", "levels": m, "margin": margin}, xs),
            case({"mechanism": "randomized-response", "levels": m, "epsilon": round(rng.uniform(0.1, 12), 1)}, xs),
        ]
    for q in (0.02, 0.98):
        out += [case({"mechanism": "rqm", "levels": 32, "margin": margin, "keep": q}) for margin in (0.05, 4.0)]
    out += [
        case({"mechanism": "rounding", "levels": m, "margin": g}) for m, g in ((2, 0.0), (4, 2.0), (4, 2.5), (23, 0.1))
    ]
    out += [
        case({"mechanism": "rqm", "levels": 16, "margin": 1.0, "keep": 0.42}, runs=few(2, 3)),
        case({"mechanism": "rqm", "levels": 5, "margin": 1.0, "keep": [0.2, 0.5, 0.9]}, runs=few(2, 4)),
        case({"mechanism": "rqm", "levels": 8, "margin": 0.3, "keep": 0.98}, runs=few(2, 3)),
        case({"mechanism": "rqm", "levels": 32, "margin": 3.5, "keep": 0.9}, runs=few(2)),
        case({"mechanism": "rqm", "levels": 3, "margin": 0.5, "keep": 0.5}, runs=few(2, 20)),
        case({"mechanism": "pbm", "levels": 16, "theta": 0.25}, runs=few(2, 9)),
        case({"mechanism": "pbm", "levels": 32, "theta": 0.49}, runs=few(2, 12)),
        case({"mechanism": "rounding", "levels": 2, "margin": 0.05}, runs=few(2, 100)),
        case({"mechanism": "rounding", "levels": 2, "margin": 20.0}, runs=few(2, 100)),
        case({"mechanism": "rounding", "levels": 5, "margin": 1.0}, runs=few(2, 100)),
        case({"mechanism": "randomized-response", "levels": 6, "epsilon": 3.0}, runs=few(2, 4)),
    ]
    return out


EVALUATE = """cases => cases.map(({p, xs, runs}) => {
  const mech = rqm.mechanism(p);
  const bounds = runs.map(([alpha, n]) => rqm.renyi(p, alpha, n));
  return {
    pmf: xs.flatMap((x) => Array.from(rqm.pmf(mech, x))), variance: xs.map((x) => rqm.variance(mech, x)),
    variance_max: [rqm.varianceMax(mech).value], knots: rqm.knots(mech).map((knot) => knot.x),
    renyi: bounds.flatMap((one) => [one.lower, one.upper]), bits: [rqm.bits(mech), rqm.sumBits(mech, 7)],
    theorem: p.mechanism === 'rqm' ? [rqm.theoremBound(mech)] : [],
  };
})"""


def reference(one):
    mech = made(one["p"])
    bounds = [renyi(mech, alpha, n) for alpha, n in one["runs"]]
    return {
        "pmf": mech.pmf(one["xs"]).ravel(),
        "variance": mech.variance(one["xs"]),
        "variance_max": [mech.variance_max],
        "knots": mech.knots,
        "renyi": [value for bound in bounds for value in (bound.lower, bound.upper)],
        "bits": [mech.bits, mech.sum_bits(7)],
        "theorem": [mech.theorem_bound] if isinstance(mech, RQM) else [],
    }


def assert_same(found, expected, name):
    np.testing.assert_allclose(found[name], expected[name], rtol=1e-9, atol=1e-12, err_msg=name)


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
    path.write_text(explorer.build(), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def calculator(browser, address):
    """One page that is only asked for numbers."""
    return browser.open(f"{address}#mechanism=rounding&n=1")


def test_numbers_are_pythons(calculator):
    todo = cases()
    for one, found in zip(todo, calculator.evaluate(EVALUATE, todo), strict=True):
        expected = reference(one)
        for name in expected:
            assert_same(found, expected, name)


@pytest.mark.parametrize("name", ["pmf", "variance", "variance_max", "renyi"])
def test_a_wrong_law_would_be_noticed(calculator, name):
    """The comparison has the power to see a keep, a lean or an ε that is off by 1 %."""
    for p, wrong in (
        ({"mechanism": "rqm", "levels": 16, "margin": 1.0, "keep": 0.42}, {"keep": 0.4242}),
        ({"mechanism": "pbm", "levels": 16, "theta": 0.25}, {"theta": 0.2525}),
        ({"mechanism": "randomized-response", "levels": 6, "epsilon": 3.0}, {"epsilon": 3.03}),
    ):
        right, off = case(p, runs=few(2)), case({**p, **wrong}, runs=few(2))
        found_right, found_off = calculator.evaluate(EVALUATE, [right, off])
        assert_same(found_right, reference(right), name)
        with pytest.raises(AssertionError):
            assert_same(found_off, reference(right), name)


def test_exact_values_lie_within_the_grids(calculator):
    for setting in GRID["settings"]:
        p = {name: value for name, value in setting.items() if name != "bounds"}
        for n in (2,) if p["mechanism"] == "rqm" else (2, 5) if p["mechanism"] != "randomized-response" else ():
            orders = list(explorer.ORDERS)
            found = calculator.evaluate("([p, n, a]) => rqm.exact(rqm.mechanism(p), n, a)", [p, n, orders])
            for one, (lower, upper, *_) in zip(found, setting["bounds"][str(n)], strict=True):
                assert lower * (1 - 1e-9) <= one["lower"] <= one["upper"] <= upper * (1 + 1e-9)


def test_searches_attain_what_they_say(calculator):
    """Python computes the divergence for the very inputs that the page names."""
    p = {"mechanism": "rqm", "levels": 16, "margin": 0.8, "keep": 0.35}
    for depth in (0, 1):
        for alpha in (2, 20):
            found = calculator.evaluate("([p, a, d]) => rqm.search(rqm.mechanism(p), 12, [a], d)[0]", [p, alpha, depth])
            others = [x for x, count in found["others"] for _ in range(count)]
            assert found["lower"] == pytest.approx(renyi(made(p), alpha, 12, others).lower, rel=1e-9)


def test_certificates_between_precomputed_values_hold(calculator):
    """Between orders, and for more clients, the page's bound is above what is certified there, and not far above."""
    p = {"mechanism": "pbm", "levels": 16, "theta": 0.25}
    for alpha, n in ((1.2, 10), (3, 10), (11, 12), (100, 25)):
        found = calculator.evaluate(
            "([p, n, a, g]) => rqm.gridCertificate(g, rqm.mechanism(p), n, a)", [p, n, alpha, GRID]
        )
        true = renyi(made(p), alpha, n).upper
        assert true <= found["upper"] <= 2 * true
        assert found["upperClients"] <= n


# -- the page as its readers use it ------------------------------------------------------------------

PLOTS = ("law", "orders", "clients", "variance", "families")


def settle(page):
    until(page, "document.body.dataset.busy === 'false'")


def pictures(page):
    return {name: page.inner_html(f"#plot-{name} svg") for name in PLOTS}


def readings(page):
    """Everything that the page shows as text, and the controls."""
    values = "[...document.querySelectorAll('#sliders .control:not([hidden]) input')].map((one) => one.value)"
    return [page.inner_text("#numbers-card"), page.input_value("#mechanism"), page.evaluate(values)]


def number(page, what):
    return float(page.get_attribute(f"#{what}", "data-value").replace("Infinity", "inf"))


def test_page_opens_with_the_papers_setting_precomputed(browser, address):
    page = browser.open(address)
    settle(page)
    entry = GRID["settings"][0]["bounds"]["40"][1]
    assert [number(page, "lower"), number(page, "upper")] == entry[:2]
    assert "precomputed at RQM m=16, Δ=1, q=0.42, n=40, α=2" in page.inner_text("#upper-by")
    assert "per coordinate, one round, one client replaced" in page.inner_text("#unit")
    assert [page.inner_text("#lower"), page.inner_text("#upper")] == ["0.5027", "0.5419"]
    assert number(page, "row-theorem td") == pytest.approx(RQM().theorem_bound)
    assert all("path" in picture or "rect" in picture for picture in pictures(page).values())
    browser.assert_clean()


def test_off_the_grid_says_so(browser, address):
    page = browser.open(f"{address}#levels=10&margin=0.9&keep=0.5&n=25&alpha=3")
    settle(page)
    assert "found by a search" in page.inner_text("#lower-by")
    assert "more clients never leak more" in page.inner_text("#upper-by")
    assert "the current setting is not on the grid" in page.inner_text("#row-nearest")
    assert "precomputed at RQM m=16, Δ=1, q=0.55, n=20, α=4" in page.inner_text("#row-nearest")
    bound = renyi(RQM(margin=0.9, levels=10, keep=0.5), 3, 25)
    assert number(page, "lower") <= bound.upper
    assert number(page, "upper") >= bound.lower
    local = renyi(RQM(margin=0.9, levels=10, keep=0.5), 3)
    assert number(page, "row-local td") == pytest.approx(local.upper, rel=1e-9)


def test_works_without_a_worker(browser, address):
    link = f"{address}#levels=5&n=6&alpha=3"
    pages = [browser.open(link), browser.open(link, script="delete window.Worker")]
    for page in pages:
        settle(page)
    assert readings(pages[0]) == readings(pages[1])
    assert pictures(pages[0]) == pictures(pages[1])


def test_keyboard_moves_plots_and_numbers(browser, address):
    page = browser.open(f"{address}#n=1&levels=6")
    settle(page)
    for name, changed in (
        ("keep", PLOTS),
        ("n", ("orders", "families")),
        ("alpha", ("clients", "families")),
        ("x", ("law",)),
    ):
        before, told = pictures(page), readings(page)
        page.focus(f"#{name}")
        page.keyboard.press("ArrowRight")
        settle(page)
        after = pictures(page)
        assert all(before[plot] != after[plot] for plot in changed), name
        assert readings(page) != told
    assert number(page, "lower") == pytest.approx(renyi(RQM(levels=6, keep=0.43), 2.2, 2).lower, rel=1e-9)


def test_a_move_is_drawn_within_a_frame_or_three(browser, address):
    page = browser.open(f"{address}#n=1")
    settle(page)
    spent = page.evaluate("""async () => {
      const times = [], ask = requestAnimationFrame, keep = document.getElementById('keep');
      const note = (start) => times.push(performance.now() - start);
      const timed = (draw) => (t) => { const start = performance.now(); draw(t); note(start); };
      window.requestAnimationFrame = (draw) => ask(timed(draw));
      for (let k = 0; k < 15; k++) {
        keep.value = 0.3 + k / 100;
        keep.dispatchEvent(new Event('input'));
        await new Promise((done) => ask(() => setTimeout(done, 0)));
      }
      return times;
    }""")
    assert min(spent) < 50  # the fastest: other tests share the machine


def test_each_mechanism_shows_its_own_controls(browser, address):
    page = browser.open(f"{address}#n=1")
    common = ["x", "n", "alpha"]
    for kind, own in (
        ("pbm", ["levels", "theta"]), ("rounding", ["levels", "margin"]),
        ("randomized-response", ["levels", "epsilon"]), ("rqm", ["levels", "margin", "keep"]),
    ):  # fmt: skip
        page.select_option("#mechanism", kind)
        shown = page.evaluate(
            "[...document.querySelectorAll('.control[data-name]:not([hidden])')].map((c) => c.dataset.name)"
        )
        assert shown == own + common
    page.fill("#levels-value", "5")
    page.press("#levels-value", "Enter")
    page.check("#each")
    page.focus("#keeps input")
    page.keyboard.press("ArrowUp")
    settle(page)
    mech = RQM(levels=5, keep=(0.43, 0.42, 0.43))
    assert number(page, "row-variance td") == pytest.approx(mech.variance_max, rel=1e-9)
    assert number(page, "row-pure td") == pytest.approx(renyi(mech, inf).upper, rel=1e-9)


def test_rounding_inside_the_clip_is_not_private(browser, address):
    page = browser.open(f"{address}#mechanism=rounding&levels=4&margin=1&n=3")
    settle(page)
    assert [number(page, "lower"), number(page, "upper")] == [inf, inf]
    assert "no privacy" in page.inner_text("#upper-by")
    assert "no privacy" in page.get_attribute("#plot-orders svg", "aria-label")


def test_permalink_restores_everything(browser, address):
    page = browser.open(address, permissions=["clipboard-read", "clipboard-write"])
    page.click("text=PBM θ=.25")
    for name, text in (("levels", "4"), ("alpha", "inf")):
        page.fill(f"#{name}-value", text)
        page.press(f"#{name}-value", "Enter")
    page.focus("#x")
    page.keyboard.press("ArrowLeft")
    page.focus("#n")
    page.keyboard.press("PageDown")
    page.click("#copy")
    settle(page)
    link = page.url
    assert {"mechanism=pbm", "levels=4", "alpha=inf", "x=0.29"} <= set(link.partition("#")[2].split("&"))
    assert page.evaluate("navigator.clipboard.readText()") == link
    other = browser.open(link)
    settle(other)
    assert readings(other) == readings(page)
    assert pictures(other) == pictures(page)
    other.evaluate("location.hash = '#mechanism=rqm&levels=4&margin=2&keeps=0.3,0.6&n=1'")
    until(other, "document.getElementById('mechanism').value === 'rqm'")
    settle(other)
    assert number(other, "row-variance td") == pytest.approx(RQM(margin=2, levels=4, keep=(0.3, 0.6)).variance_max)
    other.click("#reset")
    settle(other)
    assert other.input_value("#keep-value") == "0.42"


@pytest.mark.parametrize(
    "broken",
    [
        "#%%%&&==&m", "#mechanism=__proto__&levels=abc&margin=-5&keep=&n=1e9&alpha=NaN", "#levels=2&keeps=,,,",
        "#mechanism=pbm&theta=7&levels=-3&n=0.2&alpha=0&x=99", "#mechanism=rounding&margin=0&levels=2&alpha=inf&n=1",
        "#keeps=<b>&x=<script>&n=1&levels=1000", "#mechanism=randomized-response&epsilon=1e-9&levels=32&n=1",
    ],
)  # fmt: skip
def test_a_broken_link_is_mended(browser, address, broken):
    page = browser.open(address + broken)
    until(page, "document.getElementById('lower').dataset.value !== undefined")
    values = page.evaluate("[...document.querySelectorAll('#sliders input.exact')].map((one) => one.value)")
    assert all(value == "∞" or np.isfinite(float(value)) for value in values)
    assert number(page, "lower") >= 0
    assert "NaN" not in page.inner_text("body")
    browser.assert_clean()


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_dark_by_preference_and_by_toggle(browser, address):
    light = browser.open(f"{address}#n=1", color_scheme="light")
    dark = browser.open(f"{address}#n=1", color_scheme="dark")
    assert background(light) != background(dark)
    light.click("#theme")
    assert background(light) == background(dark)
    assert light.get_attribute("#theme", "aria-pressed") == "true"
    light.emulate_media(color_scheme="dark")
    light.click("#theme")
    assert background(light) != background(dark)


def test_phone_needs_no_sideways_scrolling(browser, address):
    page = browser.open(
        f"{address}#levels=32&keeps={','.join(['0.5'] * 30)}&n=1", viewport={"width": 390, "height": 844}
    )
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    widths = page.evaluate("[...document.querySelectorAll('.card')].map((one) => one.getBoundingClientRect().right)")
    assert max(widths) <= 390


def test_pointing_reads_a_value(browser, address):
    page = browser.open(f"{address}#n=1")
    settle(page)
    for plot in PLOTS:
        page.hover(f"#plot-{plot}")
        assert page.inner_text(f"#plot-{plot} .tip").strip()
    page.hover("h1")
    assert page.is_hidden("#plot-families .tip")
    name = "(one) => one.labels?.length || one.ariaLabel || one.textContent.trim()"
    assert page.evaluate(f"[...document.querySelectorAll('input, select, button')].every({name})")
