"""Bounds of mechanisms whose pmf is affine: against the exact δ of small releases, beside a bound that is too small.

Bounds by sums of scores: against all tests of enumerated releases, and against the accountant's.
"""

from functools import reduce
from itertools import product
from math import inf, sqrt

import numpy as np
import pytest
from scipy.stats import norm

from rqm import PBM, RQM, StochasticRounding, private_mean
from rqm.certify.scores import summed_rate
from rqm.verify.affine_bound import dominating_score, normal_scale, sum_of_scores_rate
from rqm.verify.integer_pmfs import end_pmfs
from rqm.verify.ledger_claims import read_claims
from tests.verify.ledgers import describe
from tests.verify.pmfs import joint, message_sum
from tests.verify.releases import claims_of, is_understated, neighbors, release_mu, vectors

AFFINE = [
    StochasticRounding(levels=2, margin=0.4),
    StochasticRounding(levels=2, margin=5.0),
    RQM(levels=4, margin=9.0, keep=0.3),
    PBM(theta=0.3, levels=3),
]


def affine_releases(mechanism, honest, dim, l2_clip, neighboring):
    """Pmfs of whole releases of neighbors, with the others' inputs at the ends."""
    for others in product((-1, 1), repeat=honest - 1):
        for pair in neighbors(dim, l2_clip, neighboring):
            yield tuple(joint([message_sum(mechanism, [u, *others]) for u in vector]) for vector in pair)


@pytest.mark.parametrize("mechanism", AFFINE, ids=repr)
@pytest.mark.parametrize("neighboring", ["replace-one", "zero-out"])
@pytest.mark.parametrize("l2_clip", [None, 1.0, 0.6])
def test_no_affine_release_is_easier_to_tell_apart(mechanism, neighboring, l2_clip):
    is_caught = False
    for honest, dim in product((1, 3), (1, 2)):
        claims = claims_of(dim=dim, clients=honest, mechanism=mechanism, l2_clip=l2_clip, neighboring=neighboring)
        mu = release_mu(claims, honest)
        for p, q in affine_releases(mechanism, honest, dim, l2_clip, neighboring):
            assert not is_understated(p, q, mu)
            is_caught = is_caught or is_understated(p, q, 0.98 * mu)
    # The bound of PBM is that of its trials one by one; that of a clip of 0.6 is by slopes up to the ends of the clip.
    assert is_caught or isinstance(mechanism, PBM) or l2_clip == 0.6


@pytest.mark.parametrize("mechanism", AFFINE, ids=repr)
@pytest.mark.parametrize("zero_distance", [1.01, 1.5])
def test_no_vector_instead_of_a_zero_update_is_easier_to_tell_apart(mechanism, zero_distance):
    """Where a zero update is no vector of zeros: two vectors at that distance, wherever they lie."""
    is_caught, l2_clip = False, 0.5
    for honest, dim in product((1, 3), (1, 2)):
        mean = private_mean(
            dim=dim, clients=honest, mechanism=mechanism, l2_clip=l2_clip, rotate=False, neighboring="zero-out"
        )
        claims = read_claims(describe(mean.with_values(zero_distance=zero_distance)))
        mu = release_mu(claims, honest)
        for direction, others in product(vectors(dim, l2_clip), product((-1, 1), repeat=honest - 1)):
            start = zero_distance - 1
            pair = (direction, -start * direction)  # at a distance of `zero_distance` L2 clips
            p, q = (joint([message_sum(mechanism, [u, *others]) for u in vector]) for vector in pair)
            assert not is_understated(p, q, mu)
            is_caught = is_caught or is_understated(p, q, mu / 1.2)
    # The slope of a mechanism without much noise is much less steep away from its ends.
    assert is_caught or isinstance(mechanism, PBM) or mechanism.margin < 1


# -- sums of scores -------------------------------------------------------------------------------

SCORED = [
    StochasticRounding(levels=2, margin=3.0),
    StochasticRounding(levels=2, margin=30.0),
    RQM(levels=4, margin=9.0, keep=0.3),
]


def largest_mu(p, q):
    """The largest Φ⁻¹ of a best test's power, less that of its level."""
    order = np.argsort(q / p)
    (power, level), (missed, rejected) = (
        (np.cumsum(p[indices])[:-1], np.cumsum(q[indices])[:-1]) for indices in (order, order[::-1])
    )
    z = [np.where(a < b, norm.ppf(a), -norm.ppf(b)) for a, b in ((power, missed[::-1]), (level, rejected[::-1]))]
    return float((z[0] - z[1]).max())


def release_pmf(low, high, vector, others):
    """The pmf of all coordinates of a sum, with the others' inputs at the ends."""
    coordinates = []
    for u, ends in zip(vector, others, strict=True):
        pmf = ((1 - u) * low + (1 + u) * high) / 2
        coordinates.append(reduce(np.convolve, [high if is_high else low for is_high in ends], pmf))
    return joint(coordinates)


