"""Quantizers: the L2 budget holds in integers whatever floats do, and no clipped vector exceeds it."""

from fractions import Fraction
from math import isqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rqm import PBM, RQM, StochasticRounding
from rqm.core.quantizer import CoordinateQuantizer
from rqm.core.transform import Transform, clip_and_rotate
from tests.core.exact import FEW_POSITIONS, ONE_BIT, mean_of, mechanisms, squared_distance

NARROW = [
    FEW_POSITIONS,
    StochasticRounding(levels=2, margin=5000.0),
    RQM(margin=200_000.0),
    PBM(theta=6e-5),
    ONE_BIT,
]


@settings(max_examples=60)
@given(mechanisms, st.integers(1, 40), st.floats(0.2, 5), st.integers(0, 2**32))
def test_the_budget_is_exact_in_integers(mechanism, dim, ratio, seed):
    rng = np.random.default_rng(seed)
    x = mechanism.clip * rng.uniform(-1.3, 1.3, size=(6, dim)) * rng.choice([1e-3, 0.5, 1.0], size=(6, 1))
    quantizer = CoordinateQuantizer(mechanism, dim, ratio * mechanism.clip)
    low, high = mechanism.sampler.position(2 * mechanism.clip * np.array([-1.0, 1.0])).tolist()
    limit = (Fraction(quantizer.l2_bound / mechanism.clip) * (high - low) / 2) ** 2
    assert quantizer.budget <= limit < quantizer.budget + 1
    expected = [squared_distance(mechanism, row) > 4 * quantizer.budget for row in x]
    for rows in (x, torch.from_numpy(x)):
        assert quantizer.exceeds_bound(rows).tolist() == expected


def test_long_vectors_with_dropped_bits_are_judged_on_the_safe_side():
    x = torch.full((2, 2**18), 0.01)
    length = float(x[0].double().norm())
    mechanism = StochasticRounding(clip=1.0, levels=2, margin=0.0)  # the widest span: 2**24 positions
    for factor, is_too_long in ((1 - 1e-4, True), (1 + 1e-4, False)):
        quantizer = CoordinateQuantizer(mechanism, 2**18, length * factor)
        assert quantizer.dropped_bits > 0
        assert (quantizer.exceeds_bound(x) == is_too_long).all()


def test_rows_that_floats_make_too_long_become_zero():
    quantizer = CoordinateQuantizer(StochasticRounding(clip=0.05, levels=2, margin=20.0), 4096, 1.0)
    x = torch.randn(300, 4096, generator=torch.Generator().manual_seed(0))
    scaled = x / x.norm(dim=1, keepdim=True)  # in float32 alone
    exceeds = quantizer.exceeds_bound(scaled)
    assert exceeds.any()
    for rows in (scaled.clone(), scaled.numpy().copy()):
        is_zero = ~np.asarray(quantizer.enforce_bound(rows)).any(axis=1)
        assert is_zero.tolist() == exceeds.tolist()
    assert not quantizer.exceeds_bound(clip_and_rotate(x, quantizer.max_length, None)[0]).any()


# -- no honest vector becomes zero ------------------------------------------------------------------


def exceeding(mechanism, dim, count, seed):
    """How many of `count` random vectors still exceed the bound after the transform."""
    rng = np.random.default_rng(seed)
    mean = mean_of(mechanism, dim)
    samples = rng.normal(size=(count, dim)), rng.standard_cauchy((count, dim)), rng.choice([-1.0, 1.0], (count, dim))
    x = np.concatenate([sample[: -(-count // 3)] for sample in samples])[:count]
    x *= 10.0 ** rng.uniform(-1, 3, size=(count, 1)) * mean.l2_clip / np.sqrt(dim)
    total = 0
    for vectors in (x, torch.from_numpy(x.astype(np.float32))):
        rows, finite = mean.transform().forward(vectors)
        assert finite.all()
        total += int(mean.quantizer.exceeds_bound(rows).sum())
    return total


@pytest.mark.parametrize("mechanism", NARROW, ids=repr)
def test_no_clipped_vector_becomes_zero(mechanism):
    for dim in (1, 2, 3, 5, 8, 17, 64, 1024):
        assert exceeding(mechanism, dim, max(30, 20_000 // dim), dim) == 0


@pytest.mark.slow
@pytest.mark.parametrize("bits", range(21))
def test_no_clipped_vector_of_up_to_a_million_coordinates_becomes_zero(bits):
    count = 200_000 if bits < 5 else max(3, 2**21 >> bits)
    for mechanism in NARROW:
        for start in range(0, count, 20_000):
            assert exceeding(mechanism, 1 << bits, min(20_000, count - start), [bits, start]) == 0


def test_vectors_scaled_to_the_clip_itself_exceed_the_bound():
    """The slack of `max_length` for the rounding is needed."""
    mean = mean_of(FEW_POSITIONS, 4)
    x = np.random.default_rng(0).normal(size=(2000, 4)) * 100
    rows, _ = Transform(mean.l2_clip * (1 - 2.0**-15), mean.transform().rotation).forward(x)
    assert mean.quantizer.exceeds_bound(rows).sum() > 20


@given(mechanisms, st.integers(1, 2**20), st.floats(0.3, 300))
def test_the_slack_for_the_rounding_is_enough_and_not_more(mechanism, count, ratio):
    """A vector of the largest length whose every position is rounded outwards is within the budget."""
    bound, sampler = ratio * mechanism.clip, mechanism.sampler
    quantizer = CoordinateQuantizer(mechanism, count, bound)
    try:
        length = quantizer.max_length
    except ValueError:
        return
    assert bound / 2 < length < bound
    if bound > mechanism.clip * count**0.5:  # no vector within the clip of every coordinate is longer
        return
    rounded = length * sampler.scale / (1 - 2.0**-16) + isqrt(count * 10**12) / 2e6  # half a position each
    assert rounded**2 <= quantizer.budget * (1 + 1e-9) + 1
    if sampler.high - sampler.low > 10**6 and ratio > count**0.5 / 8:
        assert length > (1 - 1e-4) * bound


def test_a_clip_that_is_too_small_for_the_rounding_is_refused():
    with pytest.raises(ValueError, match=r"l2_clip = 0\.001: allows .* positions of the encoder, too few"):
        _ = CoordinateQuantizer(FEW_POSITIONS, 1024, 1e-3).max_length
