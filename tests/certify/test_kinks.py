"""Pmfs with breakpoints inside the clip: (ε, δ) and μ are above all that can be enumerated, and near it."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from math import inf

import numpy as np
import pytest
from scipy import stats

from rqm import RQM, Participation, StochasticRounding, ThreatModel, renyi
from rqm.accounting.accountant import account
from rqm.accounting.release import Release
from rqm.audit.attained import attained_epsilon as attained_vector_epsilon
from rqm.bounds import gaussian_deltas
from rqm.certify import blocks, kinks
from rqm.certify.blocks import pairs_of_client
from rqm.certify.kinks import GaussianMixture, attained_epsilon, coordinate_epsilon, interior_gdp
from rqm.related.randomized_response import RandomizedResponse
from tests.certify.oracle import TableMechanism, largest_deltas, largest_epsilon, plain_sum
from tests.certify.test_blocks import PAPER

SMALL = [
    RQM(levels=6, margin=0.5, keep=0.4),
    RQM(levels=5, margin=0.3, keep=(0.3, 0.6, 0.4)),
    RandomizedResponse(levels=4),
]
MIRRORED = TableMechanism.of([[0.8, 0.2], [0.914, 0.086], [0.086, 0.914], [0.2, 0.8]])
ONE_ROUND = Participation(40, max_participations=1)


def true_delta(mechanism, eps, clients):
    """The largest δ over all inputs of everybody; inputs between breakpoints cannot be worse."""
    pmfs = mechanism.pmf(mechanism.breakpoints)
    return largest_deltas(pmfs, pmfs, clients - 1, [eps])[0]


def certified_deltas(mechanism, epsilons, clients):
    """δ of one coordinate at some ε, certified for all inputs."""
    own_pmfs = np.exp(mechanism.breakpoint_log_pmfs())
    pairs = pairs_of_client(own_pmfs, clients - 1)
    tiled = np.tile(np.asarray(epsilons, dtype=float), (len(pairs), 1))
    *_, best = kinks._certified(own_pmfs, clients, pairs, tiled, 1e-12)
    return best.max(axis=0)


# -- one coordinate -------------------------------------------------------------------------------


@pytest.mark.parametrize("placements", [130_000, 0])
@pytest.mark.parametrize("mechanism", [*SMALL, MIRRORED], ids=repr)
@pytest.mark.parametrize(("clients", "eps"), [(1, 0.5), (2, 0.0), (4, 0.3), (5, 1.5)])
def test_delta_of_a_coordinate_is_above_the_truth_and_near_it(mechanism, clients, eps, placements, monkeypatch):
    """By enumeration, and by blocks."""
    monkeypatch.setattr(blocks, "MAX_PLACEMENTS", placements)
    truth, (bound,) = true_delta(mechanism, eps, clients), certified_deltas(mechanism, [eps], clients)
    assert bound >= truth
    if placements:
        assert bound <= 1.001 * truth + 1e-7


def test_a_pmf_with_less_noise_is_above_that_bound():
    mechanism, steeper = RQM(levels=6, margin=0.5, keep=0.4), RQM(levels=6, margin=0.5, keep=0.43)
    assert true_delta(steeper, 1.0, 4) > certified_deltas(mechanism, [1.0], 4)[0]


@pytest.mark.parametrize("mechanism", [*SMALL, MIRRORED], ids=repr)
@pytest.mark.parametrize(("clients", "delta"), [(1, 1e-3), (3, 1e-2), (5, 1e-4)])
def test_epsilon_of_a_coordinate_is_above_the_truth_and_near_it(mechanism, clients, delta):
    pmfs = mechanism.pmf(mechanism.breakpoints)
    truth = largest_epsilon(pmfs, pmfs, clients - 1, delta)
    assert attained_epsilon(mechanism, delta, clients) <= truth * (1 + 2e-4) + 1e-9
    assert truth <= coordinate_epsilon(mechanism, delta, clients) <= 1.02 * truth + 0.01


FAST = {(2.0, 0.57), (0.429, 0.49)}
MAX_RATIO = 1.081
"""ε at δ = 1e-5 over what is attained: a step of the values that are tried."""


@pytest.mark.parametrize(
    ("margin", "keep"),
    [pytest.param(*setting, marks=[] if setting in FAST else [pytest.mark.slow]) for setting in PAPER],
)
def test_the_papers_settings_are_bounded_near_what_is_attained(margin, keep):
    mechanism = RQM(margin=margin, keep=keep)
    result = account(Release(mechanism, 1, 1.0), ONE_ROUND, ThreatModel(), 1e-5)
    assert result.accountant == "pld"
    attained = attained_epsilon(mechanism, 1e-5, 40, "sampled")
    assert attained * (1 - 2e-4) <= result.epsilon <= MAX_RATIO * attained


def test_where_hardly_anything_is_revealed_there_is_an_epsilon_still():
    """δ between the total variation that is attained and the one that is certified."""
    mechanism = RQM(levels=7, margin=1.2, keep=0.25)
    assert 0 < coordinate_epsilon(mechanism, 0.2032, 9) < 0.1


def test_a_mechanism_that_exposes_an_input_has_no_epsilon():
    mechanism = StochasticRounding(levels=5, margin=0.5)
    assert coordinate_epsilon(mechanism, 1e-5, 3) == inf
    assert interior_gdp(mechanism, honest=3, dim=4, squared=4.0, farthest=4.0, failure=1e-9) == inf


@pytest.mark.parametrize("delta", [1e-5, 1e-3])
def test_more_clients_never_raise_epsilon_and_pure_epsilon_bounds_it(delta):
    epsilons = []
    for clients in (1, 2, 3, 4):
        participation = Participation(clients, max_participations=1)
        epsilons.append(account(Release(RQM(), 1, 1.0), participation, ThreatModel(), delta).epsilon)
        assert epsilons[-1] <= renyi(RQM(), inf, clients, distribution="sampled").upper * (1 + 1e-12)
    assert epsilons == sorted(epsilons, reverse=True), epsilons


def test_threads_that_ask_at_once_get_the_same_answer():
    for margin in (0.4, 0.41, 0.42):
        mechanism, deltas = RQM(levels=8, margin=margin, keep=0.42), [1e-2, 1e-3, 1e-4, 1e-5]
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(partial(coordinate_epsilon, mechanism, honest=12), deltas))
        assert answers == [coordinate_epsilon(mechanism, delta, 12) for delta in deltas]


# -- a vector under an L2 bound -------------------------------------------------------------------


def hockey_stick(first, second, eps):
    """Of two vectors of two pmfs each: of their products."""
    p, q = (np.multiply.outer(pmfs[0], pmfs[1]).ravel() for pmfs in (first, second))
    return np.maximum(p - np.exp(eps) * q, 0).sum()


@pytest.mark.parametrize("mechanism", [RQM(levels=6, margin=2.0, keep=0.3), RQM(levels=7, margin=1.2, keep=0.25)])
def test_the_bound_of_a_vector_is_above_every_pair_of_vectors(mechanism):
    """Two coordinates, three clients; all vectors on a grid within the bound, the others at some breakpoints."""
    l2_clip, failure = 1.2, 1e-4
    mu = interior_gdp(mechanism, honest=3, dim=2, squared=4 * l2_clip**2, farthest=4.0, failure=failure)
    assert mu < inf
    grid = np.concatenate([mechanism.breakpoints, [0.3]])
    pmfs = dict(zip(grid.tolist(), mechanism.pmf(grid), strict=True))
    vectors = [x for x in product(grid.tolist(), repeat=2) if np.hypot(*x) <= l2_clip]
    middle = len(mechanism.breakpoints) // 2
    others = [plain_sum([mechanism.pmf(x)] * 2).astype(float) for x in mechanism.breakpoints[[0, middle, -1]]]
    tightest = 0.0
    for eps in (0.2, 1.0, 3.0):
        limit = gaussian_deltas(mu, np.array([eps]))[0] + failure
        for x, y in product(vectors, repeat=2):
            for first, second in product(others, repeat=2):
                pair = [[np.convolve(pmfs[z[0]], first), np.convolve(pmfs[z[1]], second)] for z in (x, y)]
                tightest = max(tightest, hockey_stick(*pair, eps) / limit)
    assert 0.2 < tightest <= 1


@pytest.mark.parametrize("placements", [130_000, 0])
@pytest.mark.parametrize(
    "mechanism", [RQM(levels=6, margin=0.8, keep=0.4), RQM(levels=6, margin=0.3, keep=(0.6, 0.5, 0.4, 0.3))]
)
def test_the_distribution_of_scores_is_above_every_score(mechanism, placements, monkeypatch):
    """E(score − τ)₊ inside every cell, in both directions, beside every placement of the others."""
    monkeypatch.setattr(blocks, "MAX_PLACEMENTS", placements)
    pmfs, widths = mechanism.pmf(mechanism.breakpoints), np.diff(mechanism.breakpoints)
    largest = max(
        float(((q / p - 1) / w).max())
        for a, b, w in zip(pmfs, pmfs[1:], widths, strict=False)
        for p, q in ((a, b), (b, a))
    )
    thresholds, stop_loss = kinks._bounded_scores(pmfs, 3, widths, largest * (1 + 1e-9))
    tightest = 0.0
    for u, v in product(range(len(pmfs)), repeat=2):
        base = np.convolve(pmfs[u], pmfs[v])
        for cell, width in enumerate(widths):
            low, high = (np.convolve(pmf, base) for pmf in pmfs[cell : cell + 2])
            for fraction, sign in product((0.0, 0.4, 1.0), (1, -1)):
                inside = (1 - fraction) * low + fraction * high
                score = sign * (high - low) / width / inside
                exact = np.maximum(score - thresholds[:, None], 0) @ inside
                assert (exact <= stop_loss * (1 + 1e-9) + 1e-15).all()
                tightest = max(tightest, exact[0] / stop_loss[0])
    assert tightest > (0.98 if placements else 0.4)


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "max_ratio"), [(40, inf), (1000, 1.1)])
@pytest.mark.parametrize(("margin", "keep"), [(1.0, 0.42), (2.0, 0.57), (0.66, 0.33)])
def test_a_thousand_coordinates_are_bounded_near_what_is_attained(margin, keep, clients, max_ratio):
    """Of forty clients ε is above 15, where bounds are loose."""
    mechanism = RQM(margin=margin, keep=keep)
    participation = Participation(clients, max_participations=1)
    epsilon = account(Release(mechanism, 1024, 8.0), participation, ThreatModel(), 1e-5).epsilon
    attained = attained_vector_epsilon(mechanism, clients, 1024, 8.0, 1e-5)
    assert attained <= epsilon <= max_ratio * attained


# -- mixtures of Gaussians ------------------------------------------------------------------------


def repeated_sum(pmf, count):
    """The pmf of the sum of copies of a symmetric pmf, with its values."""
    total = plain_sum([pmf / pmf.sum()] * count).astype(float)
    return np.arange(len(total)) - len(total) // 2, total / total.sum()


SCORES = {
    "even": repeated_sum(np.ones(5), 16),
    "peaked": repeated_sum(np.exp(-abs(np.arange(-4, 5.0))), 10),
    "binomial": repeated_sum(np.array([1.0, 2.0, 1.0]), 20),
}


def stop_loss_of(values, pmf, tau):
    return float(np.maximum(values - tau, 0) @ pmf)


def mixture_above(name):
    values, pmf = SCORES[name]
    thresholds = np.linspace(0, values[-1], 4 * int(values[-1]) + 1)
    stop_loss = np.array([stop_loss_of(values, pmf, tau) for tau in thresholds])
    return values, pmf, GaussianMixture.above(thresholds, stop_loss)


def stop_loss_of_mixture(mixture, tau):
    deviations = np.sqrt(mixture.variances)
    return float(
        mixture.weights @ [d * (stats.norm.pdf(tau / d) - tau / d * stats.norm.sf(tau / d)) for d in deviations]
    )


@pytest.mark.parametrize("name", SCORES)
def test_a_mixture_is_above_the_scores_in_convex_order(name):
    """One with a tenth less variance is not."""
    values, pmf, mixture = mixture_above(name)
    narrower = replace(mixture, variances=0.9 * mixture.variances)
    grid = np.linspace(0, values[-1], 97)
    farthest_excess = mixture.farthest_mass * mixture.farthest
    assert all(stop_loss_of(values, pmf, tau) <= stop_loss_of_mixture(mixture, tau) + farthest_excess for tau in grid)
    assert any(stop_loss_of(values, pmf, tau) > stop_loss_of_mixture(narrower, tau) + farthest_excess for tau in grid)
    variance = float(pmf @ values**2)
    assert variance <= mixture.mean <= 1.6 * variance


@pytest.mark.parametrize("count", [1, 4, 16])
@pytest.mark.parametrize("name", SCORES)
def test_sums_of_scores_are_below_the_factor(name, count):
    """E[S; its best p] over φ(Φ⁻¹(p)) of a sum of scores, computed."""
    _, pmf, mixture = mixture_above(name)
    values, total = repeated_sum(pmf, count)
    probability, mean = np.cumsum(total[::-1]), np.cumsum((total * values)[::-1])
    is_likely = (probability >= 1e-8) & (probability <= 0.5)
    truth = float((mean[is_likely] / stats.norm.pdf(stats.norm.ppf(probability[is_likely]))).max())
    bound = np.sqrt(count * mixture.factor(count, count, 1e-8))
    assert truth <= bound <= 1.2 * truth
