"""Both messages of a participation: what is added in a round is canceled in the next, except for residual noise."""

import json
from dataclasses import replace

import numpy as np
import pytest

from rqm import (
    PBM,
    RQM,
    CorrelatedNoise,
    Participation,
    PrivateMean,
    SecureRandom,
    SeededRandom,
    StochasticRounding,
    ThreatModel,
    private_mean,
)
from rqm.accounting.calibration import Target, fit
from rqm.core.from_dict import mean_from_dict
from rqm.core.server_noise import memory
from rqm.correlated.factorization import Workload
from rqm.correlated.iterates import iterate_noise
from rqm.mechanisms.banded import BandedGaussian
from rqm.mechanisms.gaussian import Gaussian

MECHANISM = StochasticRounding(clip=0.5, levels=2, margin=3.0)
WHO = Participation(clients=20, rounds=6, population=200, max_participations=1)
MEAN = PrivateMean(dim=50, mechanism=MECHANISM, noise=CorrelatedNoise(20.0), participation=WHO)
INDEPENDENT = PrivateMean(dim=50, mechanism=MECHANISM, participation=Participation(20, 6))


def decode_rounds(mean, vector, seed=None):
    """The server's estimates, round by round, if all clients hold the same vector."""
    estimates, pending = [], []
    for round_index in range(mean.participation.rounds):
        total, settled, pending = np.zeros(mean.coordinates, dtype=np.int64), pending, []
        for client in range(mean.participation.clients):
            if seed is None:
                noise = mean.begin_noise(SecureRandom())
                message = mean.encode(vector, SecureRandom(), round_index=round_index, noise_state=noise)
            else:
                noise = mean.noise.draw(mean.coordinates, SeededRandom(seed, round_index, client, 1))
                rng = SeededRandom(seed, round_index, client)
                message = mean.encode_simulated(vector, rng, round_index=round_index, noise_state=noise)
            pending.append(noise)
            assert message.min() >= 0
            assert message.max() < mean.modulus
            total += message
        for noise in settled:
            total += mean.settle(noise)
        estimates.append(mean.decode(total % mean.modulus, mean.participation.clients, round_index=round_index))
    return np.array(estimates)


@pytest.mark.parametrize("noise", [CorrelatedNoise(20.0), CorrelatedNoise(20.0, 2.0, 5)])
def test_noise_of_a_round_is_canceled_in_the_next(noise):
    vector, mean = np.full(50, 0.02), replace(MEAN, noise=noise, coordinates=None)
    errors = np.concatenate([decode_rounds(mean, vector, seed) - vector for seed in range(8)], axis=1)
    step = mean.mechanism.grid.step
    # In each round: rounding, what is added, what is canceled. In all together: rounding and residual noise of all
    # rounds, and what the last round added beyond that.
    rounding, added, canceled = (
        variance * step**2 / 20 for variance in (0.25, noise.added_variance, noise.canceled_variance)
    )
    assert errors[1:].var() == pytest.approx(added + canceled + rounding, rel=0.1)
    residual = noise.residual_std**2 * step**2 / 20
    expected = 6 * rounding + 5 * residual + added
    assert errors.sum(axis=0).var() == pytest.approx(expected, rel=0.2)
    assert abs(errors.sum(axis=0).mean()) < 5 * np.sqrt(expected / errors.shape[1])


def test_the_rotation_stays_the_same_or_nothing_would_cancel():
    x = np.arange(50.0)[None]
    assert (MEAN.rotation(0).forward(x) == MEAN.rotation(5).forward(x)).all()
    assert (INDEPENDENT.rotation(0).forward(x) != INDEPENDENT.rotation(5).forward(x)).any()


def test_secure_messages_decode():
    estimates = decode_rounds(MEAN, np.full(50, 0.02))
    assert estimates.shape == (6, 50)
    assert np.isfinite(estimates).all()


