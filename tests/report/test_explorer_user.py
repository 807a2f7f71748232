"""The explorer's part about a user's (ε, δ): its numbers are Python's, and what it does not compute it refuses."""

from math import exp, sqrt

import numpy as np
import pytest

from rqm import PBM, Gaussian, Participation, StochasticRounding, ThreatModel
from rqm._util.checks import padded
from rqm.accounting.accountant import Question
from rqm.accounting.calibration import coordinate_clip, gaussian_noise
from rqm.accounting.participation import charge_counts
from rqm.accounting.release import Release
from rqm.bounds import gaussian_deltas, gaussian_epsilon, gaussian_mu
from rqm.correlated.factorization import Workload
from rqm.correlated.handover import gaussian_squared_mu
from rqm.correlated.iterates import iterate_noise

FIELDS = ("epsilon", "delta", "d", "rounds", "k", "apart", "n", "honest", "bits")
ASKED = [
    dict(zip(FIELDS, values, strict=True))
    for values in (
        (3, 1e-6, 10**6, 250, 1, 1, 1000, 1000, 1),
        (8, 1e-5, 48_670, 54, 1, 1, 400, 400, 1),
        (10, 1e-5, 10**5, 340, 10, 34, 100, 80, 4),
        (1, 1e-6, 50, 1, 1, 1, 1000, 800, 1),
        (0.1, 1e-9, 1, 20, 5, 1, 7, 3, 2),
        (50, 1e-3, 3, 2, 1, 1, 1, 1, 1),
        (1, 1e-6, 10**4, 100, 100, 1, 2**53 - 1, 2**40, 1),
        (1, 1e-6, 10**4, 100, 100, 1, 2**49 - 1, 2**40, 1),
    )
]


