"""Few coordinates: both sides choose the same, means are unbiased, errors as predicted, and ε is of what is sent."""

import json
from itertools import combinations, product

import numpy as np
import pytest
import torch

import rqm
from rqm import PBM, RQM, CorrelatedNoise, SecureRandom, SeededRandom, StochasticRounding, private_mean
from rqm.core.from_dict import mean_from_dict
from rqm.core.transform import Rotation, budget, chosen, clipped_away, clipped_away_at_most, second_clip
from rqm.mechanisms.additive import DiscreteGaussian
from rqm.mechanisms.banded import BandedGaussian
from rqm.mechanisms.gaussian import Gaussian
from tests.encoding.test_private_mean import squares
from tests.encoding.test_promises import hockey_stick, release


def few(kind=StochasticRounding, dim=1000, count=64, clients=20, rounds=1, **options):
    """A private mean of few coordinates, clipped at four times their root mean square."""
    clip = min(4, count**0.5) * second_clip(count) / count**0.5
    own = {
        StochasticRounding: {"levels": 2, "margin": 3.0},
        PBM: {"levels": 5, "theta": 0.1},
        RQM: {"margin": 30.0},
    }.get(kind, {})
    own |= {"steps": 15, "bits": 12, "scale": 2.0} if kind is DiscreteGaussian else {}
    mech = kind(clip=clip, **own)
    return private_mean(mechanism=mech, dim=dim, coordinates=count, clients=clients, rounds=rounds, **options)


# -- the choice -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "of"), [(1, 2), (1, 8), (3, 8), (5, 8), (7, 8), (40, 64), (2**12, 2**16)])
def test_so_many_different_places_and_the_same_on_both_sides(count, of):
    places = chosen(1, 2, count, of)
    assert len(places) == count == len(set(places.tolist()))
    assert 0 <= places.min() <= places.max() < of
    assert (np.sort(places) == places).all()
    chosen.cache_clear()
    assert (chosen(1, 2, count, of) == places).all()


@pytest.mark.statistical
@pytest.mark.parametrize("count", [2, 3, 5, 6])
def test_all_sets_are_equally_likely(count):
    sets = dict.fromkeys(combinations(range(8), count), 0)
    turns = 50 * len(sets)
    for round_index in range(turns):
        sets[tuple(chosen(5, round_index, count, 8).tolist())] += 1
    counts = np.array(list(sets.values()))
    excess = ((counts - 50) ** 2 / 50).sum()
    assert abs(excess - len(sets)) < 6 * (2 * len(sets)) ** 0.5
    counts[0] += 60  # one set that came twice as often would be seen
    assert abs(((counts - 50) ** 2 / 50).sum() - len(sets)) > 6 * (2 * len(sets)) ** 0.5


def test_rounds_choose_anew_and_the_seed_decides():
    mean = few(rounds=3)
    places = [chosen(mean.choice(round_index).seed, round_index, 64, 1024) for round_index in range(3)]
    assert not (places[0] == places[1]).all()
    x = np.linspace(-1, 1, 1000)
    both = [mean_from_dict(json.loads(json.dumps(mean.to_dict()))), mean]
    one, other = (m.encode_simulated(x, SeededRandom(3), round_index=2) for m in both)
    assert (one == other).all()
    assert both[0] == mean
    assert one.shape == (64,)
    assert (one != mean.with_values(seed=9).encode_simulated(x, SeededRandom(3), round_index=2)).any()


def test_libraries_agree_on_what_is_chosen():
    mean = few(StochasticRounding, rounds=2, clients=2).with_values(
        mechanism=StochasticRounding(clip=1.0, levels=65536)
    )
    x = np.random.default_rng(0).normal(size=1000) / 40
    means = []
    for vector in (x, torch.from_numpy(x).float()):
        message = mean.encode_simulated(vector, SeededRandom(0), round_index=1)
        means.append(np.asarray(mean.decode(2 * message, 2, round_index=1), dtype=float))
    np.testing.assert_allclose(*means, atol=2e-3)
    rotation, choice = mean.rotation(1), mean.choice(1)
    exact = choice.inverse(choice.pick(rotation.forward(x[None])), rotation)[0]
    np.testing.assert_allclose(means[0], exact, atol=2e-3)
    total = torch.zeros(64, dtype=torch.int32)
    assert mean.add_messages(torch.from_numpy(x).float()[None], total, SeededRandom(0), round_index=1).all()
    np.testing.assert_allclose(total.numpy(), mean.encode_simulated(x, SeededRandom(0), round_index=1), atol=2)


