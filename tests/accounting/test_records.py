"""ε of a record against enumerations: sums of few silos, samples of records, and rounds."""

from itertools import product
from math import exp, inf, sqrt

import numpy as np
import pytest

from rqm import PBM, Gaussian, Participation, StochasticRounding, ThreatModel
from rqm import private_record_mean as record_mean
from rqm.accounting.accountant import account
from rqm.accounting.record_release import RecordRelease
from rqm.accounting.release import Release
from rqm.bounds import gaussian_deltas, gaussian_epsilon
from rqm.core.from_dict import mean_from_dict
from rqm.mechanisms.additive import Binomial, DiscreteGaussian, Skellam

FAILURE = 1e-7
EPSILONS = np.linspace(0, 6, 61)
NEIGHBORING = ("add-or-remove-one", "replace-one")
SAMPLED = ThreatModel(neighboring="add-or-remove-one", unit="record")


def coordinate_pmf(mech, inputs):
    """The pmf of one coordinate of the sum of silos that hold these inputs, as it is revealed."""
    pmf = np.ones(1)
    for x in inputs:
        pmf = np.convolve(pmf, np.array(mech.sampled_pmf(x), dtype=float))
    if not mech.is_modular:
        return pmf
    folded = np.zeros(mech.levels)
    np.add.at(folded, np.arange(len(pmf)) % mech.levels, pmf)
    return folded


def release_pmf(mech, vectors):
    """The pmf of the whole release: coordinates are independent given what the silos hold."""
    pmf = np.ones(1)
    for inputs in np.transpose(vectors):
        pmf = np.multiply.outer(pmf, coordinate_pmf(mech, inputs)).ravel()
    return pmf


def deltas(p, q, epsilons=EPSILONS):
    """δ of two pmfs in both directions: the best test at each ε."""
    return np.array([max(np.maximum(a - exp(e) * b, 0).sum() for a, b in ((p, q), (q, p))) for e in epsilons])


def excess(exact_deltas, mu):
    """How far an exact δ is above what a μ implies; at most zero where the μ is true."""
    return float((exact_deltas - gaussian_deltas(mu, EPSILONS) - FAILURE).max())


def record_epsilon(multiplier, rate, rounds, delta, charges=None):
    """ε of a record against a trusted server's Gaussian."""
    release = RecordRelease(Gaussian(multiplier), 1, 1.0, record_clip=1.0, sampling_rate=rate)
    return account(release, Participation(1, rounds), SAMPLED, delta, charges).epsilon


MECHANISMS = [
    DiscreteGaussian(scale=1.0, steps=5, bits=6),
    Skellam(scale=1.2, steps=3, bits=5),
    Binomial(scale=1.0, steps=7, bits=6),
    StochasticRounding(levels=2, margin=1.0),
    StochasticRounding(levels=2, margin=4.0),
    PBM(theta=0.2, levels=4),
]


@pytest.mark.parametrize("mech", MECHANISMS, ids=repr)
def test_no_inputs_of_few_silos_reveal_more_of_a_record_than_is_certified(mech):
    rng = np.random.default_rng(5)
    for silos, dim, neighboring in product((1, 2, 3), (1, 2), NEIGHBORING):
        clip = float(rng.uniform(0.1, 1.0))
        release = RecordRelease(mech, dim, 4.0, record_clip=clip)
        mu = release.mu(neighboring, silos, FAILURE)
        assert mu < inf
        for _ in range(6):
            others = rng.choice([-1.0, 1.0, 0.3], size=(silos - 1, dim))
            move = rng.normal(size=dim) if rng.random() < 0.5 else np.eye(dim)[0]
            move *= release.sensitivity(neighboring) / np.linalg.norm(move)
            start = rng.choice([-1.0, 1.0, rng.uniform(-1, 1)], size=dim)
            pair = [np.clip(x, -1, 1) for x in (start, start - np.sign(start) * abs(move))]  # clipped by coordinate
            assert excess(deltas(*(release_pmf(mech, [x, *others]) for x in pair)), mu) <= 1e-12


def attained(silos, neighboring, mech, clip):
    """μ, and δ of two vectors of one coordinate that are as far apart as a record can move one."""
    release = RecordRelease(mech, 1, 1.0, record_clip=clip)
    start = -0.6
    pair = (start, start + release.sensitivity(neighboring))
    return release.mu(neighboring, silos, FAILURE), deltas(
        *(release_pmf(mech, np.array([[x], *[[0.2]] * (silos - 1)])) for x in pair)
    )


