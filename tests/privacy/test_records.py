"""A record's ε against everything enumerated: the laws of sums of few silos, samples of records, and rounds."""

from itertools import product
from math import exp, inf, log, sqrt

import numpy as np
import pytest

from rqm import PBM, PrivateMean, Rounding
from rqm.mechanisms.additive import Binomial, DiscreteGaussian, Skellam
from rqm.privacy.accountant import spent
from rqm.privacy.event import Event
from rqm.privacy.gaussian import gaussian_deltas, gaussian_epsilon
from rqm.privacy.records import record_epsilon
from rqm.privacy.setting import Setting

LOST = 1e-7
EPSILONS = np.linspace(0, 6, 61)


def coordinate(mech, inputs):
    """The law of one coordinate of the sum of silos that hold these inputs, as it is revealed."""
    law = np.ones(1)
    for x in inputs:
        law = np.convolve(law, np.array(mech.sampled_pmf(x), dtype=float))
    if not mech.modular:
        return law
    folded = np.zeros(mech.levels)
    np.add.at(folded, np.arange(len(law)) % mech.levels, law)
    return folded


def release(mech, vectors):
    """The law of the whole release: coordinates are independent given what the silos hold."""
    law = np.ones(1)
    for inputs in np.transpose(vectors):
        law = np.multiply.outer(law, coordinate(mech, inputs)).ravel()
    return law


def deltas(p, q, epsilons=EPSILONS):
    """δ of telling two laws apart, both ways: the best test at each ε."""
    return np.array([max(np.maximum(a - exp(e) * b, 0).sum() for a, b in ((p, q), (q, p))) for e in epsilons])


def excess(found, mu):
    """How far an exact δ is above what a μ says; at most nothing where the μ is true."""
    return float((found - gaussian_deltas(mu, EPSILONS) - LOST).max())


MECHANISMS = [
    DiscreteGaussian(scale=1.0, steps=5, bits=6),
    Skellam(scale=1.2, steps=3, bits=5),
    Binomial(scale=1.0, steps=7, bits=6),
    Rounding(levels=2, margin=1.0),
    Rounding(levels=2, margin=4.0),
    PBM(theta=0.2, levels=4),
]


@pytest.mark.parametrize("mech", MECHANISMS, ids=repr)
def test_no_inputs_of_few_silos_tell_more_of_a_record_than_is_certified(mech):
    rng = np.random.default_rng(5)
    for silos, dim, relation in product((1, 2, 3), (1, 2), ("add-remove", "replace")):
        clip = float(rng.uniform(0.1, 1.0))
        event = Event(mech, dim, 4.0, record_clip=clip)
        mu = event.mu(relation, silos, LOST)
        assert mu < inf
        for _ in range(6):
            others = rng.choice([-1.0, 1.0, 0.3], size=(silos - 1, dim))
            way = rng.normal(size=dim) if rng.random() < 0.5 else np.eye(dim)[0]
            way *= event.moved(relation) / np.linalg.norm(way)
            start = rng.choice([-1.0, 1.0, rng.uniform(-1, 1)], size=dim)
            both = [np.clip(x, -1, 1) for x in (start, start - np.sign(start) * abs(way))]  # the cube's clip is theirs
            found = deltas(*(release(mech, [x, *others]) for x in both))
            assert excess(found, mu) <= 1e-12


def attained(silos, relation, mech, clip):
    """Two vectors of one coordinate that are as far apart as a record can move one, and what they tell."""
    event = Event(mech, 1, 1.0, record_clip=clip)
    start = -0.6
    both = (start, start + event.moved(relation))
    return event.mu(relation, silos, LOST), deltas(
        *(release(mech, np.array([[x], *[[0.2]] * (silos - 1)])) for x in both)
    )


@pytest.mark.parametrize("silos", [1, 2, 4])
@pytest.mark.parametrize("relation", ["add-remove", "replace"])
def test_the_certificate_is_attained_so_that_one_two_per_cent_smaller_is_caught(silos, relation):
    mech = DiscreteGaussian(scale=1.0, steps=15, bits=9)  # a record moves it by three steps, or by six
    mu, found = attained(silos, relation, mech, 0.4)
    assert excess(found, mu) <= 1e-12
    assert excess(found, 0.98 * mu) > 1e-4
    assert excess(found, mu / 2) > 1e-2  # who forgets that a replaced record moves a sum twice as far