def test_all_coordinates_are_the_same_as_no_choice():
    """Files, messages and promises are those of a mean without a choice of coordinates."""
    mech = StochasticRounding(levels=2, margin=3.0)
    plain, every = (private_mean(mechanism=mech, dim=50, clients=9, coordinates=k) for k in (None, 64))
    assert plain == every
    assert plain.to_dict()["coordinates"] is None
    assert plain.kind == every.kind
    assert not plain.is_subset
    assert plain.with_values(dim=500).coordinates == 512
    assert (
        plain.encode_simulated(np.ones(50), SeededRandom(1)) == every.encode_simulated(np.ones(50), SeededRandom(1))
    ).all()
    some = plain.with_values(coordinates=16)
    assert some.is_subset
    assert some.kind != plain.kind
    assert some.with_values(delta=1e-3).coordinates == 16
    assert some.with_values(dim=50_000).kind == some.kind  # the promise is of what is sent


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"coordinates": 0}, "coordinates = 0: must be a whole number from 1 to 1024"),
        ({"coordinates": 1025}, "coordinates = 1025"),
        ({"coordinates": 8, "rotate": False}, "must come with an L2 clip and a rotation"),
        ({"coordinates": 8, "l2_clip": None}, "must come with an L2 clip and a rotation"),
        ({"coordinates": 8, "noise": CorrelatedNoise(5.0)}, "must not be given with correlated noise"),
        ({"coordinates": 8, "noise": "correlated", "mechanism": None, "epsilon": 1.0}, "with correlated noise"),
        ({"coordinates": 8, "mechanism": BandedGaussian(noise_multiplier=1.0, bands=2)}, "with correlated noise"),
    ],
)
def test_what_cannot_be_chosen_is_refused(change, words):
    values = {
        "mechanism": StochasticRounding(levels=2, margin=3.0),
        "dim": 1000,
        "clients": 3,
        "rounds": 3,
        "max_participations": 1,
        **change,
    }
    with pytest.raises(ValueError, match=words):
        private_mean(**values)


# -- what is sent lies in the accounted set -------------------------------------------------------


@pytest.mark.parametrize("kind", [StochasticRounding, PBM, RQM, DiscreteGaussian])
@pytest.mark.parametrize("count", [1, 3, 16, 64])
def test_vectors_made_for_the_choice_are_within_the_second_budget(kind, count):
    """A vector that lies in what is chosen is √(d/k) times as long afterwards: the second clip must bind."""
    mean = few(kind, dim=100, count=count, rounds=4)
    rng = np.random.default_rng(count)
    for round_index in range(4):
        places = chosen(mean.seed, round_index, count, 128)
        rows = np.zeros((8, 128))
        rows[:, places] = rng.normal(size=(8, count)) * 1e3
        x = np.concatenate(
            [mean.rotation(round_index).inverse(rows), rng.normal(size=(3, 100)), 1e30 * np.eye(100)[:2]]
        )
        for given in (x, torch.from_numpy(x).float()):
            ready, _ = mean._prepared(given if isinstance(given, np.ndarray) else given.clone(), round_index)
            before = np.asarray(ready, dtype=float)
            sent = np.asarray(mean._within(ready), dtype=float)
            most = 4 * budget(mean.mechanism, mean.l2_bound)
            assert all(squares(mean.mechanism, row) <= most for row in sent)
            assert (np.abs(sent).max(axis=1) > 0).all()  # and none was silenced
            assert (np.linalg.norm(before, axis=1) <= mean.l2_bound).all()
    assert (
        squares(mean.mechanism, sent[0] * 0 + 1e9) > most
        or count == 1
        or mean.l2_bound > mean.mechanism.clip * count**0.5
    )


# -- unbiased, with the error that is predicted ---------------------------------------------------


def simulated(mean, x, turns):
    """Estimates of the mean of clients who hold the rows of ``x``, in so many rounds."""
    found = []
    for round_index in range(turns):
        total = torch.zeros(mean.coordinates, dtype=torch.int32 if mean.has_integer_messages else torch.float64)
        mean.add_messages(torch.from_numpy(x).float(), total, SeededRandom(7, round_index), round_index=round_index)
        found.append(
            np.asarray(mean.decode(mean.revealed(total, len(x), round_index), len(x), round_index=round_index))
        )
    return np.array(found)