@pytest.mark.parametrize("silos", [1, 2, 4])
@pytest.mark.parametrize("neighboring", NEIGHBORING)
def test_the_certificate_is_attained_so_that_one_two_percent_smaller_is_noticed(silos, neighboring):
    mech = DiscreteGaussian(scale=1.0, steps=15, bits=9)  # a record moves it by three steps, or by six
    mu, exact = attained(silos, neighboring, mech, 0.4)
    assert excess(exact, mu) <= 1e-12
    assert excess(exact, 0.98 * mu) > 1e-4
    assert excess(exact, mu / 2) > 1e-2  # a replaced record moves a sum twice as far


def test_colluding_silos_add_no_noise():
    mech = DiscreteGaussian(scale=1.0, steps=15, bits=9)
    mu, exact = attained(2, "add-or-remove-one", mech, 0.4)
    alone, four = (
        RecordRelease(mech, 1, 1.0, record_clip=0.4).mu("add-or-remove-one", honest, FAILURE) for honest in (1, 4)
    )
    assert alone > mu > four
    assert excess(exact, four) > 1e-2


def sampled_pair(mech, clip, rate, silos):
    """A silo's release with and without one record, beside another of its records; both in Poisson samples."""

    def mixture(records):
        total = 0.0
        for drawn in product((0, 1), repeat=len(records)):
            weight = np.prod([rate if is_drawn else 1 - rate for is_drawn in drawn])
            own = float(np.clip(np.dot(drawn, records) if records else 0.0, -1, 1))
            total = total + weight * release_pmf(mech, np.array([[own], *[[0.0]] * (silos - 1)]))
        return total

    return mixture([clip, -clip / 2]), mixture([-clip / 2])


def exact_epsilon(p, q, rounds, delta):
    """The smallest ε of so many rounds, by enumeration of all their outcomes."""
    single = p, q
    for _ in range(rounds - 1):
        p, q = (np.multiply.outer(pmf, last).ravel() for pmf, last in zip((p, q), single, strict=True))
    low, high = 0.0, 50.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if deltas(p, q, [middle])[0] > delta else (low, middle)
    return high


@pytest.mark.parametrize(("rate", "rounds"), [(0.3, 1), (0.3, 2), (0.05, 2), (1.0, 2)])
def test_sampled_records_reveal_no_more_than_is_stated(rate, rounds):
    mech, delta, clip = DiscreteGaussian(scale=1.0, steps=15, bits=7), 1e-3, 0.4
    release, who = RecordRelease(mech, 1, 1.0, record_clip=clip, sampling_rate=rate), Participation(2, rounds)
    stated = account(release, who, SAMPLED, delta).epsilon
    exact = exact_epsilon(*sampled_pair(mech, clip, rate, 2), rounds, delta)
    assert exact <= stated <= 1.1 * exact + 0.02
    mu = release.mu("add-or-remove-one", 2, FAILURE)
    assert record_epsilon(2 / mu, rate, rounds, delta) < exact  # a factor two that is forgotten
    assert rate == 1 or record_epsilon(1 / mu, rate / 2, rounds, delta) < exact


def test_a_repeated_round_is_charged_for_the_same_sample_and_for_another():
    mech, delta, clip, rate = DiscreteGaussian(scale=1.0, steps=15, bits=7), 1e-3, 0.4, 0.3
    release = RecordRelease(mech, 1, 1.0, record_clip=clip, sampling_rate=rate)
    stated = account(release, Participation(2), SAMPLED, delta, {0: 2}).epsilon
    plain = [release_pmf(mech, np.array([[own], [0.0]])) for own in (clip, 0.0)]
    twice = [np.multiply.outer(pmf, pmf).ravel() for pmf in plain]
    same = exact_epsilon(rate * twice[0] + (1 - rate) * twice[1], twice[1], 1, delta)
    fresh = exact_epsilon(rate * plain[0] + (1 - rate) * plain[1], plain[1], 2, delta)
    assert max(same, fresh) <= stated