@pytest.mark.parametrize("noise", [CorrelatedNoise(20.0), CorrelatedNoise(20.0, 2.0, 5)])
def test_it_survives_json(noise):
    mean = replace(MEAN, noise=noise)
    values = json.loads(json.dumps(mean.to_dict()))
    again = mean_from_dict(values)
    assert again == mean
    assert again.kind == mean.fingerprint
    assert INDEPENDENT.to_dict()["noise"] is None
    other = mean_from_dict({**values, "noise": {**values["noise"], "transient_std": 21.0}})
    assert other.kind != mean.fingerprint


def test_a_guarantee_counts_both_messages():
    guarantee = MEAN.guarantee()
    assert guarantee.bits_under_secagg == 2 * (MEAN.modulus.bit_length() - 1)
    assert guarantee.participation.window == 6
    assert guarantee.correlated_noise_ratio != 1
    assert "both of its messages" in str(guarantee)


def test_it_is_found_for_an_epsilon():
    mean = private_mean(
        epsilon=1,
        delta=1e-6,
        clients=1000,
        dim=60_000,
        rounds=30,
        max_participations=1,
        population=10**5,
        noise="correlated",
    )
    guarantee = mean.guarantee()
    assert 0.98 < guarantee.epsilon <= 1
    assert mean.noise.transient_std > 0.5
    assert guarantee.correlated_noise_ratio < 0.6
    assert guarantee.noise_std_over_gaussian < 1.05


@pytest.mark.slow
def test_residual_noise_leaves_less_in_the_models():
    who = {"clients": 1000, "population": 10**6, "max_participations": 1, "rounds": 40}
    values = {"delta": 1e-6, "dim": 2**16}
    mean = private_mean(epsilon=1, noise="correlated", **who, **values)
    assert mean.noise.residual_std
    assert 0.98 <= mean.guarantee().epsilon <= 1
    assert mean_from_dict(mean.to_dict()) == mean
    noise, participation = CorrelatedNoise(iterate_noise(Workload(40)).best_ratio(40) / 2), Participation(**who)
    target = Target(1.0, 1e-6, participation, ThreatModel(), 2**16, 1.0)
    mechanism = fit(StochasticRounding(clip=4 / 2**8, levels=2), target, noise)
    plain = PrivateMean(mechanism=mechanism, noise=noise, participation=participation, l2_clip=1.0, **values)
    assert plain.guarantee().epsilon <= 1
    ratios = [candidate.guarantee().correlated_noise_ratio for candidate in (mean, plain)]
    assert ratios[0] < 0.97 * ratios[1]


@pytest.mark.parametrize(
    "noise", [(30.0, 2.0, 5), (3.0, 1.0), True, "correlated", {"transient_std": 3.0, "goes": 1}, {"gain": 5}]
)
def test_other_descriptions_of_noise_are_refused(noise):
    with pytest.raises((ValueError, TypeError), match="noise"):
        replace(MEAN, noise=noise)


def test_equal_descriptions_of_noise_are_the_same():
    values = ({"transient_std": 30, "residual_std": 2, "gain": 5}, CorrelatedNoise(30, 2, 5))
    assert len({replace(MEAN, noise=noise).kind for noise in values}) == 1


