"""QSGD: its law against enumeration, its published bounds, its code; and that it is not private."""

from itertools import product
from math import log2, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rqm import Plan, SeededRandom, account, private_mean, simulate
from rqm.related.qsgd import QSGD, omega, packed, unpacked
from tests.goodness import p_value
from tests.plans import make_plan
from tests.simulation.small import federation, model

V = np.array([0.5, -1.2, 0.0])


def message_pmf(v, s):
    """Of all levels of a vector, by their definition."""
    norm, pmf = np.linalg.norm(v), {}
    for ups in product((0, 1), repeat=len(v)):
        position = np.abs(v) / norm * s
        chance = np.prod(np.where(ups, position % 1, 1 - position % 1))
        if chance:
            pmf[tuple((np.sign(v) * (np.floor(position) + ups)).astype(int))] = chance
    return pmf


def test_levels_have_the_law_that_was_enumerated():
    mech, source = QSGD(levels=3), SeededRandom(2)
    expected = message_pmf(V, 3)
    outcomes = list(expected)
    drawn = [outcomes.index(tuple(mech.quantized(V, source)[1].tolist())) for _ in range(20_000)]
    observed = np.bincount(drawn, minlength=len(outcomes))
    assert p_value(observed, list(expected.values())) > 1e-6
    different = message_pmf(V + np.array([0.04, 0, 0]), 3)
    assert p_value(observed, [different[message] for message in outcomes]) < 1e-6  # another vector is seen
    mean = sum(p * np.linalg.norm(V) / 3 * np.array(message) for message, p in expected.items())
    assert mean == pytest.approx(V)
    spread = sum(p * ((np.linalg.norm(V) / 3 * np.array(message) - V) ** 2).sum() for message, p in expected.items())
    assert mech.variance(V) == pytest.approx(spread)


@pytest.mark.parametrize(("d", "s"), [(1000, 1), (1000, 4), (1000, 32), (64, 256)])
def test_the_published_bounds(d, s):
    """Lemma 3.1 and Theorem 3.2: variance, how many levels are not zero, and bits; within Monte Carlo error."""
    mech, source, draws = QSGD(levels=s), SeededRandom(d, s), 200
    v = np.random.default_rng(s).normal(size=d)
    messages = [mech.quantized(v, source) for _ in range(draws)]
    errors = np.array([((mech.value(*message) - v) ** 2).sum() for message in messages])
    deviation = errors.std() / sqrt(draws)
    assert abs(errors.mean() - mech.variance(v)) < 5 * deviation
    assert abs(errors.mean() - 1.2 * mech.variance(v)) > 5 * deviation
    assert mech.variance(v) <= min(d / s**2, sqrt(d) / s) * (v @ v)
    filled = np.mean([np.count_nonzero(levels) for _, levels in messages])
    assert filled <= min(d, s * (s + sqrt(d))) * 1.02
    if s * s + s * sqrt(d) < d / 2:  # where the code of gaps is the published one
        bits = np.mean([8 * len(packed(*message)) for message in messages])  # up to 7 more than the code
        sparse = s * (s + sqrt(d))
        bound = (3 + 1.5 * log2(2 * (s**2 + d) / sparse)) * sparse + 32
        assert 0.6 * bound < bits <= bound


@given(st.lists(st.integers(-300, 300), max_size=60), st.floats(0, 2.0**100, width=32))
def test_a_message_holds_all_of_it(levels, norm):
    levels = np.array(levels, dtype=np.int64)
    message = packed(norm, levels)
    assert unpacked(message, len(levels))[0] == norm
    assert np.array_equal(unpacked(message, len(levels))[1], levels)


def test_elias_omega():
    assert omega(1) == "0"
    assert omega(16) == "10100100000"
    with pytest.raises(ValueError, match="must be one of 1 coordinate"):
        unpacked(packed(1.0, np.array([0, 0, 0, 5])), 1)


def test_it_is_not_private_and_says_so():
    assert not QSGD().adds_noise
    with pytest.raises(TypeError, match="sends floats"):
        _ = QSGD().discrete
    with pytest.raises(TypeError, match="QSGD adds no noise: there is no privacy"):
        account(Plan(mechanism=QSGD()))


def test_it_trains_as_a_baseline():
    mean = private_mean(mechanism=QSGD(levels=4), dim=3, clients=500, l2_clip=None, rotate=False)
    total = torch.zeros(3, dtype=torch.float64)
    mean.add_messages(torch.from_numpy(np.tile(V, (500, 1))), total, SeededRandom(1), round_index=0)
    error = 5 * sqrt(QSGD(levels=4).variance(V) / 500)
    assert np.linalg.norm(mean.decode(total, 500).numpy() - V) < error
    plan = make_plan(mechanism=QSGD(levels=4), clients=6, rounds=10, evaluate_every=10)
    runs = [[message.loss for message in simulate(plan, model(), federation())][-1] for _ in range(2)]
    assert runs[0] == runs[1]  # by the seed
    assert runs[0] < 0.9


def test_a_message_that_nobody_can_have_sent_is_refused():
    rng = np.random.default_rng(0)
    whole = packed(2.0, np.array([3, 0, -1, 0, 2]))
    broken = [whole[:size] for size in range(len(whole))]
    broken += [rng.integers(0, 256, size=size, dtype=np.uint8).tobytes() for size in range(40)]
    broken += [b"\0\0\x80\x7f" + whole[4:], b"\0\0\0\0" + b"\xff" * 60]
    refused = 0
    for message in broken:
        try:
            norm, levels = unpacked(message, 5)
        except ValueError as error:
            refused += "must be one of 5 coordinates" in str(error)
        else:
            assert np.isfinite(norm)
            assert len(levels) == 5
    assert refused > len(whole)
