"""Sketches: a published claim falls to the worst pair, ours does not; and the map itself."""

import numpy as np
import pytest

from rqm import Participation, PrivateMean, Rounding, SeededRandom
from rqm.audit.sketch_claim import audit_sketch
from rqm.encoding.choice import second_clip
from rqm.encoding.sketch import Sketch


@pytest.mark.statistical
def test_privacy_is_not_for_free_and_a_clip_before_is_not_enough():
    free, before, after = audit_sketch()
    assert free.contradicted
    assert free.measured > 3 * free.claimed
    assert before.contradicted
    assert not after.contradicted
    assert after.claimed == before.claimed
    assert after.measured > 0.2 * after.claimed  # the attack is one
    assert free.to_dict()["contradicted"] is True


@pytest.mark.statistical
def test_a_sound_sketch_is_unbiased_with_the_error_of_a_choice():
    """Over hashes: the way back is unbiased, and wrong by about d/k times the length, spread over all values."""
    dim, count, turns = 256, 32, 1500
    x = np.random.default_rng(2).normal(size=(1, dim))
    x /= np.linalg.norm(x)
    found = np.array(
        [Sketch(dim, count, seed).inverse(Sketch(dim, count, seed).forward(x))[0] for seed in range(turns)]
    )
    off = (found.mean(axis=0) - x[0]) / (found.std(axis=0) / turns**0.5)
    assert np.abs(off).max() < 5
    errors = np.square(found - x).sum(axis=1)
    assert errors.mean() == pytest.approx((dim - 1) / count, rel=0.05)
    assert errors.mean() != pytest.approx(dim / (count / 2), rel=0.05)


def test_through_a_private_mean_what_is_sent_is_within_the_clip():
    sketch = Sketch(dim=500, count=16, seed=3)
    mech = Rounding(clip=0.5, levels=2, margin=3.0)
    mean = PrivateMean(dim=16, l2_clip=second_clip(16), mechanism=mech, participation=Participation(clients=5))
    together = sketch.signs * (sketch.places == sketch.places[0])
    y = sketch.forward(together[None] / np.linalg.norm(together))[0]
    assert np.linalg.norm(y) > 2 * mean.l2_clip
    assert np.linalg.norm(mean._prepared(y[None], 0)[0]) < mean.l2_clip
    assert mean.simulated(y, SeededRandom(1)).shape == (16,)


@pytest.mark.parametrize("change", [{"dim": 0}, {"count": 0}, {"seed": -1}])
def test_what_is_no_sketch_is_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        Sketch(**{"dim": 5, "count": 2, **change})