@pytest.mark.parametrize("mechanism", SCORED, ids=repr)
@pytest.mark.parametrize("is_zero_out", [False, True])
def test_no_whole_release_is_easier_to_tell_apart(mechanism, is_zero_out):
    """For the best of each largest number of scores; and some bounds are nearly reached."""
    rng, nearest = np.random.default_rng(3), 0.0
    low, high, _ = end_pmfs(mechanism.to_dict())
    for honest, dim in ((1, 8), (2, 6), (3, 5)) if len(low) == 2 else ((1, 6), (2, 4)):
        for case in range(8):
            x = np.ones(dim) if case < 2 else rng.uniform(-1, 1, dim) * rng.integers(0, 2, dim)
            y = 0 * x if is_zero_out else -x if case % 2 else rng.uniform(-1, 1, dim)
            others = rng.integers(0, 2, (dim, honest - 1))
            mu = largest_mu(*(release_pmf(low, high, vector, others) for vector in (x, y)))
            squares = (x - y) ** 2
            if not squares.any():
                continue
            for max_terms in (1, 2, 4, 8):
                rate = sum_of_scores_rate(low, high, honest, max(2.0, squares.sum() / squares.max()), max_terms)
                bound = sqrt(rate * max(squares.sum(), 2 * squares.max()))
                assert mu <= bound
                nearest = max(nearest, mu / bound)
    assert nearest > 0.8


@pytest.mark.parametrize("mechanism", [*SCORED, PBM(theta=0.1), StochasticRounding(levels=2, margin=0.1)], ids=repr)
@pytest.mark.parametrize("honest", [1, 2, 7, 32])
def test_the_rate_is_that_of_the_accountant_or_hardly_more(mechanism, honest):
    low, high, _ = end_pmfs(mechanism.to_dict())
    for squares in (2.0, 4.9, 300.0, *([1e6] if honest == 2 else [])):
        stated = summed_rate((tuple(low.tolist()), tuple(high.tolist())), honest - 1, squares)
        rate = sum_of_scores_rate(low, high, honest, squares)
        if stated == inf:  # the accountant cuts off the rarest outcomes, and has no rate then
            assert low.min() ** honest < 1e-40
            fewer = sum_of_scores_rate(low, high, honest - 2, squares)
            assert 0.9 * fewer < rate < fewer
        else:
            assert stated * (1 - 1e-7) <= rate <= 1.01 * stated


def test_the_dominating_score_is_above_every_score():
    rng = np.random.default_rng(4)
    for mechanism, honest in product(SCORED, (1, 3)):
        low, high, _ = end_pmfs(mechanism.to_dict())
        pmf, unit = dominating_score(low, high, honest)
        points = unit * (np.arange(len(pmf)) - len(pmf) // 2)
        assert pmf.sum() == pytest.approx(1, abs=1e-14)
        assert (pmf == pmf[::-1]).all()
        for user_input, *others in rng.uniform(-1, 1, (20, honest)):
            base = reduce(np.convolve, [((1 - u) * low + (1 + u) * high) / 2 for u in others], np.ones(1))
            total = np.convolve(((1 - user_input) * low + (1 + user_input) * high) / 2, base)
            rise = np.convolve((high - low) / 2, base)
            for tau, sign in product(rng.uniform(-1.1, 1.1, 20) * points[-1], (1, -1)):
                curve = np.maximum(sign * rise - tau * total, 0).sum()
                assert curve <= pmf @ np.maximum(points - tau, 0) + 1e-16


def test_probability_far_out_counts():
    """A fair coin, a part of which is moved out: the scale grows with the part and with the distance."""
    coin = np.array([0.5, 0.0, 0.5])
    assert normal_scale(coin, 0.0, 1) == pytest.approx(sqrt(np.pi / 2))
    scales = [normal_scale(coin, *tail) for tail in ((0.0, 1), (1e-12, 50), (1e-12, 100), (1e-9, 100))]
    assert scales == sorted(set(scales))


def test_where_sums_are_not_exact_there_is_no_rate():
    low, high, _ = end_pmfs(StochasticRounding(levels=2, margin=3.0).to_dict())
    assert sum_of_scores_rate(low, high, 32, 100.0) < inf
    assert sum_of_scores_rate(low, high, 33, 100.0) == sum_of_scores_rate(low, high, 1, 1.5) == inf
    rare = np.array([1e-12, 0.3, 0.7 - 1e-12]), np.array([1e-12, 0.7 - 1e-12, 0.3])
    assert sum_of_scores_rate(*rare, 20, 100.0) < inf
    assert sum_of_scores_rate(*rare, 30, 100.0) == inf
    assert sum_of_scores_rate(np.array([0.0, 1.0]), np.array([0.5, 0.5]), 1, 100.0) == inf
