"""Guarantees: a trusted server's noise from an untrusted one, honest clients, and what a guarantee answers."""

from dataclasses import replace
from math import exp, inf, sqrt

import dp_accounting as dp
import numpy as np
import pytest
from scipy.stats import norm

from rqm import PBM, RQM, Participation, StochasticRounding, ThreatModel, calibrate
from rqm.accounting.calibration import Target
from rqm.accounting.guarantee import compose_guarantees, guarantee
from rqm.accounting.release import Release
from rqm.bounds import (
    HonestClients,
    MaxParticipations,
    MinSeparation,
    UniformSampling,
    compose,
    epsilon,
    from_pld,
    gaussian_deltas,
    gaussian_epsilon,
)
from rqm.mechanisms.gaussian import Gaussian

MILLION = {"clients": 1000, "population": 10**6, "rounds": 500, "delta": 1e-6, "dim": 2**20}
WRITERS = {"clients": 100, "population": 3400, "rounds": 1500, "delta": 1 / 3400, "dim": 2**20}
SCALES = {
    "server": {**MILLION, "adversary": "server", "max_participations": 1},
    "outsider": {**WRITERS, "adversary": "outsider", "max_participations": None},
}
SERVER = ThreatModel()


# -- the headline ----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [3, *(pytest.param(eps, marks=pytest.mark.slow) for eps in (5, 10))])
@pytest.mark.parametrize("adversary", ["server", "outsider"])
@pytest.mark.parametrize(("mechanism", "levels"), [("rqm", 16), ("rounding", 2), ("pbm", 16)])
def test_the_noise_is_a_trusted_servers(mechanism, levels, adversary, target):
    calibrated = calibrate(mechanism, epsilon=target, levels=levels, **SCALES[adversary])
    reached = calibrated.guarantee
    assert 0.996 * target < calibrated.epsilon <= target
    assert reached.certified
    assert reached.accountant == "gaussian"
    largest = {"server": {2: {3: 1.006, 5: 1.012, 10: 1.025}[target], 16: 1.01}[levels], "outsider": 1.06}[adversary]
    assert 1 <= reached.noise_std_over_gaussian <= largest
    assert reached.bits_per_coordinate == {16: 4, 2: 1}[levels]


@pytest.mark.parametrize(("mechanism", "levels"), [("rqm", 16), ("rounding", 2)])
def test_with_four_fifths_honest_it_costs_what_it_must(mechanism, levels):
    reached = calibrate(mechanism, epsilon=10, levels=levels, honest_clients=800, **SCALES["server"]).guarantee
    assert reached.min_honest == 800
    assert 1.25**0.5 < reached.noise_std_over_gaussian <= 1.02 * 1.25**0.5


def test_epsilon_moves_in_the_right_direction():
    participation = Participation(clients=50, population=1000, rounds=20, max_participations=2)
    release = Release(StochasticRounding(clip=0.01, levels=2, margin=100.0), 10_000, 0.5)

    def stated(release=release, participation=participation, threat_model=SERVER):
        return guarantee(release, participation, threat_model, 1e-5).epsilon

    for better in (
        stated(replace(release, mechanism=StochasticRounding(clip=0.01, levels=2, margin=120.0))),
        stated(participation=replace(participation, clients=60)),
        stated(participation=replace(participation, max_participations=1)),
        stated(threat_model=ThreatModel(neighboring="zero-out")),
        stated(replace(release, l2_clip=0.4)),
    ):
        assert better < stated()
    assert stated(threat_model=ThreatModel(honest_clients=40)) > stated()


@pytest.mark.parametrize(("clients", "divergence"), [(5, 2.995), pytest.param(40, 0.5137, marks=pytest.mark.slow)])
def test_the_papers_setting_protects_nobody(clients, divergence):
    participation = Participation(clients=clients, population=3400, rounds=2000)
    useless = guarantee(Release(RQM(clip=2.9731e-5), 1_018_174, 0.03), participation, SERVER, 1e-5)
    assert useless.epsilon > 1e8
    assert useless.per_coordinate == pytest.approx(divergence, abs=1e-3 if clients == 5 else 0.07 * divergence)
    assert useless.noise_std_over_gaussian is None
    assert useless.participations == 2000