def test_sampling_is_accounted_for_as_by_the_published_accountant():
    import dp_accounting as dp

    accountant = dp.pld.PLDAccountant()
    accountant.compose(dp.PoissonSampledDpEvent(0.02, dp.GaussianDpEvent(1.1)), 300)
    assert record_epsilon(1.1, 0.02, 300, 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)
    charges = {index: 1 + (index > 3) for index in range(7)}
    assert record_epsilon(1 / 0.7, None, 7, 1e-5, charges) == pytest.approx(gaussian_epsilon(0.7 * sqrt(10), 1e-5))
    assert record_epsilon(1e-9, 0.1, 1, 1e-5) > 1e6
    assert record_epsilon(1.0, 0.1, 2, 1e-14) == inf


@pytest.mark.parametrize(
    ("multiplier", "rate", "rounds", "delta"), [(2.0, 0.01, 10**5, 1e-6), (20.0, 1e-3, 10**6, 1e-8)]
)
def test_long_runs_of_sampled_records_are_finite(multiplier, rate, rounds, delta):
    """δ of one of many rounds is far below what floats near 1 can tell apart; in the limit a run is a Gaussian."""
    limit = gaussian_epsilon(rate * sqrt(rounds * (exp(multiplier**-2) - 1)), delta)
    assert 0.98 * limit <= record_epsilon(multiplier, rate, rounds, delta) <= 1.05 * limit


SILOS = {"clients": 4, "delta": 1e-6, "dim": 100, "l2_clip": 32.0, "record_clip": 1.0}


@pytest.mark.parametrize("neighboring", NEIGHBORING)
def test_a_private_mean_of_silos_is_about_as_noisy_as_a_trusted_server(neighboring):
    mean = record_mean(epsilon=3, neighboring=neighboring, rounds=2, **SILOS)
    stated = mean.guarantee()
    assert 2.9 < stated.epsilon <= 3
    assert (stated.threat_model.unit, stated.threat_model.neighboring) == ("record", neighboring)
    assert stated.release.record_clip == 1.0
    assert 1 <= stated.noise_std_over_gaussian < 1.03
    assert stated.bits_under_secagg <= 16
    values = {"mechanism": mean.mechanism, "neighboring": neighboring, "rounds": 2}
    alone = record_mean(**values, honest_clients=1, **SILOS).guarantee()
    assert alone.epsilon > 1.5 * stated.epsilon
    assert "the record's own silo is honest" in alone.sentence
    assert mean_from_dict(mean.to_dict()) == mean


def test_a_fixed_order_counts_the_rounds_that_a_record_is_in():
    mech = record_mean(epsilon=3, rounds=1, **SILOS).mechanism
    epochs = record_mean(mechanism=mech, rounds=30, min_separation=10, **SILOS).guarantee()
    thrice = record_mean(mechanism=mech, rounds=3, **SILOS).guarantee()
    assert epochs.participations == 3
    assert epochs.epsilon == pytest.approx(thrice.epsilon, rel=1e-9)


@pytest.mark.slow
def test_secret_sampling_saves_much_of_the_noise():
    sampled = record_mean(epsilon=3, rounds=100, sampling_rate=0.01, **SILOS).guarantee()
    always = record_mean(epsilon=3, rounds=100, **SILOS).guarantee()
    assert sampled.accountant == "pld"
    assert 5 * sampled.noise_multiplier < always.noise_multiplier
    assert "(Poisson sampling), and only its silo knows the sample" in sampled.sentence


def test_levels_outside_the_clip_have_a_bound_for_records():
    mechanism = StochasticRounding(levels=2, margin=50.0, clip=8.0)
    mean = record_mean(mechanism=mechanism, neighboring="replace-one", **SILOS)
    assert mean.guarantee().epsilon < 20


@pytest.mark.parametrize(
    ("release", "threat_model", "message"),
    [
        (Release(Gaussian(1.0), 1, 1.0), {"unit": "record"}, "unit = 'record': must be 'user' for a Release"),
        (RecordRelease(Gaussian(1.0), 1, 1.0, record_clip=1.0), {}, "unit = 'user': must be 'record' for a RecordRel"),
        (
            RecordRelease(Gaussian(1.0), 1, 1.0, record_clip=1.0, sampling_rate=0.1),
            {"unit": "record"},
            "sampling_rate = 0.1: must be above 0",
        ),
    ],
)
def test_the_accountant_refuses_it_by_itself(release, threat_model, message):
    with pytest.raises(ValueError, match=message):
        account(release, Participation(2), ThreatModel(**threat_model), 1e-6)
