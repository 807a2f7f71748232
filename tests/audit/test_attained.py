"""What some pairs of vectors attain: few coordinates against enumeration, many against Gaussians."""

from itertools import product

import numpy as np
import pytest

from rqm import PBM, RQM
from rqm.audit.attained import Pair, attained_epsilon, event_epsilon, pairs, tails, thresholds
from rqm.bounds import gaussian_epsilon
from rqm.mechanisms.additive import DiscreteGaussian


def enumerated(p, q, count, delta):
    """The largest ε at δ of all events of some coordinates, outcome by outcome."""
    joint = [np.array([np.prod(outcome) for outcome in product(pmf, repeat=count)]) for pmf in (p, q)]
    order = np.argsort(-joint[0] / joint[1], kind="stable")
    return event_epsilon(*(np.cumsum(pmf[order]) for pmf in joint), delta)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_epsilon_of_few_coordinates_is_near_that_of_the_enumeration_and_never_above(count):
    rng = np.random.default_rng(count)
    for _ in range(20):
        p, q = rng.dirichlet(np.ones(6), size=2) * 0.99 + 0.01 / 6
        attained, exact = event_epsilon(*tails(p, q, count), 1e-3), enumerated(p, q, count, 1e-3)
        assert 0.9 * exact <= attained <= exact * (1 + 1e-9)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_events_by_summed_losses_have_nearly_their_probabilities(count):
    p, q = np.random.default_rng(count).dirichlet(np.ones(6), size=2) * 0.99 + 0.01 / 6
    joint = [np.array([np.prod(outcome) for outcome in product(pmf, repeat=count)]) for pmf in (p, q)]
    sums = np.log(joint[0] / joint[1])
    for least, gained, paid in list(zip(*thresholds(p, q, count), strict=True))[::7]:
        assert joint[0][sums >= least].sum() == pytest.approx(gained, abs=0.02 if count > 1 else 1e-12)
        assert joint[1][sums >= least].sum() == pytest.approx(paid, abs=0.02 if count > 1 else 1e-12)


def test_many_coordinates_are_as_distinguishable_as_gaussians():
    x = np.arange(-600, 601)
    low, high = (np.exp(-((x - shift) ** 2) / (2 * 60.0**2)) for shift in (0, 1))
    pair = Pair(1.0, 3600, 0.0, low / low.sum(), high / high.sum(), low)
    assert pair.epsilon(1e-6) == pytest.approx(gaussian_epsilon(1.0, 1e-6), rel=1e-3)
    assert pair.epsilon(1e-6) <= gaussian_epsilon(1.0, 1e-6)


def test_an_epsilon_of_fifty_keeps_its_digits():
    x = np.arange(-600, 601)
    low, high = (np.exp(-((x - shift) ** 2) / (2 * 60.0**2)) for shift in (0, 10))
    pair = Pair(1.0, 1296, 0.0, low / low.sum(), high / high.sum(), low)  # μ = 6
    assert pair.epsilon(1e-6) == pytest.approx(gaussian_epsilon(6.0, 1e-6), rel=1e-3)


@pytest.mark.parametrize(
    "mechanism",
    [PBM(theta=0.2), RQM(margin=0.5), DiscreteGaussian(scale=0.5, steps=15, bits=8)],
    ids=lambda mechanism: mechanism.kind,
)
def test_pairs_keep_the_l2_bound_and_their_pmfs_are_those_of_sums(mechanism):
    candidates = list(pairs(mechanism, 5, 8, 2.0))
    assert all(pair.count * pair.size**2 <= 4.0 * (1 + 1e-9) and pair.count <= 8 for pair in candidates)
    assert {pair.size for pair in candidates} > {1.0}
    for pair in candidates:
        assert pair.low.sum() == pytest.approx(1, abs=1e-9)
        assert pair.crowd.sum() == pytest.approx(1, abs=1e-9)
        own = np.exp(mechanism.log_law(pair.size * mechanism.clip, "sampled"))
        total = np.convolve(own, pair.crowd)
        if mechanism.modular:
            total = total[: len(own)] + np.append(total[len(own) :], 0.0)
        assert np.allclose(total, pair.high, rtol=1e-6, atol=1e-15)


def test_an_affine_pair_of_one_coordinate_attains_what_is_enumerated():
    mechanism = PBM(theta=0.3, levels=4)
    low, high = (np.exp(mechanism.log_law(x, "sampled")) for x in (-1.0, 1.0))
    base = np.convolve(high, high)
    exact = max(
        enumerated(np.convolve(high, base), np.convolve(low, base), 1, 1e-4),
        enumerated(np.convolve(low, base), np.convolve(high, base), 1, 1e-4),
    )
    assert attained_epsilon(mechanism, 3, 1, 1.0, 1e-4) == pytest.approx(exact, rel=1e-9)