def test_a_gaussian_is_its_own_measure():
    participation = Participation(clients=100, population=3400, rounds=1500, sampling="uniform")
    threat_model, delta = ThreatModel("outsider"), 1 / 3400
    z = Target(10, delta, participation, threat_model, Release(Gaussian(1.0), 10, 1.0)).gaussian_noise()
    epsilon = guarantee(Release(Gaussian(z), 10, 1.0), participation, threat_model, delta).epsilon
    assert epsilon == pytest.approx(10, rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0}, "epsilon = 0"),
        ({"levels": 3}, "levels = 3: must be even"),
        ({"mechanism": "laplace"}, "mechanism = 'laplace'"),
        ({"honest_clients": 101}, "honest_clients = 101"),
        ({"honest_fraction": 1.5}, "honest_fraction = 1.5"),
        ({"max_participations": 0}, "max_participations = 0"),
        ({"neighboring": "add-or-remove-one"}, "must come with the mechanism gaussian"),
        ({"population": 10}, "population = 10"),
    ],
)
def test_bad_values_are_named(changes, message):
    values = {"mechanism": "rqm", "epsilon": 3, **WRITERS, **changes}
    with pytest.raises(ValueError, match=message):
        calibrate(values.pop("mechanism"), **values)


# -- other questions about the same bound ----------------------------------------------------------

WHO = Participation(clients=20, rounds=12, max_participations=4)
RELEASES = {
    "gaussian": Release(Gaussian(8.0), 10, 1.0),
    "certificate": Release(StochasticRounding(clip=4 / 64, levels=2, margin=40.0), 4096, 1.0),
    "coordinate": Release(StochasticRounding(levels=2, margin=4.0), 1, 1.0),
    "trials": Release(PBM(theta=0.05, levels=4), 2, 1.4),
}
RUNS = {name: guarantee(release, WHO, SERVER, 1e-5) for name, release in RELEASES.items()}


def test_the_runs_have_unlike_bounds():
    assert {run.accountant for run in RUNS.values()} == {"gaussian", "pld"}
    assert len({type(run.bound.claim) for run in RUNS.values()}) == 2


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_epsilon_and_delta_are_inverse(run):
    assert run.epsilon_at(run.delta) == pytest.approx(run.epsilon, rel=1e-9)
    for delta in (1e-7, 1e-5, 1e-3):
        eps = run.epsilon_at(delta)
        assert run.delta_at(eps) == pytest.approx(delta, rel=2e-2)
        assert run.delta_at(eps) <= delta * (1 + 1e-6) or run.accountant == "pld"
    assert run.epsilon_at(1e-3) < run.epsilon_at(1e-5) < run.epsilon_at(1e-7)
    assert 1 >= run.delta_at(0.0) > run.delta_at(1.0) > run.bound.failure
    if run.bound.failure:
        assert run.epsilon_at(run.bound.failure) == inf


def test_delta_of_a_gaussian_is_dp_accountings():
    accountant = dp.pld.PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(dp.GaussianDpEvent(4.0), 4)  # a replaced vector moves a sum by two clips
    run = RUNS["gaussian"]
    for eps in (0.0, 0.5, 2.0, 4.0):
        assert run.delta_at(eps) == pytest.approx(accountant.get_delta(eps), rel=1e-3, abs=1e-12)
    for delta in (1e-8, 1e-5, 0.01):
        assert run.epsilon_at(delta) == pytest.approx(accountant.get_epsilon(delta), rel=1e-3)


@pytest.mark.parametrize("eps", [-0.1, inf, float("nan")])
def test_an_epsilon_that_is_none_is_refused(eps):
    with pytest.raises(ValueError, match="epsilon = "):
        RUNS["gaussian"].delta_at(eps)


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(ValueError, match="false_positive_rate = "):
        RUNS["gaussian"].advantage(rate)


def test_the_trade_off_of_a_gaussian_is_exact():
    rates, mu = np.array([0.0, 1e-6, 0.01, 0.3, 0.9, 1.0]), 2 / 8 * sqrt(4)
    assert RUNS["gaussian"].trade_off(rates) == pytest.approx(norm.cdf(norm.ppf(rates) + mu), abs=1e-12)
    assert RUNS["gaussian"].advantage(0.01) == pytest.approx(norm.cdf(norm.ppf(0.01) + mu))


