"""Many coordinates of few clients: against trade-off functions of whole releases, and normal laws."""

from itertools import product
from math import pi, sqrt

import numpy as np
import pytest
from scipy.stats import norm

from rqm import PBM, RQM, Rounding
from rqm.privacy.accountant import spent
from rqm.privacy.event import Event
from rqm.privacy.gaussian import vector_gdp
from rqm.privacy.profiles import epsilon_of, gaussian, mixed
from rqm.privacy.scores import CELLS, _doubled, _factor, _rates, _spread, summed_rate
from rqm.privacy.setting import Setting
from rqm.privacy.vector import end_laws
from tests.privacy.test_gaussian import released, told_apart

AFFINE = [
    Rounding(clip=1.0, levels=2, margin=3.0),
    Rounding(clip=1.0, levels=2, margin=30.0),
    RQM(clip=1.0, margin=9.0, levels=4, keep=0.3),
]


def ends(mech):
    return tuple(map(tuple, end_laws(mech, "paper")[0].tolist()))


@pytest.mark.parametrize("mech", AFFINE, ids=repr)
def test_no_release_of_many_coordinates_is_easier_to_tell_apart(mech):
    """Every number of a block by itself, though only the best is ever stated."""
    rng, closest = np.random.default_rng(5), 0.0
    for honest, dim in ((1, 9), (2, 6), (3, 5)) if mech.levels == 2 else ((1, 6), (2, 4)):
        for count, rate in _rates(ends(mech), honest - 1, 512):
            for turn in range(8):
                x, y = np.ones(dim), -np.ones(dim)
                if turn:
                    x = rng.uniform(-1, 1, dim) if turn % 2 else rng.choice([0.0, 1.0], dim)
                    y = rng.uniform(-1, 1, dim) if turn % 3 else -x
                others = rng.choice([-1.0, 1.0], (honest - 1, dim))
                found = told_apart(*(released(mech, v, others) for v in (x, y)))
                squares = ((x - y) ** 2).sum() + (count - 1) * ((x - y) ** 2).max()
                assert found <= sqrt(rate * squares) * (1 + 1e-9)
                closest = max(closest, found / sqrt(rate * squares) if squares else 0.0)
    assert closest > 0.87


@pytest.mark.parametrize("mech", AFFINE, ids=repr)
@pytest.mark.parametrize("honest", [1, 2, 5])
def test_one_law_is_above_every_score(mech, honest):
    """E(S − τ)₊ of scores at any own input, beside others anywhere."""
    laws, _ = end_laws(mech, "paper")
    law, unit = _spread(*laws, honest - 1)
    assert law.sum() == pytest.approx(1, abs=1e-12)
    assert law == pytest.approx(law[::-1], abs=1e-15)
    places = np.arange(-CELLS, CELLS + 1) * unit
    rng = np.random.default_rng(7)
    for v in (-1.0, -0.6, 0.0, 0.3, 1.0):
        base = np.ones(1)
        for u in rng.uniform(-1, 1, honest - 1):
            base = np.convolve(base, (laws[0] * (1 - u) + laws[1] * (1 + u)) / 2)
        low, high = (np.convolve(end, base) for end in laws)
        here = (low * (1 - v) + high * (1 + v)) / 2
        for tau in rng.uniform(-1.2, 1.2, 40) * places[-1]:
            for sign in (1, -1):
                score = (here * np.maximum(sign * (high - low) / 2 / here - tau, 0)).sum()
                assert score <= law @ np.maximum(places - tau, 0) * (1 + 1e-9)


def test_the_factor_of_coins_is_known():
    """One coin: all of it at p = ½, √(π/2). A fair walk: the largest ratio over its own corners."""
    assert _factor(np.array([0.5, 0.0, 0.5]), 0.0, 1) == pytest.approx(sqrt(pi / 2))
    walk = np.array([1.0])
    for steps in range(1, 13):
        walk = np.convolve(walk, [0.5, 0.0, 0.5])
        values = np.arange(-steps, steps + 1)
        best = max(
            (walk * values)[k:].sum() / norm.pdf(norm.ppf(walk[k:].sum())) for k in range(1, len(walk)) if walk[k] > 0
        )
        assert _factor(walk, 0.0, steps) == pytest.approx(best, rel=1e-9)


def test_what_is_moved_out_counts():
    plain = _factor(np.array([0.25, 0.5, 0.25]), 0.0, 100)
    assert _factor(np.array([0.25, 0.5, 0.25]), 0.5, 100) > 5 * plain
    for count, rate in _doubled(np.array([0.5] + [0.0] * (2 * CELLS - 1) + [0.5]), 1 / CELLS, 512):
        assert 1 < rate < 1 + 0.6 / count


def test_a_million_bits_of_one_client_are_nearly_a_gaussian():
    mech = Rounding(clip=4 / 1024, levels=2, margin=150.0)
    for honest in (1, 2, 3, 5, 8):
        found = vector_gdp(mech, honest=honest, dim=2**20, l2_clip=1.0, lost=1e-9, law="sampled")
        assert 1 < found * sqrt(honest * mech.variance(0.0)) / 2 < 1.01


def test_few_coordinates_gain_nothing_and_lose_nothing():
    for mech, neighbours in product((*AFFINE, PBM(clip=1.0, theta=0.1, levels=4)), ("replace", "zero-out")):
        one = vector_gdp(mech, honest=3, dim=1, l2_clip=1.0, lost=1e-12, neighbours=neighbours)
        assert vector_gdp(mech, honest=3, dim=64, l2_clip=8.0, lost=1e-12, neighbours=neighbours) <= 8 * one * 1.01
    assert summed_rate(ends(AFFINE[0]), 3, 1.0) == float("inf")
    assert summed_rate(ends(AFFINE[0]), 400, 1e6) == float("inf")
    assert summed_rate(ends(Rounding(clip=1.0, levels=2, margin=0.0)), 3, 1e6) == float("inf")


@pytest.mark.parametrize(("clients", "honest", "most"), [(40, 0.8, 5.0), (20, 0.5, 6.2), (40, 0.2, 8.5)])
def test_a_fraction_honest_costs_what_the_mixture_does(clients, honest, most):
    """Noise to which Rényi divergences gave 5 for so many honest clients exactly; nobody knows how many there are."""
    margin = {0.8: 85.35, 0.5: 153.46, 0.2: 171.69}[honest]
    event = Event(Rounding(clip=4 / 1024, levels=2, margin=margin), 2**20, 1.0)
    setting = Setting(clients, 1, 1e-5, 3400, participations=1, honest=honest)
    truth = epsilon_of(
        mixed([(one.weight, gaussian(event.least_mu("replace", one.honest))) for one in setting.crowds()[0]]), 1e-5
    )
    assert truth < spent(event, setting).epsilon < min(most, 1.015 * truth)
