"""ε that pairs of vectors attain: few coordinates against enumeration, many against Gaussians."""

from itertools import product

import numpy as np
import pytest

from rqm import PBM, RQM
from rqm.audit.attained import Pair, attained_epsilon, loss_events, pairs
from rqm.audit.measurement import event_epsilons
from rqm.bounds import gaussian_epsilon
from rqm.mechanisms.additive import DiscreteGaussian

DELTA = 1e-3


def joint_pmfs(p, q, count):
    """The pmfs of several coordinates, outcome by outcome."""
    return [np.array([np.prod(outcome) for outcome in product(pmf, repeat=count)]) for pmf in (p, q)]


def nested_events(p, q, count):
    """The probabilities of the events of the likeliest outcomes, all of them."""
    p, q = joint_pmfs(p, q, count)
    order = np.argsort(-p / q, kind="stable")
    return np.cumsum(p[order]), np.cumsum(q[order])


def random_pmfs(rng):
    return rng.dirichlet(np.ones(6), size=2) * 0.99 + 0.01 / 6


@pytest.mark.parametrize("count", [1, 2, 4])
def test_epsilon_of_few_coordinates_is_close_to_enumeration_and_never_above(count):
    rng = np.random.default_rng(count)
    for _ in range(20):
        p, q = random_pmfs(rng)
        attained = event_epsilons(*loss_events(p, q, count)[1:], DELTA).max()
        exact = event_epsilons(*nested_events(p, q, count), DELTA).max()
        assert 0.9 * exact <= attained <= exact * (1 + 1e-9)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_events_are_those_of_losses_above_a_threshold_but_for_rounding(count):
    p, q = random_pmfs(np.random.default_rng(count))
    joint = joint_pmfs(p, q, count)
    losses = np.log(joint[0] / joint[1])
    thresholds, *events = loss_events(p, q, count)
    rounding = 1e-9 if count == 1 else count * (thresholds[0] - thresholds[1]) / 2
    for pmf, probabilities in zip(joint, events, strict=True):
        for threshold, probability in list(zip(thresholds, probabilities, strict=True))[::7]:
            assert pmf[losses >= threshold + rounding].sum() - 1e-9 <= probability
            assert probability <= pmf[losses >= threshold - rounding].sum() + 1e-9


@pytest.mark.parametrize(("shift", "count", "mu"), [(1, 3600, 1.0), (10, 1296, 6.0)])
def test_many_coordinates_are_as_distinguishable_as_gaussians(shift, count, mu):
    """ε is 4.9 and 46: digits of small probabilities matter."""
    x = np.arange(-600, 601)
    low, high = (np.exp(-((x - mean) ** 2) / (2 * 60.0**2)) for mean in (0, shift))
    epsilon = Pair(1.0, count, 0.0, low / low.sum(), high / high.sum(), low).epsilon(1e-6)
    assert (1 - 1e-3) * gaussian_epsilon(mu, 1e-6) <= epsilon <= (1 + 1e-9) * gaussian_epsilon(mu, 1e-6)


@pytest.mark.parametrize(
    "mechanism",
    [PBM(theta=0.2), RQM(margin=0.5), DiscreteGaussian(scale=0.5, steps=15, bits=8)],
    ids=lambda mechanism: mechanism.kind,
)
def test_pairs_keep_the_l2_clip_and_their_pmfs_are_those_of_sums(mechanism):
    candidates = list(pairs(mechanism, 5, 8, 2.0))
    assert all(pair.count * pair.size**2 <= 4.0 * (1 + 1e-9) and pair.count <= 8 for pair in candidates)
    assert {pair.size for pair in candidates} > {1.0}
    for pair in candidates:
        assert pair.low.sum() == pytest.approx(1, abs=1e-9)
        assert pair.others_pmf.sum() == pytest.approx(1, abs=1e-9)
        own_pmf = np.exp(mechanism.log_pmf_at(pair.size * mechanism.clip, "sampled"))
        total = np.convolve(own_pmf, pair.others_pmf)
        if mechanism.is_modular:
            total = total[: len(own_pmf)] + np.append(total[len(own_pmf) :], 0.0)
        assert np.allclose(total, pair.high, rtol=1e-6, atol=1e-15)


def test_one_coordinate_of_an_affine_mechanism_attains_what_is_enumerated():
    mechanism = PBM(theta=0.3, levels=4)
    low, high = (np.exp(mechanism.log_pmf_at(x, "sampled")) for x in (-1.0, 1.0))
    others = np.convolve(high, high)
    sums = np.convolve(low, others), np.convolve(high, others)
    exact = max(event_epsilons(*nested_events(*pair, 1), 1e-4).max() for pair in (sums, sums[::-1]))
    assert attained_epsilon(mechanism, 3, 1, 1.0, 1e-4) == pytest.approx(exact, rel=1e-9)