def test_the_trade_off_of_one_bit_is_that_of_its_best_test():
    """One client and one bit: randomized response, whose trade-off function is two lines."""
    release = Release(StochasticRounding(levels=2, margin=1.0), 1, 1.0)
    single = guarantee(release, Participation(1), SERVER, 1e-5)
    rates = np.linspace(0, 1, 41)
    exact = np.minimum(3 * rates, 1 - (1 - rates) / 3)  # the pmf is 1/4, 3/4
    reached = single.trade_off(rates)
    assert (reached >= exact - 1e-9).all()
    assert reached == pytest.approx(exact, abs=0.02)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_the_trade_off_is_a_curve_above_every_epsilon(run):
    rates = np.linspace(0, 1, 201)
    reached = run.trade_off(rates)
    assert (reached >= rates).all()
    assert (reached <= 1).all()
    assert (np.diff(reached) >= -1e-12).all()
    for eps in (0.1, 0.5, 1.0):
        line = exp(eps) * rates + run.delta_at(eps)
        assert (reached <= line + 5e-3).all()
    assert run.advantage(0.25) == pytest.approx(float(run.trade_off(np.array([0.25]))[0]))
    if run.mu is not None:  # μ-GDP follows from the claim, so it never says more
        assert (reached <= norm.cdf(norm.ppf(rates) + run.mu) + run.bound.failure + 5e-3).all()


# -- dp_accounting ---------------------------------------------------------------------------------


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_the_event_costs_at_least_as_much(run):
    """By two of dp_accounting's accountants; for a Gaussian no more than their discretization."""
    event = run.to_dp_event()
    assert isinstance(event, dp.GaussianDpEvent)
    for accountant in (dp.pld.PLDAccountant(), dp.rdp.RdpAccountant()):
        accountant.compose(event)
        for delta in (1e-6, 1e-4):
            theirs = accountant.get_epsilon(delta)
            assert run.epsilon_at(delta + run.bound.failure) <= theirs * (1 + 1e-6) + 1e-9
            if run.accountant == "gaussian" and isinstance(accountant, dp.pld.PLDAccountant):
                assert theirs == pytest.approx(run.epsilon_at(delta + run.bound.failure), rel=1e-3)


def test_nothing_charged_is_no_event():
    idle = guarantee(RELEASES["gaussian"], WHO, SERVER, 1e-5, {})
    assert isinstance(idle.to_dp_event(), dp.NoOpDpEvent)
    assert (idle.epsilon, idle.participations, idle.charges) == (0.0, 0, 0)


def test_a_bound_without_mu_has_no_event():
    run = guarantee(Release(RQM(margin=1e-3, levels=4), 3000, 3000.0), WHO, SERVER, 1e-5)
    assert run.mu is None
    with pytest.raises(ValueError, match="comes without a μ of Gaussian DP"):
        run.to_dp_event()


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_a_privacy_loss_distribution_and_back(run):
    loss = run.to_pld()
    assert isinstance(loss, dp.pld.privacy_loss_distribution.PrivacyLossDistribution)
    converted = from_pld(loss).assuming(*run.bound.assumptions)
    for delta in (1e-6, 1e-5, 1e-3):
        stated = run.epsilon_at(delta + run.bound.failure)
        assert loss.get_epsilon_for_delta(delta) == pytest.approx(stated, rel=2e-3)
        assert epsilon(converted, delta) == pytest.approx(loss.get_epsilon_for_delta(delta), rel=1e-6)
        assert stated <= epsilon(converted, delta) * (1 + 1e-6)
    assert converted.assumptions == run.bound.assumptions


def test_bounds_of_dp_accounting_compose_with_ours():
    """A Laplace mechanism of theirs and a Gaussian of ours, as their own accountant has it."""
    theirs = from_pld(dp.pld.privacy_loss_distribution.from_laplace_mechanism(4.0))
    together = compose([(theirs, 3), (RUNS["gaussian"].bound, 1)])
    accountant = dp.pld.PLDAccountant()
    accountant.compose(dp.LaplaceDpEvent(4.0), 3)
    accountant.compose(dp.GaussianDpEvent(4.0), 4)
    for delta in (1e-7, 1e-5, 1e-3):
        assert epsilon(together, delta) == pytest.approx(accountant.get_epsilon(delta), rel=2e-3)
    assert together.assumptions == RUNS["gaussian"].bound.assumptions
    assert epsilon(theirs, 1e-5) == pytest.approx(0.25, rel=1e-3)
    assert epsilon(compose([(theirs, 3)]), 1e-5) > epsilon(theirs, 1e-5)