CASES = [
    (StochasticRounding, 500, 64, 5),
    (StochasticRounding, 250, 128, 20),
    (StochasticRounding, 1000, 500, 3),
    (PBM, 200, 31, 10),
    (PBM, 200, 255, 4),
    (RQM, 500, 256, 4),
    (DiscreteGaussian, 250, 50, 6),
    (Gaussian, 500, 100, 10),
]


@pytest.mark.statistical
@pytest.mark.parametrize(("kind", "dim", "count", "clients"), CASES)
def test_unbiased_and_as_wrong_as_predicted(kind, dim, count, clients):
    turns = 100
    mean = few(kind, dim, count, clients, turns) if kind is not Gaussian else private_mean(
        mechanism=Gaussian(5.0), dim=dim, coordinates=count, clients=clients, rounds=turns
    )  # fmt: skip
    rng = np.random.default_rng(count)
    x = rng.normal(size=(clients, dim)) + 2 * rng.normal(size=dim)
    x *= np.linspace(0.5, 0.98, clients)[:, None] / np.linalg.norm(x, axis=1)[:, None]
    middle = x.mean(axis=0)
    found = simulated(mean, x, turns)
    errors = np.square(found - middle).mean(axis=1)
    length, size = float(np.linalg.norm(middle)), float(np.sqrt(np.square(x).sum(axis=1).mean()))
    predicted = mean.expected_error(length, size)
    noise = errors.std() / turns**0.5
    assert errors.mean() == pytest.approx(predicted, abs=5 * noise, rel=0)
    assert 5 * noise < 0.2 * predicted
    # the part of it that lies along the mean
    along = found @ middle / length**2
    assert along.mean() == pytest.approx(1, abs=5 * along.std() / turns**0.5 + clipped_away_at_most(count))
    assert errors.mean() != pytest.approx(1.25 * predicted, abs=5 * noise, rel=0)  # a quarter more would be seen


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("dim", [1000, 3000])
@pytest.mark.parametrize("part", [2, 7, 40])
@pytest.mark.parametrize("clients", [2, 30])
@pytest.mark.parametrize("kind", [StochasticRounding, PBM])
def test_predicted_errors_are_within_two_per_cent(kind, dim, part, clients):
    mean = few(kind, dim, dim // part, clients, rounds=4000)
    x = np.random.default_rng(part).normal(size=(clients, dim)) + np.random.default_rng(1).normal(size=dim)
    x *= 0.9 / np.linalg.norm(x, axis=1)[:, None]
    middle = x.mean(axis=0)
    errors = np.square(simulated(mean, x, 4000) - middle).mean(axis=1)
    assert errors.std() / 4000**0.5 < 0.005 * errors.mean()  # so that two per cent are four deviations
    assert errors.mean() == pytest.approx(mean.expected_error(float(np.linalg.norm(middle)), 0.9), rel=0.02)


@pytest.mark.statistical
@pytest.mark.parametrize("count", [16, 256])
def test_what_the_second_clip_takes_away(count):
    """Of vectors as long as the first clip: less than the bound for all, and about what Gaussian ones lose."""
    rng, lost = np.random.default_rng(3), []
    for round_index in range(2000):
        rotation = Rotation(1024, round_index)
        x = rng.normal(size=(1, 1024)) if round_index % 2 else np.eye(1024)[:2].sum(axis=0)[None]
        y = rotation.forward(x / np.linalg.norm(x))[0, chosen(0, round_index, count, 1024)] * (1024 / count) ** 0.5
        lost.append(max(0.0, 1 - second_clip(count) / np.linalg.norm(y)))
    assert np.mean(lost) <= clipped_away_at_most(count)
    assert np.mean(lost[1::2]) < 10 * clipped_away(count) + 1e-5
    assert 0 < clipped_away(count) < clipped_away_at_most(count) < 0.1


# -- the guarantee is that of what is sent --------------------------------------------------------


@pytest.mark.parametrize(
    ("mech", "dim", "count", "clients"),
    [
        (StochasticRounding(levels=2, margin=3.0), 4, 1, 1),
        (StochasticRounding(levels=2, margin=4.0), 4, 2, 2),
        (PBM(levels=4, theta=0.15), 3, 2, 2),
        (RQM(levels=4, margin=6.0), 7, 2, 2),
        (StochasticRounding(levels=2, margin=2.0), 8, 3, 2),
    ],
    ids=repr,
)
def test_epsilon_covers_every_choice(mech, dim, count, clients):
    """For each choice: the worst vectors for it through the very encoder, the others anywhere, δ computed exactly."""
    mean = private_mean(mechanism=mech, dim=dim, coordinates=count, clients=clients, delta=1e-3, rounds=40,
                       max_participations=1)  # fmt: skip
    epsilon, rng, worst, seen = mean.guarantee().epsilon, np.random.default_rng(5), 0.0, set()
    ends = np.array(list(product([-1.0, 1.0], repeat=count)))
    for round_index in range(40):
        places = chosen(mean.seed, round_index, count, mean.rotation(round_index).padded)
        seen.add(tuple(places.tolist()))
        rows = np.zeros((len(ends), mean.rotation(round_index).padded))
        rows[:, places] = 1e6 * ends
        sent = mean._within(mean._prepared(mean.rotation(round_index).inverse(rows), round_index)[0])
        for _ in range(6):
            inputs = (sent[k] for k in rng.integers(len(sent), size=2))
            others = [mech.clip * ends[rng.integers(len(ends))] for _ in range(clients - 1)]
            p, q = (release(mean, row, others) for row in inputs)
            assert hockey_stick(p, q, epsilon) <= 1e-3
            worst = max(worst, hockey_stick(p, q, 0.3 * epsilon))
    assert worst > 1e-3  # a third of the stated ε would be too little
    assert len(seen) > 3 or count == 1


def test_the_first_clip_alone_would_not_be_enough():
    """Were the second clip left out, a vector that lies in what is chosen would tell more than is stated."""
    mech = StochasticRounding(clip=4.0, levels=2, margin=2.0)
    mean = private_mean(mechanism=mech, dim=64, coordinates=4, clients=2, delta=1e-3)
    places = chosen(0, 0, 4, 64)
    row = np.zeros((1, 64))
    row[0, places] = 0.5
    x = mean.rotation(0).inverse(row)
    unclipped = mean.choice(0).pick(mean.rotation(0).forward(x))[0]
    assert np.linalg.norm(unclipped) == pytest.approx(4.0)
    sent = mean._within(mean._prepared(x, 0)[0])[0]
    assert np.linalg.norm(sent) <= mean.l2_bound < 2.1
    others, epsilon = [np.full(4, 4.0)], mean.guarantee().epsilon
    assert hockey_stick(release(mean, sent, others), release(mean, -sent, others), epsilon) <= 1e-3
    assert hockey_stick(release(mean, unclipped, others), release(mean, -unclipped, others), epsilon) > 1e-3


@pytest.mark.slow
def test_a_mechanism_is_found_for_few_coordinates():
    mean = private_mean(epsilon=3, delta=1e-5, clients=200, dim=10_000, coordinates=512, l2_clip=2.0)
    guarantee = mean.guarantee()
    assert 2.9 < guarantee.epsilon <= 3
    assert guarantee.dim == mean.coordinates == 512
    assert guarantee.subset.total == 16_384
    assert mean.mechanism.clip == pytest.approx(4 * 2.0 * second_clip(512) / 512**0.5)
    assert guarantee.wire_bits_per_parameter == pytest.approx(512 * mean.wire_bits / 10_000)
    assert guarantee.noise_std_over_gaussian < 1.1 * second_clip(512)
    assert "a public choice of 512 of 16,384" in str(guarantee)
    assert f"{guarantee.wire_bits_per_parameter:.4g} bits per parameter" in str(guarantee)
    same = rqm.calibrate(
        "pbm", levels=5, epsilon=3, delta=1e-5, clients=200, rounds=1, dim=10_000, coordinates=512, l2_clip=2.0
    ).private_mean()
    assert (same.coordinates, same.bound, same.mechanism.clip) == (512, mean.l2_bound, mean.mechanism.clip)
    assert 2.9 < same.guarantee().epsilon <= 3
    message = mean.encode(np.ones(10_000), SecureRandom())
    assert message.shape == (512,)
    assert mean.decode(200 * message % mean.modulus, 200).shape == (10_000,)


def test_the_account_of_few_is_that_of_a_vector_of_so_many_within_the_second_clip():
    mean = few(dim=5000, count=256, clients=40)
    alone = private_mean(mechanism=mean.mechanism, dim=256, l2_clip=second_clip(256), clients=40)
    assert mean.guarantee().epsilon == alone.guarantee().epsilon
    assert mean.guarantee().noise_multiplier == pytest.approx(alone.guarantee().noise_multiplier * second_clip(256))