@pytest.mark.slow
def test_drawn_noise_is_accepted_though_all_residual_noise_may_be_zero():
    noise, who = CorrelatedNoise(20.0, 0.5, 8), Participation(4, 4, min_separation=2)
    mean = PrivateMean(dim=8, mechanism=StochasticRounding(levels=2), participation=who, noise=noise)
    for _ in range(30):  # in about one of ten draws all residual noise is zero
        mean.encode(np.zeros(8), SecureRandom(), noise_state=mean.begin_noise(SecureRandom()))
    wide = replace(mean, dim=800, coordinates=None)
    with pytest.raises(ValueError, match="as drawn"):
        wide.settle(np.zeros((2, wide.coordinates), dtype=np.int64))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mechanism": RQM()}, "two levels"),
        ({"mechanism": PBM()}, "two levels"),
        ({"mechanism": StochasticRounding(levels=4, margin=5.0)}, "two levels"),
        ({"mechanism": Gaussian(1.0, local=True)}, "trusted server"),
        ({"mechanism": BandedGaussian(1.0)}, "not with banded"),
        ({"noise": CorrelatedNoise(0.1)}, "noise.transient_std = 0.1: must be from 0.5"),
        ({"noise": CorrelatedNoise(5.0, 0.1, 2)}, "noise.residual_std = 0.1: must be from 0.5"),
        ({"threat_model": ThreatModel("outsider"), "participation": Participation(20, 6, 200, "uniform")}, "adversary"),
        (
            {
                "threat_model": ThreatModel(honest_fraction=0.5),
                "participation": replace(WHO, sampling="uniform"),
            },
            "honest_fraction = 0.5: must be a number",
        ),
    ],
)
def test_what_the_proof_does_not_cover_is_refused(change, message):
    with pytest.raises((ValueError, TypeError), match=message):
        replace(MEAN, coordinates=None, **change)


def test_noise_is_given_where_it_is_correlated_and_only_there():
    with pytest.raises(ValueError, match="transient: must be given"):
        MEAN.encode(np.zeros(50), SecureRandom())
    with pytest.raises(ValueError, match="transient: must be given"):
        INDEPENDENT.encode(np.zeros(50), SecureRandom(), noise_state=np.zeros(64, dtype=np.int64))
    with pytest.raises(TypeError, match="SecureRandom"):
        MEAN.begin_noise(SeededRandom(1))
    with pytest.raises(ValueError, match="noise is independent here"):
        INDEPENDENT.begin_noise(SecureRandom())


def test_a_trusted_server_cancels_what_it_added():
    torch = pytest.importorskip("torch")
    remembered = memory(Gaussian(2.0), CorrelatedNoise(30.0), 5, lambda round_index: 10 + round_index)
    zeros = torch.zeros(200_000, dtype=torch.float64)
    noises = [remembered.noise(round_index, zeros) for round_index in range(5)]
    assert noises[2].std().item() == pytest.approx((1 + 2 * 15**2) ** 0.5, rel=0.02)
    assert sum(noises).std().item() == pytest.approx((5 + 15**2) ** 0.5, rel=0.02)


@pytest.mark.parametrize("bad", [0, np.array([5]), np.zeros(64), np.zeros(64, dtype=np.int64), np.full(64, 10**6)])
def test_only_what_was_drawn_is_added_and_canceled(bad):
    for use in (lambda: MEAN.encode(np.zeros(50), SecureRandom(), noise_state=bad), lambda: MEAN.settle(bad)):
        with pytest.raises(ValueError, match="transient"):
            use()


@pytest.mark.parametrize("noise", [8, -1, 0, "nonsense", True, CorrelatedNoise(8.0)])
def test_noise_is_searched_for_with_the_mechanism(noise):
    with pytest.raises(
        ValueError, match=r"noise = .*: must be 'independent', 'correlated'|must be 'correlated' where no"
    ):
        private_mean(epsilon=1, clients=1000, dim=64, rounds=5, max_participations=1, noise=noise)


def test_without_rounds_to_cancel_noise_in_there_is_none():
    with pytest.raises(ValueError, match="min_separation"):
        private_mean(epsilon=1, clients=1000, dim=64, rounds=5, max_participations=2, noise="correlated")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"adversary": "outsider"}, "adversary = 'server'"),
        ({"honest_fraction": 0.5, "max_participations": 1}, "honest_fraction = 0.5: must be a number"),
    ],
)
def test_a_search_for_noise_names_what_the_proof_does_not_cover(change, message):
    with pytest.raises(ValueError, match=message):
        private_mean(epsilon=1, clients=1000, population=10**5, dim=64, rounds=5, noise="correlated", **change)
