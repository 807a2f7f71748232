"""Splits of the others between two ends: every law is what a plain sum gives, and what is left out only helps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rqm.privacy.divergence import Sum
from rqm.privacy.splits import Splits

LOW, HIGH = np.array([0.7, 0.2, 0.1]), np.array([0.15, 0.25, 0.6])


def plain(lows, highs):
    law = np.ones(1)
    for one in [LOW] * lows + [HIGH] * highs:
        law = np.convolve(law, one)
    return law


def law_of(found):
    law = np.exp(found.log_law(found.mantissa.size))
    return law[: np.flatnonzero(law)[-1] + 1]


@given(others=st.integers(0, 30), block=st.integers(1, 7))
def test_every_way_has_the_law_of_those_who_are_sure(others, block):
    splits = Splits(Sum.of(np.log(LOW)), Sum.of(np.log(HIGH)), others, block)
    found = dict(splits.laws(0, len(splits)))
    assert sorted(found) == list(range(len(splits)))
    for way, law in found.items():
        highs = block * way
        lows = max(0, others - highs - block + 1)
        assert highs <= others  # nobody is counted who may be at the other end
        np.testing.assert_allclose(law_of(law), plain(lows, highs), rtol=1e-12)
        np.testing.assert_allclose(law_of(splits.law(way)), plain(lows, highs), rtol=1e-12)


def test_a_stretch_is_skipped_by_what_its_ways_share():
    seen = []
    splits = Splits(Sum.of(np.log(LOW)), Sum.of(np.log(HIGH)), 16)

    def skip(common):
        seen.append(len(law_of(common)))
        return True

    kept = [way for way, _ in splits.laws(0, 17, skip)]
    assert len(kept) < 17
    assert seen


@pytest.mark.parametrize("log_tail", [-20.0, -100.0, -1000.0])
def test_what_is_trimmed_is_told(log_tail):
    one = Sum.of(np.log(LOW))
    whole, some = one.times(600), one.times(600, log_tail)
    full = np.exp(whole.log_law(whole.mantissa.size))
    left = np.exp(some.log_law(some.mantissa.size))
    if log_tail > -700:
        assert len(left) < len(full)
        assert 0 < np.exp(some.log_lost) < 60 * np.exp(log_tail)
    gone = max(full.sum() - left.sum(), 0.0)
    assert gone <= np.exp(some.log_lost) + 1e-12
