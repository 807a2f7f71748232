"""Both messages of a participation: what is added in one round is gone in the next, and only that."""

import numpy as np
import pytest

from rqm import PBM, RQM, PrivateMean, Rounding, SecureRandom, SeededRandom
from rqm.encoding.memory import memory
from rqm.mechanisms.banded import BandedGaussian
from rqm.mechanisms.gaussian import Gaussian

MEAN = PrivateMean(
    dim=50,
    clients=20,
    rounds=6,
    mechanism=Rounding(clip=0.5, levels=2, margin=3.0),
    cancel=20.0,
    participations=1,
    population=200,
)


def estimates(mean, vector, seed=None):
    """The server's estimates, round by round, if everybody holds the same vector."""
    found, owed = [], []
    for turn in range(mean.rounds):
        total, last, owed = np.zeros(mean.coordinates, dtype=np.int64), owed, []
        for client in range(mean.clients):
            if seed is None:
                noise = mean.transient(SecureRandom())
                message = mean.encode(vector, SecureRandom(), round=turn, transient=noise)
            else:
                rng = SeededRandom(seed, turn, client)
                noise = np.asarray(np.rint(np.random.default_rng([seed, turn, client]).normal(0, 20, mean.coordinates)))
                message = mean.simulated(vector, rng, round=turn, transient=noise.astype(np.int64))
            owed.append(noise.astype(np.int64))
            assert message.min() >= 0
            assert message.max() < mean.modulus
            total += message
        for noise in last:
            total += mean.take_back(noise)
        found.append(mean.decode(total % mean.modulus, clients=mean.clients, round=turn))
    return np.array(found)


def test_noise_of_one_round_is_gone_in_the_next():
    vector = np.full(50, 0.02)
    errors = np.concatenate([estimates(MEAN, vector, seed) - vector for seed in range(8)], axis=1)
    step = MEAN.mechanism.grid.step
    # every round by itself: coins, what came, what went; all together: coins of all rounds, and what came last
    coins, held = (step / 2) ** 2 / 20, (20 * step) ** 2 / 20
    assert errors[1:].var() == pytest.approx(2 * held + coins, rel=0.1)
    assert errors.sum(axis=0).var() == pytest.approx(6 * coins + held, rel=0.2)
    assert abs(errors.sum(axis=0).mean()) < 5 * np.sqrt((6 * coins + held) / errors.shape[1])


def test_the_rotation_stays_or_nothing_would_cancel():
    x = np.arange(50.0)[None]
    assert (MEAN.rotation(0).forward(x) == MEAN.rotation(5).forward(x)).all()
    other = PrivateMean(dim=50, clients=20, rounds=6, mechanism=MEAN.mechanism)
    assert (other.rotation(0).forward(x) != other.rotation(5).forward(x)).any()


def test_secure_messages_differ_and_decode():
    vector = np.full(50, 0.02)
    found = estimates(MEAN, vector)
    assert found.shape == (6, 50)
    assert np.isfinite(found).all()


def test_it_goes_to_the_other_side_and_old_ones_are_as_before():
    again = PrivateMean.from_dict(MEAN.to_dict())
    assert again == MEAN
    assert again.kind == MEAN.kind
    other = PrivateMean(dim=50, clients=20, mechanism=MEAN.mechanism)
    assert not {"cancel", "separation"} & other.to_dict().keys()
    assert PrivateMean.from_dict({**MEAN.to_dict(), "cancel": 21.0}).kind != MEAN.kind


def test_a_guarantee_counts_both_messages():
    one = MEAN.guarantee
    assert one.bits_under_secagg == 2 * (MEAN.modulus.bit_length() - 1)
    assert one.separation == 6
    assert one.iterate_noise_over_independent != 1
    assert "both messages" in str(one)


def test_it_is_found_for_an_epsilon():
    mean = PrivateMean(
        epsilon=1, delta=1e-6, clients=1000, dim=60_000, rounds=30, participations=1, population=10**5, cancel=True
    )
    assert 0.98 < mean.guarantee.epsilon <= 1
    assert min(mean.cancel) > 0.5
    assert mean.guarantee.iterate_noise_over_independent < 0.6
    assert mean.guarantee.noise_std_over_gaussian < 1.05


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mechanism": RQM()}, "two levels"),
        ({"mechanism": PBM()}, "two levels"),
        ({"mechanism": Rounding(levels=4, margin=5.0)}, "two levels"),
        ({"mechanism": Gaussian(1.0, local=True)}, "trusted server"),
        ({"mechanism": BandedGaussian(1.0)}, "not with banded"),
        ({"cancel": 0.1}, "cancel = 0.1: must be from 0.5"),
        ({"cancel": float("nan")}, "cancel"),
        ({"cancel": True}, "cancel = True"),
        ({"observer": "outsider", "participations": None}, "observer server"),
        ({"honest": 0.5}, "honest = 0.5: must be a number"),
    ],
)
def test_what_the_proof_does_not_cover_is_refused(change, words):
    values = {name: getattr(MEAN, name) for name in ("dim", "clients", "rounds", "mechanism", "cancel", "population")}
    with pytest.raises((ValueError, TypeError), match=words):
        PrivateMean(**{**values, "participations": 1, **change})


def test_noise_is_given_where_it_is_taken_back_and_only_there():
    with pytest.raises(ValueError, match="transient: must be given"):
        MEAN.encode(np.zeros(50), SecureRandom())
    other = PrivateMean(dim=50, clients=20, mechanism=MEAN.mechanism)
    with pytest.raises(ValueError, match="transient: must be given"):
        other.encode(np.zeros(50), SecureRandom(), transient=np.zeros(64, dtype=np.int64))
    with pytest.raises(TypeError, match="SecureRandom"):
        MEAN.transient(SeededRandom(1))
    with pytest.raises(ValueError, match="no noise is taken back"):
        other.transient(SecureRandom())


def test_a_trusted_server_takes_back_what_it_added():
    torch = pytest.importorskip("torch")
    kept = memory(Gaussian(2.0), 30.0, 5, lambda turn: 10 + turn)
    nothing = torch.zeros(200_000, dtype=torch.float64)
    noises = [kept.noise(turn, nothing) for turn in range(5)]
    assert noises[2].std().item() == pytest.approx((1 + 2 * 15**2) ** 0.5, rel=0.02)
    assert sum(noises).std().item() == pytest.approx((5 + 15**2) ** 0.5, rel=0.02)


@pytest.mark.parametrize("bad", [0, np.array([5]), np.zeros(64), np.zeros(64, dtype=np.int64), np.full(64, 10**6)])
def test_only_what_was_drawn_is_added_and_taken_back(bad):
    for use in (lambda: MEAN.encode(np.zeros(50), SecureRandom(), transient=bad), lambda: MEAN.take_back(bad)):
        with pytest.raises(ValueError, match="transient"):
            use()


@pytest.mark.parametrize("cancel", [8, -1, 0, "nonsense"])
def test_where_a_mechanism_is_looked_for_so_is_the_noise(cancel):
    with pytest.raises(ValueError, match="must be True where no mechanism is given"):
        PrivateMean(epsilon=1, clients=1000, dim=64, rounds=5, participations=1, cancel=cancel)


def test_without_time_to_take_noise_back_there_is_none():
    with pytest.raises(ValueError, match="separation = None: must be given"):
        PrivateMean(epsilon=1, clients=1000, dim=64, rounds=5, participations=2, cancel=True)
