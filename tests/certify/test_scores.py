"""Many coordinates of few clients: against trade-off functions of whole releases, and Gaussians."""

from itertools import product
from math import pi, sqrt

import numpy as np
import pytest
from scipy.stats import norm

from rqm import PBM, RQM, Participation, StochasticRounding, ThreatModel
from rqm.accounting.accountant import account
from rqm.accounting.participation import COHORT_FAILURE, honest_cohorts
from rqm.accounting.profiles import mixed
from rqm.accounting.release import Release
from rqm.bounds import Bound, GdpMu, PrivacyProfile, epsilon, profile_of
from rqm.certify.affine_rdp import end_pmfs
from rqm.certify.gaussian_dp import affine_gdp
from rqm.certify.scores import _doubled_sums, _gaussian_factor, _rates, _upper_score, summed_rate
from tests.certify.oracle import largest_normal_gap, release_pmf

AFFINE = [
    StochasticRounding(clip=1.0, levels=2, margin=3.0),
    StochasticRounding(clip=1.0, levels=2, margin=30.0),
    RQM(clip=1.0, margin=9.0, levels=4, keep=0.3),
]


def ends(mechanism):
    return end_pmfs(mechanism, "paper")


@pytest.mark.parametrize("mechanism", AFFINE, ids=repr)
def test_no_release_of_many_coordinates_is_easier_to_distinguish(mechanism):
    """For every number of summed scores, though only the best of them is used."""
    rng, closest = np.random.default_rng(5), 0.0
    for honest, dim in ((1, 9), (2, 6), (3, 5)) if mechanism.levels == 2 else ((1, 6), (2, 4)):
        for count, rate in _rates(ends(mechanism), honest - 1, 512):
            for draw in range(8):
                x, y = np.ones(dim), -np.ones(dim)
                if draw:
                    x = rng.uniform(-1, 1, dim) if draw % 2 else rng.choice([0.0, 1.0], dim)
                    y = rng.uniform(-1, 1, dim) if draw % 3 else -x
                others = rng.choice([-1.0, 1.0], (honest - 1, dim))
                exact = largest_normal_gap(*(release_pmf(mechanism, v, others) for v in (x, y)))
                squares = ((x - y) ** 2).sum() + (count - 1) * ((x - y) ** 2).max()
                assert exact <= sqrt(rate * squares) * (1 + 1e-9)
                closest = max(closest, exact / sqrt(rate * squares) if squares else 0.0)
    assert closest > 0.87


@pytest.mark.parametrize("mechanism", AFFINE, ids=repr)
@pytest.mark.parametrize("honest", [1, 2, 5])
def test_one_distribution_is_above_every_score_in_convex_order(mechanism, honest):
    """E(S − τ)₊ of scores at any own input, beside others anywhere."""
    pmfs = np.array(ends(mechanism))
    upper, unit = _upper_score(ends(mechanism), honest - 1)
    assert upper.sum() == pytest.approx(1, abs=1e-12)
    assert upper == pytest.approx(upper[::-1], abs=1e-15)
    values = (np.arange(len(upper)) - len(upper) // 2) * unit
    rng = np.random.default_rng(7)
    for v in (-1.0, -0.6, 0.0, 0.3, 1.0):
        base = np.ones(1)
        for u in rng.uniform(-1, 1, honest - 1):
            base = np.convolve(base, (pmfs[0] * (1 - u) + pmfs[1] * (1 + u)) / 2)
        low, high = (np.convolve(end, base) for end in pmfs)
        pmf = (low * (1 - v) + high * (1 + v)) / 2
        for tau in rng.uniform(-1.2, 1.2, 40) * values[-1]:
            for sign in (1, -1):
                score = (pmf * np.maximum(sign * (high - low) / 2 / pmf - tau, 0)).sum()
                assert score <= upper @ np.maximum(values - tau, 0) * (1 + 1e-9)


def test_the_factor_of_signs_is_known():
    """One sign: all of it at p = ½, √(π/2). A fair walk: the largest ratio over its own corners."""
    assert _gaussian_factor(np.array([0.5, 0.0, 0.5]), 0.0, 1) == pytest.approx(sqrt(pi / 2))
    walk = np.array([1.0])
    for steps in range(1, 13):
        walk = np.convolve(walk, [0.5, 0.0, 0.5])
        values = np.arange(-steps, steps + 1)
        best = max(
            (walk * values)[k:].sum() / norm.pdf(norm.ppf(walk[k:].sum())) for k in range(1, len(walk)) if walk[k] > 0
        )
        assert _gaussian_factor(walk, 0.0, steps) == pytest.approx(best, rel=1e-9)


def test_probability_that_is_moved_to_the_ends_counts():
    plain = _gaussian_factor(np.array([0.25, 0.5, 0.25]), 0.0, 100)
    assert _gaussian_factor(np.array([0.25, 0.5, 0.25]), 0.5, 100) > 5 * plain
    for count, rate in _doubled_sums(np.array([0.5] + [0.0] * 47 + [0.5]), 1 / 24, 512):
        assert 1 < rate < 1 + 0.6 / count


def test_a_million_bits_of_one_client_are_nearly_a_gaussian():
    mechanism = StochasticRounding(clip=4 / 1024, levels=2, margin=150.0)
    for honest in (1, 2, 3, 5, 8):
        mu = affine_gdp(mechanism, honest=honest, dim=2**20, l2_clip=1.0, failure=1e-9, distribution="sampled")
        assert 1 < mu * sqrt(honest * mechanism.variance(0.0)) / 2 < 1.01


def test_few_coordinates_gain_nothing_and_lose_nothing():
    for mechanism, neighboring in product((*AFFINE, PBM(clip=1.0, theta=0.1, levels=4)), ("replace-one", "zero-out")):
        options = {"honest": 3, "failure": 1e-12, "neighboring": neighboring}
        single = affine_gdp(mechanism, dim=1, l2_clip=1.0, **options)
        assert affine_gdp(mechanism, dim=64, l2_clip=8.0, **options) <= 8 * single * 1.01
    assert summed_rate(ends(AFFINE[0]), 3, 1.0) == float("inf")
    assert summed_rate(ends(AFFINE[0]), 400, 1e6) == float("inf")
    assert summed_rate(ends(StochasticRounding(clip=1.0, levels=2, margin=0.0)), 3, 1e6) == float("inf")


@pytest.mark.parametrize(
    ("clients", "honest_fraction", "margin", "largest"),
    [(40, 0.8, 85.35, 5.0), (20, 0.5, 153.46, 6.2), (40, 0.2, 171.69, 8.5)],
)
def test_a_fraction_of_honest_clients_costs_what_the_mixture_does(clients, honest_fraction, margin, largest):
    """Noise to which Rényi divergences gave ε = 5 for exactly this number of honest clients; here it is random."""
    release = Release(StochasticRounding(clip=4 / 1024, levels=2, margin=margin), 2**20, 1.0)
    participation = Participation(clients, population=3400, sampling="uniform", max_participations=1)
    threat_model = ThreatModel(honest_fraction=honest_fraction)
    cohorts, _ = honest_cohorts(participation, threat_model, COHORT_FAILURE * 1e-5)
    profiles = [
        (cohort.weight, profile_of(GdpMu(release.estimated_mu("replace-one", cohort.honest)))) for cohort in cohorts
    ]
    truth = epsilon(Bound(PrivacyProfile(((mixed(profiles), 1),))), 1e-5)
    assert truth < account(release, participation, threat_model, 1e-5).epsilon < min(largest, 1.015 * truth)