def drawn(rng):
    """Something that somebody might ask."""
    rounds, n = int(rng.integers(1, 200)), int(10 ** rng.uniform(0, 9))
    k, honest = int(rng.integers(1, rounds + 1)), int(rng.integers(1, n + 1))
    apart, d, bits = int(rng.integers(1, rounds // k + 1)), int(10 ** rng.uniform(0, 7)), int(rng.integers(1, 17))
    epsilon, delta = 10 ** rng.uniform(-2, 1.5), 10 ** rng.uniform(-12, -2)
    return dict(zip(FIELDS, (epsilon, delta, d, rounds, k, apart, n, honest, bits), strict=True))


ASKED += [drawn(np.random.default_rng(seed)) for seed in range(30)]


@pytest.fixture
def page(browser, address):
    return browser.open(f"{address}#mechanism=rounding&n=1")


def expected(p):
    """The same from the library."""
    who = Participation(p["honest"], p["rounds"], max_participations=p["k"])
    release, counts = Release(Gaussian(1.0), 1, 1.0), charge_counts(who, None)
    counted = gaussian_noise(Question(release, who, ThreatModel(), p["delta"], counts), p["epsilon"])
    apart, size = p["rounds"] if p["k"] == 1 else p["apart"], padded(p["d"])
    noise = iterate_noise(Workload(p["rounds"]))
    mech = StochasticRounding(clip=coordinate_clip(1.0, size), levels=2, margin=1.0)
    return {
        "odds": exp(p["epsilon"]),
        "mu": gaussian_mu(p["epsilon"], p["delta"]),
        "counted": counted,
        "noise": counted * sqrt(p["n"] / p["honest"]),
        "ofMean": counted * sqrt(p["n"] / p["honest"] * size) / p["n"],
        "margin": counted / sqrt(p["honest"]) / mech.clip - 1,
        "cancelled": noise.over_independent(apart, 1.0, noise.best_ratio(apart)) if apart > 1 else None,
        "coordinates": size,
        "sumBits": (p["n"] * (2 ** p["bits"] - 1)).bit_length(),
    }


def test_numbers_are_pythons(page):
    for p, found in zip(ASKED, page.evaluate("(all) => all.map((p) => rqmUser.promise(p))", ASKED), strict=True):
        for name, value in expected(p).items():
            assert found[name] == (None if value is None else pytest.approx(value, rel=1e-6)), (p, name)
            assert value is None or found[name] != pytest.approx(value * 1.0001 + 1e-12, rel=1e-6)  # would be noticed


@pytest.mark.parametrize("bits", [1, 4, 16])
def test_the_bits_of_a_sum_are_a_mechanisms(bits):
    for n in (1, 2, 7, 1000, 2**20):
        assert PBM(levels=2**bits).sum_bits(n) == (n * (2**bits - 1)).bit_length()


def test_the_margin_has_the_noise_that_is_asked_for(page):
    p = ASKED[1]
    margin = page.evaluate("(p) => rqmUser.promise(p).margin", p)
    mech = StochasticRounding(clip=coordinate_clip(1.0, padded(p["d"])), levels=2, margin=margin)
    assert sqrt(p["honest"] * mech.variance(0.0)) == pytest.approx(expected(p)["counted"], rel=1e-9)


def test_parts_are_pythons_too_and_one_per_cent_would_be_noticed(page):
    mus, epsilons = [1e-3, 0.1, 0.6477, 1, 5, 30], [0, 0.01, 1, 8, 100]
    found = page.evaluate("([m, e]) => m.map((a) => e.map((b) => rqmUser.gaussianDelta(a, b)))", [mus, epsilons])
    right = np.array([gaussian_deltas(mu, np.array(epsilons)) for mu in mus])
    np.testing.assert_allclose(found, right, rtol=1e-7, atol=1e-15)
    off = np.array([gaussian_deltas(1.01 * mu, np.array(epsilons)) for mu in mus])
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(found, off, rtol=1e-7, atol=1e-15)
    for mu, delta in ((0.1, 1e-5), (1.0, 1e-5), (4.0, 1e-9)):
        assert page.evaluate("(a) => rqmUser.gaussianEpsilon(...a)", [mu, delta]) == pytest.approx(
            gaussian_epsilon(mu, delta), rel=1e-8
        )
    for rounds, transient in ((1, 4.0), (2, 4.0), (30, 100.0), (500, 1e4)):
        told = page.evaluate("(a) => rqmUser.gaussianPaths(...a)", [rounds, transient, 1.0])
        assert told == pytest.approx(gaussian_squared_mu(rounds, 0.0, transient, 1, 1.0), rel=1e-9)
    for rounds in (1, 2, 57):
        noise = iterate_noise(Workload(rounds))
        assert page.evaluate("(T) => rqmUser.gains(T)", rounds) == pytest.approx(
            {"stays": noise.residual, "goes": noise.transient}, rel=1e-9
        )


@pytest.mark.parametrize("n", ["1", "2", "40", "101", "999983", "1e6", "9007199254740991"])
def test_every_number_of_clients_is_computed(page, n):
    page.fill("#u-n", n)
    page.fill("#u-honest", "1")
    shown = page.get_attribute("#u-row-noise td", "data-value")
    assert float(shown) == pytest.approx(expected(ASKED[0] | {"n": int(float(n)), "honest": 1})["counted"])
    assert page.is_hidden("#u-refused")


@pytest.mark.parametrize(
    ("field", "text", "why"),
    [
        ("n", "0", "n = 0: must be a whole number from 1 to"),
        ("n", "-3", "n = -3: must be"),
        ("n", "2.5", "n = 2.5: must be a whole number"),
        ("n", "1e300", "n = 1e300: must be a whole number from 1 to 9.01e+15"),
        ("n", "many", "n = many: must be"),
        ("n", "", "n = nothing: must be"),
        ("n", "999", "honest = 1000: must be at most n = 999"),
        ("honest", "1001", "honest = 1001: must be at most n = 1000"),
        ("epsilon", "0", "ε = 0: must be from 0.001 to 100"),
        ("delta", "1", "δ = 1: must be from"),
        ("k", "251", "k = 251: must be at most T = 250"),
        ("bits", "17", "bits = 17: must be a whole number from 1 to 16"),
        ("d", "<b>", "d = <b>: must be"),
    ],
)
def test_what_is_not_computed_is_refused_and_nothing_else_is_shown(page, field, text, why):
    page.fill(f"#u-{field}", text)
    assert why in page.inner_text("#u-refused")
    assert page.is_hidden("#u-found")
    page.click("text=A keyboard")
    assert page.is_visible("#u-found")
    assert page.is_hidden("#u-refused")


def test_presets_and_links_are_whole(browser, address, page):
    for label in page.locator("#u-presets button").all_inner_texts():
        page.click(f"text={label}")
        assert page.is_visible("#u-found"), label
        assert page.locator("#u-presets [aria-pressed=true]").all_inner_texts() == [label]
    page.fill("#u-epsilon", "2,5")
    page.click("#copy")
    other = browser.open(page.url)
    assert other.inner_text("#u-answer") == page.inner_text("#u-answer")
    assert "12.18 times likelier" in other.inner_text("#u-sentence")
    broken = browser.open(f"{address}#u-n=%E0%A4%A&u-k=1e99&n=1")
    assert "Nothing is computed" in broken.inner_text("#u-refused")
    assert "too few" in page.inner_text("#u-presets")


def test_one_numbers_clients_are_never_clamped(browser, address):
    page = browser.open(f"{address}#mechanism=rounding&n=250")
    assert (
        "n = 250: must be a whole number from 1 to 100 here; rqm privacy --clients computes others"
        in page.inner_text("#notice")
    )
    assert "shown is 40" in page.inner_text("#notice")
    assert page.input_value("#n-value") == "40"
    page.fill("#n-value", "1e9")
    page.press("#n-value", "Enter")
    assert "n = 1e9: must be" in page.inner_text("#notice")
    page.fill("#n-value", "3")
    page.press("#n-value", "Enter")
    assert page.is_hidden("#notice")
    page.select_option("#mechanism", "rqm")
    assert "m is now 16" in page.inner_text("#notice")