def test_colluding_silos_add_no_noise():
    mech = DiscreteGaussian(scale=1.0, steps=15, bits=9)
    mu, found = attained(2, "add-remove", mech, 0.4)
    alone, four = (Event(mech, 1, 1.0, record_clip=0.4).mu("add-remove", honest, LOST) for honest in (1, 4))
    assert alone > mu > four
    assert excess(found, four) > 1e-2


def sampled_pair(mech, clip, rate, silos):
    """A silo's release with and without one record, beside another of its records; both drawn by coins."""

    def law(records):
        total = 0.0
        for drawn in product((0, 1), repeat=len(records)):
            chance = np.prod([rate if one else 1 - rate for one in drawn])
            own = float(np.clip(np.dot(drawn, records) if records else 0.0, -1, 1))
            total = total + chance * release(mech, np.array([[own], *[[0.0]] * (silos - 1)]))
        return total

    return law([clip, -clip / 2]), law([-clip / 2])


def exact_epsilon(p, q, rounds, delta):
    """The least ε of so many rounds, by enumeration of all their outcomes."""
    for _ in range(rounds - 1):
        p, q = (np.multiply.outer(one, single).ravel() for one, single in ((p, p), (q, q)))
    low, high = 0.0, 50.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if deltas(p, q, [middle])[0] > delta else (low, middle)
    return high


@pytest.mark.parametrize(("rate", "rounds"), [(0.3, 1), (0.3, 2), (0.05, 2), (1.0, 2)])
def test_sampled_records_are_never_told_better_than_is_stated(rate, rounds):
    mech, delta, clip = DiscreteGaussian(scale=1.0, steps=15, bits=7), 1e-3, 0.4
    setting = Setting(2, rounds, delta, unit="record", neighbours="add-remove", record_rate=rate)
    stated = spent(Event(mech, 1, 1.0, record_clip=clip), setting).epsilon
    exact = exact_epsilon(*sampled_pair(mech, clip, rate, 2), rounds, delta)
    assert exact <= stated <= 1.1 * exact + 0.02
    mu = Event(mech, 1, 1.0, record_clip=clip).mu("add-remove", 2, LOST)
    assert record_epsilon(mu / 2, rate, {1: rounds}, delta) < exact  # a factor two that is forgotten
    assert rate == 1 or record_epsilon(mu, rate / 2, {1: rounds}, delta) < exact


def test_a_round_that_is_released_again_pays_for_the_same_sample_and_for_another():
    mech, delta, clip, rate = DiscreteGaussian(scale=1.0, steps=15, bits=7), 1e-3, 0.4, 0.3
    setting = Setting(2, 1, delta, unit="record", neighbours="add-remove", record_rate=rate)
    stated = spent(Event(mech, 1, 1.0, record_clip=clip), setting, {0: 2}).epsilon
    plain = [release(mech, np.array([[own], [0.0]])) for own in (clip, 0.0)]
    twice = [np.multiply.outer(one, one).ravel() for one in plain]
    same = exact_epsilon(rate * twice[0] + (1 - rate) * twice[1], twice[1], 1, delta)
    fresh = exact_epsilon(rate * plain[0] + (1 - rate) * plain[1], plain[1], 2, delta)
    assert max(same, fresh) <= stated


def test_sampling_is_accounted_for_as_the_published_accountant_does():
    import dp_accounting as dp

    accountant = dp.pld.PLDAccountant()
    accountant.compose(dp.PoissonSampledDpEvent(0.02, dp.GaussianDpEvent(1.1)), 300)
    assert record_epsilon(1 / 1.1, 0.02, {1: 300}, 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)
    assert record_epsilon(0.7, None, {1: 4, 2: 3}, 1e-5) == gaussian_epsilon(0.7 * sqrt(10), 1e-5)
    assert record_epsilon(inf, 0.1, {1: 1}, 1e-5) == inf
    assert record_epsilon(1.0, 0.1, {1: 1}, 1e-14) == inf


SILOS = {"unit": "record", "clients": 4, "delta": 1e-6, "dim": 100, "l2_clip": 32.0, "record_clip": 1.0}


