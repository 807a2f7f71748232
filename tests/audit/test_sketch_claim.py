"""Sketches: a published claim falls to the worst pair, ours does not; and the map itself."""

import numpy as np
import pytest

from rqm import Participation, PrivateMean, SeededRandom, StochasticRounding
from rqm.audit.sketch_claim import audit_sketch
from rqm.core.transform import second_clip
from rqm.related.count_sketch import Sketch
from tests.core.exact import encoded_rows


@pytest.mark.statistical
def test_noise_is_needed_and_a_clip_before_the_sketch_is_not_enough():
    noise_free, clipped_before, clipped_after = audit_sketch()
    assert [audit.contradicted for audit in (noise_free, clipped_before, clipped_after)] == [True, True, False]
    assert noise_free.measured > 3 * noise_free.claimed
    assert clipped_after.claimed == clipped_before.claimed
    assert clipped_after.measured > 0.2 * clipped_after.claimed  # the attack is one
    assert noise_free.to_dict()["contradicted"] is True


@pytest.mark.statistical
def test_a_sketch_is_unbiased_with_the_error_of_a_choice():
    """Over hashes: the way back is unbiased, and wrong by about d/k times the length, spread over all values."""
    dim, count, repetitions = 256, 32, 1500
    x = np.random.default_rng(2).normal(size=(1, dim))
    x /= np.linalg.norm(x)
    sketches = [Sketch(dim, count, seed) for seed in range(repetitions)]
    decoded = np.array([sketch.inverse(sketch.forward(x))[0] for sketch in sketches])
    deviations = (decoded.mean(axis=0) - x[0]) / (decoded.std(axis=0) / repetitions**0.5)
    assert np.abs(deviations).max() < 5
    error = np.square(decoded - x).sum(axis=1).mean()
    assert error == pytest.approx((dim - 1) / count, rel=0.05)
    assert error != pytest.approx(dim / (count / 2), rel=0.05)


def test_a_private_mean_clips_what_is_sent_of_a_sketch():
    sketch = Sketch(dim=500, count=16, seed=3)
    mechanism = StochasticRounding(clip=0.5, levels=2, margin=3.0)
    mean = PrivateMean(dim=16, l2_clip=second_clip(16), mechanism=mechanism, participation=Participation(clients=5))
    in_one_sum = sketch.signs * (sketch.bins == sketch.bins[0])
    y = sketch.forward(in_one_sum[None] / np.linalg.norm(in_one_sum))[0]
    assert np.linalg.norm(y) > 2 * mean.l2_clip
    assert np.linalg.norm(encoded_rows(mean, y[None])) < mean.l2_clip
    assert mean.encode_simulated(y, SeededRandom(1)).shape == (16,)


@pytest.mark.parametrize("change", [{"dim": 0}, {"count": 0}, {"seed": -1}])
def test_values_out_of_range_are_named(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        Sketch(**{"dim": 5, "count": 2, **change})
