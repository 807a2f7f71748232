"""The verifier's bound of whole releases: against all tests between enumerated ones, and the accountant's."""

from functools import reduce
from itertools import product
from math import inf, sqrt

import numpy as np
import pytest
from scipy.stats import norm

from rqm import PBM, RQM, Rounding
from rqm.privacy.scores import summed_rate
from rqm.verify.laws import ends
from rqm.verify.scores import GRID, _above, _normal, _rates, summed

MECHANISMS = [Rounding(levels=2, margin=3.0), Rounding(levels=2, margin=30.0), RQM(levels=4, margin=9.0, keep=0.3)]


def told_apart(p, q):
    """The largest Φ⁻¹ of what a best test finds, less that of what it finds wrongly."""
    order = np.argsort(q / p)
    (found, wrong), (missed, right) = ((np.cumsum(p[way])[:-1], np.cumsum(q[way])[:-1]) for way in (order, order[::-1]))
    z = [np.where(a < b, norm.ppf(a), -norm.ppf(b)) for a, b in ((found, missed[::-1]), (wrong, right[::-1]))]
    return float((z[0] - z[1]).max())


def released(low, high, vector, others):
    """The law of all coordinates of a sum, beside others at the ends."""
    each = []
    for u, rest in zip(vector, others, strict=True):
        each.append(reduce(np.convolve, [high if up else low for up in rest], ((1 - u) * low + (1 + u) * high) / 2))
    return reduce(lambda a, b: np.outer(a, b).ravel(), each)


@pytest.mark.parametrize("mech", MECHANISMS, ids=repr)
@pytest.mark.parametrize("zero_out", [False, True])
def test_no_whole_release_is_easier_to_tell_apart(mech, zero_out):
    """Every number of scores by itself, though only the best is stated; and some come close."""
    rng, closest = np.random.default_rng(3), 0.0
    low, high, _ = ends(mech.to_dict())
    for honest, dim in ((1, 8), (2, 6), (3, 5)) if len(low) == 2 else ((1, 6), (2, 4)):
        rates = list(_rates(*_above(low, high, honest), 64))
        for turn in range(8):
            x = np.ones(dim) if turn < 2 else rng.uniform(-1, 1, dim) * rng.integers(0, 2, dim)
            y = 0 * x if zero_out else -x if turn % 2 else rng.uniform(-1, 1, dim)
            others = rng.integers(0, 2, (dim, honest - 1))
            found = told_apart(*(released(low, high, one, others) for one in (x, y)))
            for terms, rate in rates:
                squares = ((x - y) ** 2).sum() + (terms - 1) * ((x - y) ** 2).max()
                assert found <= sqrt(rate * squares)
                closest = max(closest, found / sqrt(rate * squares)) if squares else closest
    assert closest > 0.8


@pytest.mark.parametrize("mech", [*MECHANISMS, PBM(theta=0.1), Rounding(levels=2, margin=0.1)], ids=repr)
@pytest.mark.parametrize("honest", [1, 2, 7, 32])
def test_it_is_the_accountants_or_hardly_more(mech, honest):
    low, high, _ = ends(mech.to_dict())
    for budget in (2.0, 4.9, 300.0, *([1e6] if honest == 2 else [])):
        stated = summed_rate((tuple(low.tolist()), tuple(high.tolist())), honest - 1, budget)
        assert stated * (1 - 1e-7) <= summed(low, high, honest, budget) <= 1.01 * stated


def test_one_law_is_above_every_score():
    rng = np.random.default_rng(4)
    for mech, honest in product(MECHANISMS, (1, 3)):
        low, high, _ = ends(mech.to_dict())
        law, unit = _above(low, high, honest)
        places = unit * np.arange(-GRID, GRID + 1)
        assert law.sum() == pytest.approx(1, abs=1e-14)
        assert (law == law[::-1]).all()
        for own, *rest in rng.uniform(-1, 1, (20, honest)):
            base = reduce(np.convolve, [((1 - u) * low + (1 + u) * high) / 2 for u in rest], np.ones(1))
            here, rise = (np.convolve(a, base) for a in (((1 - own) * low + (1 + own) * high) / 2, (high - low) / 2))
            for tau, sign in product(rng.uniform(-1.1, 1.1, 20) * places[-1], (1, -1)):
                score = np.maximum(sign * rise - tau * here, 0).sum()
                assert score <= law @ np.maximum(places - tau, 0) + 1e-16


def test_what_is_far_out_counts():
    """A fair coin, with some of it moved out: the larger, the further and the more."""
    coin = np.array([0.5, 0.0, 0.5])
    assert _normal(coin, 0.0, 1) == pytest.approx(sqrt(np.pi / 2))
    assert _normal(coin, 1e-9, 100) > _normal(coin, 1e-12, 100) > _normal(coin, 1e-12, 50) > _normal(coin, 0.0, 1)


def test_where_sums_are_not_exact_there_is_no_bound():
    low, high, _ = ends(Rounding(levels=2, margin=3.0).to_dict())
    assert summed(low, high, 32, 100.0) < inf
    assert summed(low, high, 33, 100.0) == summed(low, high, 1, 1.5) == inf
    rare = np.array([1e-12, 0.3, 0.7 - 1e-12]), np.array([1e-12, 0.7 - 1e-12, 0.3])
    assert summed(*rare, 20, 100.0) < inf
    assert summed(*rare, 30, 100.0) == inf
    assert summed(np.array([0.0, 1.0]), np.array([0.5, 0.5]), 1, 100.0) == inf