def test_both_directions_of_a_sampled_mechanism_are_kept():
    """Adding and removing a record differ: to take the worse of both before they are composed costs 4 %."""
    loss = dp.pld.privacy_loss_distribution.from_gaussian_mechanism(1.0, sampling_prob=0.1)
    bound = from_pld(loss)
    for delta in (1e-6, 1e-3):
        assert epsilon(bound, delta) == pytest.approx(loss.get_epsilon_for_delta(delta), rel=1e-6)
    accountant = dp.pld.PLDAccountant()
    accountant.compose(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.0)), 20)
    assert epsilon(compose([(bound, 20)]), 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=5e-3)
    parameters = dp.pld.common.DifferentialPrivacyParameters(1, 1e-4)
    infinite = dp.pld.privacy_loss_distribution.from_privacy_parameters(parameters)
    assert epsilon(from_pld(infinite), 1e-5) == inf
    assert epsilon(from_pld(infinite), 1e-3) <= 1 + 1e-4
    twice = infinite.self_compose(2).get_epsilon_for_delta(1e-3)
    assert twice <= epsilon(compose([(from_pld(infinite), 2)]), 1e-3) <= 1.01 * twice
    with pytest.raises(TypeError, match="loss"):
        from_pld(1.0)


# -- several runs ----------------------------------------------------------------------------------


def test_runs_of_gaussians_compose_as_dp_accountings():
    weaker = guarantee(Release(Gaussian(3.0), 10, 1.0), Participation(clients=5), SERVER, 1e-6)
    together = compose_guarantees([RUNS["gaussian"], weaker])
    accountant = dp.pld.PLDAccountant()
    accountant.compose(dp.GaussianDpEvent(4.0), 4)
    accountant.compose(dp.GaussianDpEvent(1.5))
    assert together.delta == 1e-5
    assert together.epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)
    assert (together.participations, together.charges, together.accountant) == (5, 13, "gaussian")
    assert {run.delta for run in together.runs} == {1e-5, 1e-6}
    assert compose_guarantees([RUNS["gaussian"], weaker], 1e-6).epsilon > together.epsilon


def test_unlike_runs_compose_to_less_than_their_sum():
    runs = list(RUNS.values())
    together = compose_guarantees(runs)
    assert together.accountant == "pld"
    assert max(run.epsilon for run in runs) < together.epsilon < sum(run.epsilon_at(1e-5 / 4) for run in runs)
    assert together.bound.failure == pytest.approx(sum(run.bound.failure for run in runs))
    by_mu = gaussian_epsilon(sqrt(sum(run.mu**2 for run in runs)), 1e-5 - together.bound.failure)
    assert together.epsilon <= by_mu * (1 + 1e-3)
    accountant = dp.pld.PLDAccountant()
    for run in runs:
        accountant.compose(run.to_dp_event())
    assert together.epsilon <= accountant.get_epsilon(1e-5 - together.bound.failure) * (1 + 1e-3)


def test_renyi_curves_compose_with_other_claims():
    by_renyi = guarantee(Release(RQM(margin=0.3, levels=4), 3, 1.7), Participation(clients=2), SERVER, 1e-5)
    together = compose_guarantees([by_renyi, RUNS["gaussian"]])
    assert max(by_renyi.epsilon, RUNS["gaussian"].epsilon) < together.epsilon
    assert together.epsilon <= by_renyi.epsilon_at(5e-6) + RUNS["gaussian"].epsilon_at(5e-6)


def test_runs_join_their_assumptions():
    spaced = guarantee(RELEASES["gaussian"], replace(WHO, min_separation=3, sampling="fixed-order"), SERVER, 1e-5)
    fewer = guarantee(RELEASES["certificate"], WHO, ThreatModel(honest_clients=15), 1e-5)
    together = compose_guarantees([spaced, fewer])
    assert {MinSeparation(3), MaxParticipations(4, 12), HonestClients(15, 20)} <= set(together.assumptions)
    for assumption in together.assumptions:
        assert assumption.text("user") in str(together)
        assert assumption.text("user") in together.sentence


def test_runs_of_different_kinds_are_refused():
    zeroed = guarantee(RELEASES["gaussian"], WHO, ThreatModel(neighboring="zero-out"), 1e-5)
    with pytest.raises(ValueError, match="one unit, neighboring relation and adversary"):
        compose_guarantees([RUNS["gaussian"], zeroed])
    with pytest.raises(ValueError, match="at least one"):
        compose_guarantees([])


def test_against_an_outsider_the_sampling_is_an_assumption_of_the_run():
    participation = Participation(clients=20, rounds=12, population=1000, sampling="uniform")
    run = guarantee(RELEASES["gaussian"], participation, ThreatModel("outsider"), 1e-5)
    assert UniformSampling(20, 1000) in run.assumptions
    assert run.delta_at(run.epsilon) <= 1e-5 * 1.01
    assert float(gaussian_deltas(2 / 8 * sqrt(12), np.array([run.epsilon]))[0]) > 1e-5  # without sampling
