"""What a private mean guarantees: ε of what is really sent, refusals, and the same after a round trip."""

import json
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rqm
from rqm import (
    PBM,
    RQM,
    Noiseless,
    Participation,
    PrivateMean,
    SecureRandom,
    SeededRandom,
    StochasticRounding,
    ThreatModel,
    private_mean,
)
from rqm.core.from_dict import mean_from_dict
from rqm.core.transform import budget
from rqm.mechanisms.gaussian import Gaussian
from tests.encoding.test_private_mean import mean_of, mechanisms, sent_rows, squares


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dim": 0}, "dim = 0"),
        ({"clients": 0}, "clients = 0"),
        ({"l2_clip": 0.0}, "l2_clip = 0.0"),
        ({"l2_clip": float("nan")}, "l2_clip = nan"),
        ({"delta": 1.0}, "delta = 1.0"),
        ({"rounds": 0}, "rounds = 0"),
        ({"adversary": "nobody"}, "adversary = 'nobody'"),
        ({"noise": "patient"}, "noise = 'patient': must be 'independent', 'correlated'"),
        ({"noise": "correlated"}, "noise = 'correlated': must be rqm.CorrelatedNoise"),
        ({"population": 2}, "population = 2: must be at least 3"),
        ({"min_survivors": 4}, "min_survivors = 4"),
        ({"honest_clients": 4}, "honest_clients = 4"),
        ({"honest_fraction": 0.5}, "give these, or honest_clients as a number"),
        ({"adversary": "outsider"}, "population = None"),
        ({"max_participations": 0}, "max_participations = 0"),
        ({"mechanism": None}, "epsilon = None: must be given, or else a mechanism"),
        ({"mechanism": Gaussian(), "l2_clip": None}, "l2_clip = None"),
        ({"epsilon": 1e-3}, "the mechanism gives"),
        ({"mechanism": None, "epsilon": 1.0, "rotate": False}, "mechanism = None: must be given"),
    ],
)
def test_values_without_a_guarantee_are_refused(change, words):
    values = {"mechanism": StochasticRounding(levels=2, margin=3.0), "dim": 3, "clients": 3, **change}
    with pytest.raises(ValueError, match=words):
        private_mean(**values)


def test_the_object_itself_searches_for_nothing():
    with pytest.raises(TypeError, match="epsilon"):
        PrivateMean(dim=3, epsilon=1.0, participation=Participation(3))
    with pytest.raises(TypeError, match="mechanism = None: must be a mechanism"):
        PrivateMean(dim=3, mechanism=None, participation=Participation(3))
    with pytest.raises(TypeError, match=r"participation = 3: must be a rqm.Participation"):
        PrivateMean(dim=3, mechanism=StochasticRounding(levels=2), participation=3)
    with pytest.raises(ValueError, match="unit = 'patient'"):
        ThreatModel(unit="patient")


def test_rounds_and_clients_that_are_not_accounted_for_are_refused():
    mean = mean_of(StochasticRounding(levels=2, margin=3.0), 3, clients=5, min_survivors=4, rounds=2)
    total = sum(mean.encode(np.zeros(3), SecureRandom(), round_index=1) for _ in range(4))
    assert mean.decode(total, survivors=4, round_index=1).shape == (3,)
    with pytest.raises(ValueError, match="round_index = 2: must be a whole number from 0 to 1"):
        mean.encode(np.zeros(3), SecureRandom(), round_index=2)
    with pytest.raises(ValueError, match="round_index = 2"):
        mean.decode(total, survivors=4, round_index=2)
    for survivors in (3, 6):
        with pytest.raises(ValueError, match=f"survivors = {survivors}: must be a whole number from 4 to 5"):
            mean.decode(total, survivors=survivors, round_index=1)
    with pytest.raises(ValueError, match=r"total has shape \(3,\): must be \(4,\)"):
        mean.decode(total[:3], survivors=4, round_index=1)
    with pytest.raises(ValueError, match=r"a sum over 4 clients lies in 0\.\.4"):
        mean.decode(total + 5, survivors=4, round_index=1)
    for kind in (Noiseless(), Gaussian()):
        with pytest.raises(TypeError, match="sends floats"):
            private_mean(mechanism=kind, dim=3, clients=3).encode(np.zeros(3), SecureRandom())
    with pytest.raises(TypeError, match="adds no noise"):
        _ = private_mean(mechanism=Noiseless(), dim=3, clients=3).guarantee()


# -- the guarantee is that of what is sent --------------------------------------------------------


def hockey_stick(p, q, epsilon):
    return np.maximum(p - np.exp(epsilon) * q, 0).sum()


def release(mean, rows, others):
    """The exact pmf of the revealed sum, over all coordinates, of one client at these positions and others at ±clip."""
    joint = np.ones(1)
    for coordinate in range(mean.coordinates):
        pmf = mean.mechanism.sampled_pmf(rows[coordinate]).astype(float)
        for other in others:
            pmf = np.convolve(pmf, mean.mechanism.sampled_pmf(other[coordinate]).astype(float))
        joint = np.multiply.outer(joint, pmf).ravel()
    return joint


