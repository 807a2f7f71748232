"""The certificate of correlated noise: close to a Gaussian's where noise is wide, and never better.

Whole runs are enumerated in `test_enumeration.py`.
"""

from dataclasses import replace
from functools import partial
from math import sqrt

import pytest

from rqm import PBM, RQM, CorrelatedNoise, Participation, StochasticRounding, ThreatModel
from rqm.accounting.accountant import account
from rqm.accounting.release import Release
from rqm.bounds import gaussian_epsilon
from rqm.certify.gaussian_dp import affine_gdp
from rqm.correlated.handover import gaussian_squared_mu
from rqm.correlated.scheme import Exposure
from rqm.mechanisms.gaussian import Gaussian

WIDE = Release(StochasticRounding(clip=4 / 1024, levels=2, margin=8.61), 2**20, 1.0, CorrelatedNoise(25.36))
FEW_CLIENTS = Release(StochasticRounding(clip=4 / 1024, levels=2, margin=26.8), 2**20, 1.0, CorrelatedNoise(25.72))
SERVER = ThreatModel()


def certified_mu(mechanism, noise, neighboring="replace-one", **exposure):
    """μ of one participation of a user."""
    sensitivity = exposure.pop("l2_clip") * (2 if neighboring == "replace-one" else 1)
    bound = noise.bound(mechanism, Exposure("user", sensitivity=sensitivity, neighboring=neighboring, **exposure))
    assert bound.failure == exposure["failure"]
    return bound.claim.mu


@pytest.mark.parametrize(
    ("release", "clients", "window", "max_ratio"), [(WIDE, 1000, 64, 1.01), (FEW_CLIENTS, 100, 34, 1.025)]
)
def test_where_noise_is_wide_it_is_the_gaussian_value(release, clients, window, max_ratio):
    bound = release.correlated_bound("replace-one", clients, window, 1e-9)
    assert 1 <= bound.claim.mu / release.estimated_mu("replace-one", clients, window) <= max_ratio


def test_correlated_noise_hides_what_rounding_alone_does_not():
    rounding_alone = affine_gdp(
        WIDE.mechanism, honest=1000, dim=2**20, l2_clip=1.0, failure=1e-9, distribution="sampled"
    )
    assert 5 * WIDE.correlated_bound("replace-one", 1000, 64, 1e-9).claim.mu < rounding_alone


def test_with_a_window_of_one_round_it_is_the_certificate_of_rounding():
    mech = StochasticRounding(clip=0.25, levels=2, margin=3.0)
    values = {"honest": 30, "dim": 64, "l2_clip": 1.0, "failure": 1e-9}
    independent = affine_gdp(mech, **values, distribution="sampled")
    mu = certified_mu(mech, CorrelatedNoise(5.0), separation=1, **values)
    assert independent * (1 - 1e-6) <= mu <= 1.02 * independent  # by the worst of all curves of the others


@pytest.mark.parametrize("noise", [CorrelatedNoise(8.0), CorrelatedNoise(8.0, 1.0, 8)])
def test_fewer_honest_clients_less_separation_and_less_noise_cost_more(noise):
    base = {"honest": 200, "separation": 8, "dim": 256, "l2_clip": 1.0, "failure": 1e-6}
    mech = StochasticRounding(clip=0.25, levels=2, margin=12.0)
    best = certified_mu(mech, noise, **base)
    assert certified_mu(mech, noise, **base | {"honest": 150}) > best
    assert certified_mu(mech, noise, **base | {"separation": 4}) > best
    assert certified_mu(mech, replace(noise, transient_std=4.0), **base) > best
    assert certified_mu(mech, noise, **base, neighboring="zero-out") < best


@pytest.mark.parametrize("mech", [RQM(), PBM(), StochasticRounding(levels=4, margin=9.0)])
def test_other_mechanisms_are_refused(mech):
    with pytest.raises(ValueError, match="two levels"):
        certified_mu(mech, CorrelatedNoise(8.0), honest=10, separation=3, dim=4, l2_clip=1.0, failure=1e-6)


def test_where_rounding_is_not_random_transient_noise_protects_nobody():
    """At a level there is only one outcome, and others whose inputs lie there add no randomness."""
    values = {"honest": 10, "separation": 3, "dim": 4, "l2_clip": 1.0, "failure": 1e-6}
    assert certified_mu(StochasticRounding(levels=2), CorrelatedNoise(8.0), **values) > 5
    with_residual = certified_mu(StochasticRounding(levels=2), CorrelatedNoise(8.0, 1.0, 8), **values)
    variances = 10 * CorrelatedNoise(1.0).added_variance, 10 * CorrelatedNoise(8.0).added_variance
    exact = sqrt(gaussian_squared_mu(3, variances[0], variances[1], 8, 0.0))  # of a change by one step
    assert exact <= with_residual < 1.3 * exact  # residual noise of ten clients is narrow


def test_participations_add_up_and_their_separation_is_counted_on():
    participation = Participation(100, 340, sampling="fixed-order", max_participations=10, min_separation=34)
    result_of = partial(account, FEW_CLIENTS, participation, SERVER, 1e-4)
    failure = 1e-3 * 1e-4 / 10
    mu = FEW_CLIENTS.correlated_bound("replace-one", 100, 34, failure).claim.mu
    result = result_of()
    assert result.epsilon == pytest.approx(gaussian_epsilon(mu * sqrt(10), 1e-4 - 10 * failure))
    assert result.accountant == "gaussian"
    assert result_of({0: 2}).epsilon > result_of({0: 1}).epsilon  # a repeated round counts twice
    assert participation.window == 34
    assert replace(participation, max_participations=1).window == 340


def test_correlated_noise_of_a_trusted_server_is_accounted_for_exactly():
    release = Release(Gaussian(2.0), 8, 1.0, CorrelatedNoise(30.0))
    squared_mu = gaussian_squared_mu(20, 0.0, 900.0, 1, 4.0)
    assert release.correlated_bound("replace-one", 5, 20, 1e-9).claim.mu == pytest.approx(2 * sqrt(squared_mu))


def test_participations_follow_from_the_rounds_that_were_charged():
    """Not from those that were planned: a run may be continued, or be young."""
    release = Release(StochasticRounding(clip=0.125, levels=2, margin=3.0), 1024, 1.0, CorrelatedNoise(8.0))
    planned = Participation(100, 10, sampling="fixed-order", min_separation=10)
    longer = replace(planned, rounds=100)

    def epsilon(participation, charges=None):
        return account(release, participation, SERVER, 1e-6, charges).epsilon

    charges = dict.fromkeys(range(100), 1)
    assert epsilon(planned, charges) == epsilon(longer, charges) == epsilon(longer)
    young = epsilon(longer, dict.fromkeys(range(10), 1))
    assert young == epsilon(planned)
    assert young < epsilon(longer, dict.fromkeys(range(11), 1))


def test_correlated_noise_costs_no_more_than_rounding_alone():
    participation = Participation(100, 60, sampling="fixed-order", max_participations=2, min_separation=30)
    release = Release(StochasticRounding(clip=0.125, levels=2, margin=0.2), 1024, 1.0, CorrelatedNoise(8.0))
    independent = account(replace(release, noise=None), participation, SERVER, 1e-6)
    assert account(release, participation, SERVER, 1e-6).epsilon <= independent.epsilon
