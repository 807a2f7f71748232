"""The explorer: the committed page is the built one, its numbers are Python's, and it works in a browser."""

import json
import re
from math import inf
from pathlib import Path

import numpy as np
import pytest

from rqm import PBM, RQM, StochasticRounding, renyi
from rqm.related.randomized_response import RandomizedResponse
from rqm.report import explorer
from tests.commands import rqm
from tools import explorer as grids

ROOT = Path(__file__).parents[2]
KINDS = {one.kind: one for one in (RQM, PBM, StochasticRounding, RandomizedResponse)}
GRID = json.loads((ROOT / "src/rqm/report/explorer/grid.json").read_text())

# -- without a browser ----------------------------------------------------------------------------


def test_committed_page_is_the_built_one():
    assert (ROOT / "docs/explorer.html").read_text(encoding="utf-8") == explorer.build(), (
        "run: python -m tools.explorer page docs/explorer.html"
    )


def test_page_is_one_small_file_that_loads_nothing():
    page = explorer.build()
    assert len(page.encode()) < 400_000
    assert not re.findall(r"https?://|@import|\burl\(|\bfetch\(|XMLHttpRequest|importScripts|<script[^>]*\bsrc=", page)
    assert "/*{" not in page


def test_module_writes_the_page(tmp_path):
    from tools.explorer import main

    main(["page", str(tmp_path / "page.html")])
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == explorer.build()


def test_command_writes_and_opens(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    printed = rqm("explore", "--out", tmp_path / "new" / "page.html", "--no-open").stdout + rqm("explore").stdout
    paths = [Path(line) for line in printed.split()]
    assert paths == [tmp_path / "new" / "page.html", tmp_path / "cache" / "rqm" / "explorer.html"]
    assert all(path.read_text(encoding="utf-8") == explorer.build() for path in paths)
    assert opened == [paths[1].as_uri()]


def test_grid_holds_the_settings_it_should():
    listed = [(grids.parameters(mech), [str(n) for n in counts]) for mech, counts in grids.settings()]
    stored = [({k: v for k, v in one.items() if k != "bounds"}, list(one["bounds"])) for one in GRID["settings"]]
    assert stored == listed
    assert grids.format_grid(GRID) == (ROOT / "src/rqm/report/explorer/grid.json").read_text()
    assert GRID["orders"] == ["inf" if alpha == inf else alpha for alpha in grids.ORDERS]


@pytest.mark.parametrize(("place", "clients"), [(0, 2), (1, 5), (8, 10), (11, 100), (14, 2)])
def test_grid_is_what_renyi_says(place, clients):
    setting = GRID["settings"][place]
    bounds = renyi(made(setting), grids.ORDERS, clients)
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
    variance_max: [rqm.varianceMax(mech).value], breakpoints: rqm.breakpoints(mech).map((point) => point.x),
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
        "breakpoints": mech.breakpoints,
        "renyi": [value for bound in bounds for value in (bound.lower, bound.upper)],
        "bits": [mech.bits, mech.sum_bits(7)],
        "theorem": [mech.theorem_bound] if isinstance(mech, RQM) else [],
    }


def assert_same(found, expected, name):
    """Equal, but for certified bounds (every other value of `renyi`): the page enumerates, Python may be 1 % above."""
    found, expected = np.array(found[name]), np.array(expected[name])
    if name == "renyi":
        assert (found[1::2] <= expected[1::2] * (1 + 1e-9)).all()
        np.testing.assert_allclose(found[1::2], expected[1::2], rtol=1e-2, err_msg=name)
        found, expected = found[::2], expected[::2]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11, err_msg=name)


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
            orders = list(grids.ORDERS)
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