@pytest.mark.parametrize(
    ("mech", "dim", "clients"),
    [
        (StochasticRounding(levels=2, margin=2.0), 1, 1),
        (StochasticRounding(levels=2, margin=2.0), 2, 2),
        (PBM(levels=4, theta=0.2), 2, 2),
        (RQM(levels=4, margin=5.0), 2, 2),
        (StochasticRounding(levels=2, margin=1.0), 4, 2),
        (RQM(levels=8, margin=1.0), 1, 2),
    ],
    ids=repr,
)
def test_epsilon_covers_what_is_really_sent(mech, dim, clients):
    """Extreme vectors through the very encoder, the other clients anywhere: the exact δ at the stated ε is below δ."""
    mean = private_mean(mechanism=mech, dim=dim, clients=clients, l2_clip=1.0, delta=1e-3)
    epsilon, rng = mean.guarantee().epsilon, np.random.default_rng(5)
    vectors = [np.array(signs) * 1e6 for signs in product([-1.0, 1.0], repeat=dim)]
    vectors += [sign * 1e6 * np.eye(dim)[k] for k in range(dim) for sign in (-1, 1)]
    rows = [sent_rows(mean, v, 0)[0] for v in vectors]
    ends = np.array(list(product([-1.0, 1.0], repeat=mean.coordinates)))
    worst = 0.0
    for _ in range(60):
        inputs = (rows[k] for k in rng.integers(len(rows), size=2))
        others = [mech.clip * ends[rng.integers(len(ends))] for _ in range(clients - 1)]
        p, q = (release(mean, row, others) for row in inputs)
        assert hockey_stick(p, q, epsilon) <= 1e-3
        worst = max(worst, hockey_stick(p, q, 0.3 * epsilon))
    assert worst > 1e-3  # a third of the stated ε would be too little


def test_a_mechanism_is_found_for_an_epsilon():
    mean = private_mean(epsilon=2, delta=1e-5, clients=50, dim=20, l2_clip=3.0)
    assert 1 < mean.guarantee().epsilon <= 2
    assert mean.mechanism.clip == pytest.approx(4 * 3.0 / 32**0.5)
    assert mean.guarantee().dim == mean.coordinates == 32
    assert "user-level (replace-one), against the server" in str(mean.guarantee())
    same = private_mean(mechanism=mean.mechanism, epsilon=2, delta=1e-5, clients=50, dim=20, l2_clip=3.0)
    assert same == mean
    assert hash(same) == hash(mean)
    assert not hasattr(mean, "epsilon")  # it has a δ and an accountant: see `guarantee`


def test_calibrations_obvious_use_has_its_clip():
    """The mechanism alone clips no vector: sent through it, a long vector has several times the stated ε."""
    calibration = rqm.calibrate(
        "rounding", levels=2, epsilon=1, delta=1e-6, clients=1000, population=10**6, rounds=1, dim=2**10
    )
    mean = calibration.private_mean()
    assert mean.guarantee().to_dict() == calibration.guarantee.to_dict()
    assert mean.mechanism == calibration.mechanism
    long = np.full(2**10, 100.0)
    row = sent_rows(mean, long, 0)[0]
    assert squares(mean.mechanism, row) <= 4 * budget(mean.mechanism, 1.0)
    assert squares(mean.mechanism, long) > 10 * 4 * budget(mean.mechanism, 1.0)
    poisson = rqm.calibrate(
        "gaussian",
        epsilon=3,
        clients=10,
        population=100,
        rounds=5,
        dim=4,
        neighboring="add-or-remove-one",
        adversary="outsider",
    )
    with pytest.raises(TypeError, match="trusted server"):
        poisson.private_mean()


# -- to the other side ----------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    mechanisms,
    st.integers(1, 10**7),
    st.integers(1, 1000),
    st.one_of(st.none(), st.floats(1e-12, 0.5)),
    st.one_of(st.none(), st.integers(1, 9)),
    st.integers(0, 2**40),
)
def test_it_survives_json(mech, dim, clients, delta, participations, seed):
    mean = private_mean(
        mechanism=mech,
        dim=dim,
        clients=clients,
        delta=delta,
        max_participations=participations,
        seed=seed,
        rounds=5,
        population=5000,
        honest_fraction=0.5,
    )
    again = mean_from_dict(json.loads(json.dumps(mean.to_dict())))
    assert again == mean
    assert again.privacy_parameters() == mean.privacy_parameters()
    x = np.linspace(-1, 1, 4)
    small, other = (mean_from_dict({**one.to_dict(), "dim": 4, "l2_clip": 3 * mech.clip}) for one in (mean, again))
    assert (
        small.encode_simulated(x, SeededRandom(3), round_index=4)
        == other.encode_simulated(x, SeededRandom(3), round_index=4)
    ).all()


def test_what_does_not_describe_one_is_refused():
    values = mean_of(StochasticRounding(levels=2, margin=3.0), 3).to_dict()
    for change, words in (
        ({"private_mean": 1}, "private_mean: must be 2"),
        ({"clints": 3}, "did you mean clients?"),
        ({"mechanism": {"mechanism": "laplace"}}, "mechanism = 'laplace'"),
        ({"dim": 2.5}, "dim = 2.5"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            mean_from_dict({**values, **change})
    for name in values:
        with pytest.raises(ValueError, match=f"{name}"):
            mean_from_dict({key: value for key, value in values.items() if key != name})


def test_promises_are_what_a_release_rests_on():
    mean = mean_of(StochasticRounding(levels=2, margin=3.0), 3, clients=10)
    assert mean.privacy_parameters() == mean.with_values(seed=3, rounds=9).privacy_parameters()
    assert mean.privacy_parameters() == mean.with_values(dim=4).privacy_parameters()  # both send four coordinates
    for change in (
        {"dim": 5},
        {"clients": 9},
        {"delta": 1e-7},
        {"honest_clients": 9},
        {"min_survivors": 8},
        {"max_participations": 1},
    ):
        assert mean.privacy_parameters() != mean.with_values(**change).privacy_parameters()
    assert Fraction(mean.with_values(delta=None).delta) == Fraction(1e-5)