@pytest.mark.parametrize("relation", ["add-remove", "replace"])
def test_a_private_mean_of_silos_is_about_as_noisy_as_a_trusted_server(relation):
    mean = PrivateMean(epsilon=3, neighbours=relation, rounds=2, **SILOS)
    promised = mean.guarantee
    assert 2.9 < promised.epsilon <= 3
    assert (promised.unit, promised.neighbours, promised.record_clip) == ("record", relation, 1.0)
    assert 1 <= promised.noise_std_over_gaussian < 1.03
    assert promised.bits_under_secagg <= 16
    alone = PrivateMean(mechanism=mean.mechanism, neighbours=relation, rounds=2, honest=1, **SILOS).guarantee
    assert alone.epsilon > 1.5 * promised.epsilon
    assert "its own silo is honest" in alone.sentence
    assert PrivateMean.from_dict(mean.to_dict()) == mean


def test_a_fixed_order_counts_the_rounds_that_a_record_is_in():
    mech = PrivateMean(epsilon=3, rounds=1, **SILOS).mechanism
    epochs = PrivateMean(mechanism=mech, rounds=30, separation=10, **SILOS).guarantee
    thrice = PrivateMean(mechanism=mech, rounds=3, **SILOS).guarantee
    assert epochs.participations == 3
    assert epochs.epsilon == pytest.approx(thrice.epsilon, rel=1e-9)


@pytest.mark.slow
def test_sampling_in_secret_buys_much_of_the_noise():
    sampled = PrivateMean(epsilon=3, rounds=100, neighbours="add-remove", record_rate=0.01, **SILOS).guarantee
    always = PrivateMean(epsilon=3, rounds=100, neighbours="add-remove", **SILOS).guarantee
    assert sampled.accountant == "pld"
    assert 5 * sampled.noise_multiplier < always.noise_multiplier
    assert "which only its silo sees" in sampled.sentence


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"record_clip": None}, "record_clip = None: must be given for records"),
        ({"l2_clip": None}, "l2_clip = None: must be given for records"),
        ({"l2_clip": 0.5}, "l2_clip = 0.5: must be from 1 to 16384 times a record's clip"),
        ({"l2_clip": 1e6}, "l2_clip = 1e\\+06: must be from 1 to 16384"),
        ({"delta": None}, "delta = None: must be given for records"),
        ({"neighbours": "zero-out"}, "neighbours = 'zero-out': must be add-remove or replace"),
        ({"observer": "outsider", "population": 10}, "observer = outsider: must be the server"),
        ({"honest": 0.5, "population": 10}, "honest = 0.5: must be the server, and a number"),
        ({"record_rate": 0.1}, "neighbours = 'replace': must be add-remove with a record_rate"),
        ({"record_rate": 0.1, "neighbours": "add-remove", "participations": 1}, "record_rate: must come without"),
        ({"record_rate": 1.5, "neighbours": "add-remove"}, "record_rate = 1.5"),
        (
            {"cancel": True, "record_rate": 0.5, "rounds": 5, "neighbours": "add-remove"},
            "record_rate: must not be given where noise cancels",
        ),
        ({"cancel": True, "rounds": 5}, "separation = None: must be given where noise cancels"),
        ({"coordinates": 64}, "coordinates = 64: no bound is known for records"),
        ({"unit": "user"}, "record_clip = 1.0: must come with unit = 'record'"),
        ({"unit": "user", "neighbours": "add-remove"}, "neighbours = 'add-remove': must come with unit = 'record'"),
        ({"unit": "user", "record_rate": 0.1}, "record_rate = 0.1: must come with unit = 'record'"),
        ({"unit": "patient"}, "unit = 'patient': must be one of user, record"),
    ],
)
def test_what_no_bound_is_known_for_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        PrivateMean(epsilon=3, **SILOS | changes)


def test_a_mechanism_whose_levels_lie_inside_the_clip_is_refused():
    from rqm import RQM

    with pytest.raises(ValueError, match="mechanism = 'rqm': no bound is known for records"):
        PrivateMean(mechanism=RQM(margin=1.0), **SILOS)
    assert log(PrivateMean(mechanism=Rounding(levels=2, margin=50.0, clip=8.0), **SILOS).guarantee.epsilon) < 3
