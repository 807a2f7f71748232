"""What a client sends lies in the set that is accounted for, means are unbiased, and ε covers what is sent."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rqm import (
    PBM,
    RQM,
    CorrelatedNoise,
    DiscreteGaussian,
    Gaussian,
    Noiseless,
    Participation,
    PrivateMean,
    SecureRandom,
    SeededRandom,
    StochasticRounding,
    ThreatModel,
    private_mean,
)
from rqm.core.transform import choose_indices, max_clipped_length, second_clip
from rqm.mechanisms.banded import BandedGaussian
from tests.core.exact import ONE_BIT, encoded_rows, hockey_stick, mean_of, mechanisms, pmf_of_sum, squared_distance

RESIDUAL = CorrelatedNoise(20.0, 2.0, 5)
PARTICIPATION = Participation(clients=20, rounds=6, population=200, max_participations=1)
CORRELATED = PrivateMean(
    dim=50, mechanism=replace(ONE_BIT, clip=0.5), noise=CorrelatedNoise(20.0), participation=PARTICIPATION
)
INDEPENDENT = PrivateMean(dim=50, mechanism=CORRELATED.mechanism, participation=Participation(20, 6))


def subset_mean(kind, dim, count, clients=20, rounds=1):
    """A private mean of few coordinates, clipped at four times their root mean square."""
    options = {
        StochasticRounding: {"levels": 2, "margin": 3.0},
        PBM: {"levels": 5, "theta": 0.1},
        RQM: {"margin": 30.0},
        DiscreteGaussian: {"steps": 15, "bits": 12, "scale": 2.0},
    }
    clip = min(4, count**0.5) * second_clip(count) / count**0.5
    mechanism = Gaussian(5.0) if kind is Gaussian else kind(clip=clip, **options[kind])
    return private_mean(mechanism=mechanism, dim=dim, coordinates=count, clients=clients, rounds=rounds)


# -- what is sent ---------------------------------------------------------------------------------


numbers = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),  # huge and denormal ones, too
    st.sampled_from([0.0, -0.0, 5e-324, 1e-310, 1e308, -1.7976931348623157e308, 3.4e38, 1.0]),
)


@settings(max_examples=150)
@given(mechanisms, st.integers(1, 70), st.booleans(), st.sampled_from([np.float64, np.float32, "torch"]), st.data())
def test_every_message_lies_in_the_set_that_is_accounted_for(mechanism, dim, rotate, kind, data):
    """Within the budget in integers, and not zero unless the vector is."""
    mean = mean_of(mechanism, dim, rotate=rotate, rounds=3)
    x = data.draw(arrays.arrays(np.float64, dim, elements=numbers))
    if kind != np.float64:
        with np.errstate(over="ignore"):
            x = x.astype(np.float32)
        assume(np.isfinite(x).all())
    vector, copy = torch.from_numpy(x) if kind == "torch" else x, x.copy()
    round_index = data.draw(st.integers(0, 2))
    message = mean.encode_simulated(vector, SeededRandom(1), round_index=round_index)
    assert (x == copy).all()  # inputs are not changed
    assert tuple(message.shape) == (mean.coordinates,)
    assert 0 <= int(message.min()) <= int(message.max()) < mechanism.levels <= mean.modulus
    row = np.asarray(encoded_rows(mean, vector[None], round_index)[0])
    assert squared_distance(mechanism, row) <= 4 * mean.quantizer.budget
    assert row.any() or np.abs(copy).max() <= 1e-3 * mean.l2_clip


@pytest.mark.parametrize("clip", [1e-6, 0.5, 1e3])
@pytest.mark.parametrize("size", [1e18, 1e30, 2.40615975e38, 3.4e38])
def test_the_longest_float_vectors_keep_their_direction(clip, size):
    """The factor that shortens such a row is no normal float32, and its square is infinite."""
    mean = mean_of(StochasticRounding(clip=clip, levels=2, margin=0.0), 2, l2_clip=clip, rotate=False)
    row = np.asarray(encoded_rows(mean, torch.tensor([[size, -size]]))[0])
    assert row == pytest.approx(mean.max_length * np.array([0.5**0.5, -(0.5**0.5)]), rel=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(value):
    x = [1.0, value, 0.0]
    for vector in (x, np.array(x, dtype=np.float32), torch.tensor(x)):
        with pytest.raises(ValueError, match=r"x contains -?(nan|inf): every value must be finite"):
            mean_of(ONE_BIT, 3).encode(vector, SecureRandom())


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        ([1.0, 2.0], ValueError, r"x has shape \(2,\): must be \(3,\)"),
        ([[1.0, 2.0, 3.0]], ValueError, r"x has shape \(1, 3\)"),
        ([], ValueError, r"x has shape \(0,\)"),
        ([[1.0], [1.0, 2.0]], ValueError, "ragged"),
        (["a", "b", "c"], TypeError, "x has dtype"),
        (np.array([1j, 0, 0]), TypeError, "must be real numbers"),
        (torch.tensor([True, False, True]), TypeError, "must be real numbers"),
        (1.0, ValueError, r"x has shape \(\)"),
    ],
)
def test_vectors_of_other_shapes_and_dtypes_are_refused(x, error, message):
    with pytest.raises(error, match=message):
        mean_of(ONE_BIT, 3).encode(x, SecureRandom())


def test_a_client_needs_secure_randomness_and_a_simulation_may_be_seeded():
    for source in (np.random.default_rng(0), SeededRandom(2)):
        with pytest.raises(TypeError, match=r"rqm\.SecureRandom"):
            mean_of(ONE_BIT, 3).encode(np.zeros(3), source)
    with pytest.raises(TypeError, match=r"rqm\.SecureRandom"):
        mean_of(ONE_BIT, 3).encode_simulated(np.zeros(3), np.random.default_rng(0))
    first, second = (mean_of(ONE_BIT, 3).encode_simulated(np.zeros(3), SeededRandom(2)) for _ in range(2))
    assert (first == second).all()


@pytest.mark.parametrize("mechanism", [Noiseless(), Gaussian()])
def test_floats_never_leave_a_client(mechanism):
    with pytest.raises(TypeError, match="sends floats"):
        mean_of(ONE_BIT, 3).with_values(mechanism=mechanism).encode(np.zeros(3), SecureRandom())


# -- the mean -------------------------------------------------------------------------------------


@pytest.mark.statistical
@pytest.mark.parametrize(
    "mechanism", [StochasticRounding(clip=0.5, levels=2, margin=1.0), PBM(clip=0.5), RQM(clip=0.5)], ids=repr
)
def test_the_decoded_mean_is_unbiased(mechanism):
    mean = mean_of(mechanism, 5, l2_clip=1.0, rounds=1200)
    x = np.random.default_rng(1).normal(size=(3, 5)) * 0.25
    estimates = []
    for round_index in range(1200):
        messages = [
            mean.encode_simulated(row, SeededRandom(3, round_index, client), round_index=round_index)
            for client, row in enumerate(x)
        ]
        estimates.append(mean.decode(sum(messages) % mean.modulus, 3, round_index=round_index))
    error = np.std(estimates, axis=0) / 1200**0.5
    deviations = (np.mean(estimates, axis=0) - x.mean(axis=0)) / error
    assert np.abs(deviations).max() < 5
    assert np.abs(deviations + 0.1 / error).max() > 5  # a bias of a fifth of a clip would be seen


@pytest.mark.parametrize("coordinates", [None, 64])
def test_arrays_and_tensors_have_the_same_mean(coordinates):
    mechanism = StochasticRounding(clip=1.0, levels=65536)
    mean = mean_of(mechanism, 50 if coordinates is None else 1000, clients=2, rounds=2, coordinates=coordinates)
    x = np.random.default_rng(0).normal(size=mean.dim) / 40
    transform, estimates = mean.transform(1), []
    expected = transform.inverse(transform.forward(x[None])[0][0])
    for vector in (x, torch.from_numpy(x), torch.from_numpy(x).float()):
        message = mean.encode_simulated(vector, SeededRandom(0), round_index=1)
        estimate = mean.decode(2 * message, 2, round_index=1)
        assert type(message) is type(estimate)
        np.testing.assert_allclose(np.asarray(estimate), expected, atol=2e-3)
        estimates.append(message)
    total = torch.zeros(mean.coordinates, dtype=torch.int32)
    assert mean.add_messages(torch.from_numpy(x).float()[None], total, SeededRandom(0), round_index=1).all()
    np.testing.assert_allclose(total.numpy(), estimates[0], atol=2)


def test_sums_of_messages_cannot_overflow():
    mean = mean_of(RQM(levels=256), 4, clients=1000)
    assert mean.encode(np.ones(4), SecureRandom()).dtype == np.int64
    assert mean.modulus == 2**18
    with pytest.raises(ValueError, match="does not fit 31 bits"):
        mean_of(StochasticRounding(levels=65536), 4, clients=10**6)


def test_rounds_and_clients_that_are_not_accounted_for_are_refused():
    mean = mean_of(ONE_BIT, 3, clients=5, min_survivors=4, rounds=2)
    total = sum(mean.encode(np.zeros(3), SecureRandom(), round_index=1) for _ in range(4))
    assert mean.decode(total, survivors=4, round_index=1).shape == (3,)
    with pytest.raises(ValueError, match="round_index = 2: must be a whole number from 0 to 1"):
        mean.encode(np.zeros(3), SecureRandom(), round_index=2)
    with pytest.raises(ValueError, match="round_index = 2: must be a whole number from 0 to 1"):
        mean.decode(total, survivors=4, round_index=2)
    for survivors in (3, 6):
        with pytest.raises(ValueError, match=f"survivors = {survivors}: must be a whole number from 4 to 5"):
            mean.decode(total, survivors=survivors, round_index=1)
    with pytest.raises(ValueError, match=r"total has shape \(3,\): must be \(4,\)"):
        mean.decode(total[:3], survivors=4, round_index=1)
    with pytest.raises(ValueError, match=r"a sum over 4 clients lies in 0\.\.4"):
        mean.decode(total + 5, survivors=4, round_index=1)


# -- the guarantee is that of what is sent ----------------------------------------------------------


@pytest.mark.parametrize(
    ("mechanism", "dim", "clients"),
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
def test_epsilon_covers_what_is_sent(mechanism, dim, clients):
    """Extreme vectors through the encoder, the other clients anywhere: the exact δ at the stated ε is below δ."""
    mean = private_mean(mechanism=mechanism, dim=dim, clients=clients, delta=1e-3)
    vectors = np.concatenate([list(product([-1.0, 1.0], repeat=dim)), np.eye(dim), -np.eye(dim)])
    rows = encoded_rows(mean, 1e6 * vectors)
    assert_epsilon_covers(mean, [rows] * 60)


@pytest.mark.parametrize(
    ("mechanism", "dim", "count", "clients"),
    [
        (ONE_BIT, 4, 1, 1),
        (StochasticRounding(levels=2, margin=4.0), 4, 2, 2),
        (PBM(levels=4, theta=0.15), 3, 2, 2),
        (RQM(levels=4, margin=6.0), 7, 2, 2),
        (StochasticRounding(levels=2, margin=2.0), 8, 3, 2),
    ],
    ids=repr,
)
def test_epsilon_covers_every_choice_of_coordinates(mechanism, dim, count, clients):
    """The worst vectors for each choice through the encoder, the others anywhere."""
    options = {"rounds": 40, "max_participations": 1, "delta": 1e-3, "l2_clip": 1.0}
    mean = mean_of(mechanism, dim, coordinates=count, clients=clients, **options)
    ends = np.array(list(product([-1.0, 1.0], repeat=count)))
    rows, choices = [], set()
    for round_index in range(40):
        vectors, indices = vectors_of_choice(mean, round_index, 1e6 * ends)
        choices.add(tuple(indices))
        rows += 6 * [encoded_rows(mean, vectors, round_index)]
    assert len(choices) > 3 or count == 1
    assert_epsilon_covers(mean, rows)


def assert_epsilon_covers(mean, rows):
    """The exact δ of two of each matrix's rows, the other clients at ±clip, is below δ at ε but not at 0.3 ε."""
    rng, epsilon, largest = np.random.default_rng(5), mean.guarantee().epsilon, 0.0
    for matrix in rows:
        pair = matrix[rng.integers(len(matrix), size=2)]
        others = mean.mechanism.clip * rng.choice([-1.0, 1.0], (mean.participation.clients - 1, mean.coordinates))
        p, q = (pmf_of_sum(mean, row, others) for row in pair)
        assert hockey_stick(p, q, epsilon) <= 1e-3
        largest = max(largest, hockey_stick(p, q, 0.3 * epsilon))
    assert largest > 1e-3


def vectors_of_choice(mean, round_index, values):
    """Vectors whose chosen coordinates have these values and whose other coordinates are zero, and the choice."""
    rotation = mean.transform(round_index).rotation
    indices = choose_indices(mean.seed, round_index, mean.coordinates, rotation.padded)
    rows = np.zeros((len(values), rotation.padded))
    rows[:, indices] = values
    return rotation.inverse(rows), indices


def test_values_that_change_the_guarantee_change_the_fingerprint():
    mean = mean_of(ONE_BIT, 3, clients=10)
    for change in ({"seed": 3, "rounds": 9}, {"dim": 4}):  # both dimensions send four coordinates
        assert mean.fingerprint == mean.with_values(**change).fingerprint
    for change in (
        {"dim": 5},
        {"coordinates": 2},
        {"clients": 9},
        {"delta": 1e-7},
        {"honest_clients": 9},
        {"min_survivors": 8},
        {"max_participations": 1},
    ):
        assert mean.fingerprint != mean.with_values(**change).fingerprint
    assert mean.with_values(delta=None).delta == mean.delta == 1e-5
    noise = ({"transient_std": 30, "residual_std": 2, "gain": 5}, CorrelatedNoise(30, 2, 5))
    assert len({replace(CORRELATED, noise=value).fingerprint for value in noise}) == 1


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"epsilon": 1.0}, TypeError, "epsilon"),  # the object itself does not search
        ({"mechanism": None}, TypeError, "mechanism = None: must be a mechanism"),
        ({"participation": 3}, TypeError, r"participation = 3: must be a rqm\.Participation"),
        ({"threat_model": "server"}, TypeError, r"threat_model = 'server': must be a rqm\.ThreatModel"),
        (
            {"threat_model": ThreatModel(unit="record", neighboring="add-or-remove-one")},
            ValueError,
            "unit = 'record': must be 'user' for a PrivateMean",
        ),
        ({"record_clip": 1.0}, TypeError, "record_clip"),
        ({"rotate": 1}, TypeError, "rotate = 1: must be true or false"),
    ],
)
def test_values_of_another_kind_are_refused(change, error, message):
    with pytest.raises(error, match=message):
        PrivateMean(**{"dim": 3, "mechanism": ONE_BIT, "participation": Participation(3)} | change)


def test_without_noise_there_is_no_guarantee():
    with pytest.raises(TypeError, match="adds no noise"):
        _ = private_mean(mechanism=Noiseless(), dim=3, clients=3).guarantee()


# -- few coordinates ------------------------------------------------------------------------------


def test_rounds_choose_other_coordinates_and_the_seed_decides():
    mean, x = subset_mean(StochasticRounding, 1000, 64, rounds=3), np.linspace(-1, 1, 1000)
    messages = [
        each_mean.encode_simulated(x, SeededRandom(3), round_index=round_index).tolist()
        for each_mean, round_index in ((mean, 2), (replace(mean), 2), (mean, 1), (mean.with_values(seed=9), 2))
    ]
    assert len(messages[0]) == 64
    assert messages[0] == messages[1]
    assert messages[0] not in messages[2:]


def test_all_coordinates_are_the_same_as_no_choice():
    full, every = (mean_of(ONE_BIT, 50, coordinates=count) for count in (None, 64))
    assert full == every
    assert full.fingerprint == every.fingerprint
    assert not full.is_subset
    assert full.with_values(dim=500).coordinates == 512
    subset = full.with_values(coordinates=16)
    assert subset.is_subset
    assert subset.fingerprint != full.fingerprint
    assert subset.with_values(delta=1e-3).coordinates == 16
    assert subset.with_values(dim=50_000).fingerprint == subset.fingerprint  # the guarantee is of what is sent


@pytest.mark.parametrize("kind", [StochasticRounding, PBM, RQM, DiscreteGaussian])
@pytest.mark.parametrize("count", [1, 3, 16, 64])
def test_vectors_that_lie_in_the_choice_are_within_the_second_budget(kind, count):
    """Such a vector is √(d/k) times as long after the choice, so the second clip must bind."""
    mean, rng = subset_mean(kind, 100, count, rounds=4), np.random.default_rng(count)
    for round_index in range(4):
        vectors, _ = vectors_of_choice(mean, round_index, rng.normal(size=(8, count)) * 1e3)
        x = np.concatenate([vectors, rng.normal(size=(3, 100)), 1e30 * np.eye(100)[:2]])
        for kind_of_array in (x, torch.from_numpy(x).float()):
            rows = np.asarray(encoded_rows(mean, kind_of_array, round_index), dtype=float)
            assert all(squared_distance(mean.mechanism, row) <= 4 * mean.quantizer.budget for row in rows)
            assert rows.any(axis=1).all()  # and none became zero
            assert (np.linalg.norm(rows, axis=1) <= mean.l2_bound).all()
    if mean.l2_bound < mean.mechanism.clip * count**0.5:  # else no row exceeds the budget
        assert squared_distance(mean.mechanism, np.full(count, 1e9)) > 4 * mean.quantizer.budget


def test_the_first_clip_alone_would_not_be_enough():
    """Without the second clip a vector that lies in the choice would reveal more than is stated."""
    mean = mean_of(
        StochasticRounding(clip=4.0, levels=2, margin=2.0), 64, coordinates=4, clients=2, delta=1e-3, l2_clip=1.0
    )
    vectors, _ = vectors_of_choice(mean, 0, np.full((1, 4), 0.5))
    transform, epsilon = mean.transform(), mean.guarantee().epsilon
    unclipped = transform.choice.forward(transform.rotation.forward(vectors))[0]
    assert np.linalg.norm(unclipped) == pytest.approx(4.0)
    row = encoded_rows(mean, vectors)[0]
    assert np.linalg.norm(row) <= mean.l2_bound < 2.1
    for values, is_covered in ((row, True), (unclipped, False)):
        p, q = (pmf_of_sum(mean, sign * values, [np.full(4, 4.0)]) for sign in (1, -1))
        assert (hockey_stick(p, q, epsilon) <= 1e-3) == is_covered


def test_epsilon_of_few_coordinates_is_that_of_a_vector_within_the_second_clip():
    mean = subset_mean(StochasticRounding, 5000, 256, clients=40)
    vector = private_mean(mechanism=mean.mechanism, dim=256, l2_clip=second_clip(256), clients=40)
    assert mean.guarantee().epsilon == vector.guarantee().epsilon
    assert mean.guarantee().noise_multiplier == pytest.approx(vector.guarantee().noise_multiplier * second_clip(256))


# -- the error that is predicted ------------------------------------------------------------------


def simulated(mean, x, rounds):
    """Estimates of the mean of clients who have the rows of `x`, round after round."""
    estimates, noise = [], mean.server_noise(lambda round_index: 1000 * round_index)
    for round_index in range(rounds):
        total = torch.zeros(mean.coordinates, dtype=torch.int32 if mean.has_integer_messages else torch.float64)
        mean.add_messages(torch.from_numpy(x).float(), total, SeededRandom(7, round_index), round_index=round_index)
        revealed = mean.reveal(total, len(x), noise, round_index=round_index)
        estimates.append(np.asarray(mean.decode(revealed, len(x), round_index=round_index)))
    return np.array(estimates)


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("kind", "dim", "count", "clients"),
    [
        (StochasticRounding, 500, 64, 5),
        (StochasticRounding, 250, 128, 20),
        (StochasticRounding, 1000, 500, 3),
        (PBM, 200, 31, 10),
        (PBM, 200, 255, 4),
        (RQM, 500, 256, 4),
        (DiscreteGaussian, 250, 50, 6),
        (Gaussian, 500, 100, 10),
    ],
)
def test_few_coordinates_are_unbiased_with_the_predicted_error(kind, dim, count, clients):
    mean, rng = subset_mean(kind, dim, count, clients, rounds=100), np.random.default_rng(count)
    x = rng.normal(size=(clients, dim)) + 2 * rng.normal(size=dim)
    x *= np.linspace(0.5, 0.98, clients)[:, None] / np.linalg.norm(x, axis=1)[:, None]
    center = x.mean(axis=0)
    estimates, length = simulated(mean, x, 100), float(np.linalg.norm(center))
    errors = np.square(estimates - center).mean(axis=1)
    predicted = mean.expected_error(length, float(np.sqrt(np.square(x).sum(axis=1).mean())))
    tolerance = 5 * errors.std() / 100**0.5
    assert errors.mean() == pytest.approx(predicted, abs=tolerance, rel=0)
    assert tolerance < 0.2 * predicted  # so an error of a quarter more would be seen
    projections = estimates @ center / length**2
    tolerance = 5 * projections.std() / 100**0.5 + max_clipped_length(count)
    assert projections.mean() == pytest.approx(1, abs=tolerance)


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("dim", [1000, 3000])
@pytest.mark.parametrize("ratio", [2, 7, 40])
@pytest.mark.parametrize("clients", [2, 30])
@pytest.mark.parametrize("kind", [StochasticRounding, PBM])
def test_predicted_errors_are_within_two_percent(kind, dim, ratio, clients):
    mean = subset_mean(kind, dim, dim // ratio, clients, rounds=4000)
    x = np.random.default_rng(ratio).normal(size=(clients, dim)) + np.random.default_rng(1).normal(size=dim)
    x *= 0.9 / np.linalg.norm(x, axis=1)[:, None]
    center = x.mean(axis=0)
    errors = np.square(simulated(mean, x, 4000) - center).mean(axis=1)
    assert errors.std() / 4000**0.5 < 0.005 * errors.mean()  # so that two percent are four deviations
    assert errors.mean() == pytest.approx(mean.expected_error(float(np.linalg.norm(center)), 0.9), rel=0.02)


def test_an_error_is_predicted_of_clipped_and_rotated_vectors_only():
    for change in ({"rotate": False}, {"l2_clip": None}):
        with pytest.raises(ValueError, match="expected_error: "):
            mean_of(ONE_BIT, 3, **change).expected_error(1.0)


# -- correlated noise -----------------------------------------------------------------------------


def decode_rounds(mean, vector, seed=None):
    """The server's estimates, round by round, if all clients have the same vector."""
    estimates, states = [], []
    for round_index in range(mean.participation.rounds):
        settled, states = states, []
        total = sum((mean.settle(state) for state in settled), np.zeros(mean.coordinates, dtype=np.int64))
        for client in range(mean.participation.clients):
            path = seed, round_index, client
            sources = [SecureRandom() if seed is None else SeededRandom(*path, stream) for stream in (0, 1)]
            states.append(mean.noise.sample(mean.coordinates, sources[0]))
            message = mean.encode_simulated(vector, sources[1], round_index=round_index, noise_state=states[-1])
            assert 0 <= message.min() <= message.max() < mean.modulus
            total += message
        estimates.append(mean.decode(total % mean.modulus, mean.participation.clients, round_index=round_index))
    return np.array(estimates)


@pytest.mark.parametrize("noise", [CORRELATED.noise, RESIDUAL])
def test_noise_of_a_round_is_canceled_in_the_next(noise):
    vector, mean = np.full(50, 0.02), replace(CORRELATED, noise=noise)
    errors = np.concatenate([decode_rounds(mean, vector, seed) - vector for seed in range(8)], axis=1)
    scale = mean.mechanism.grid.step**2 / 20
    # In each round: rounding, what is added, what is canceled. In all together: rounding and residual noise of all
    # rounds, and what the last round added beyond that.
    rounding, added, canceled = (scale * variance for variance in (0.25, noise.added_variance, noise.canceled_variance))
    assert errors[1:].var() == pytest.approx(added + canceled + rounding, rel=0.1)
    expected = 6 * rounding + 5 * scale * noise.residual_std**2 + added
    assert errors.sum(axis=0).var() == pytest.approx(expected, rel=0.2)
    assert abs(errors.sum(axis=0).mean()) < 5 * np.sqrt(expected / errors.shape[1])


def test_secure_messages_are_decoded():
    estimates = decode_rounds(CORRELATED, np.full(50, 0.02))
    assert estimates.shape == (6, 50)
    assert np.isfinite(estimates).all()


def test_the_rotation_stays_the_same_with_correlated_noise():
    """Or noise would not cancel."""
    assert CORRELATED.transform(0) == CORRELATED.transform(5)
    assert INDEPENDENT.transform(0) != INDEPENDENT.transform(5)


def test_a_guarantee_counts_both_messages():
    guarantee = CORRELATED.guarantee()
    assert guarantee.bits_under_secagg == 2 * (CORRELATED.modulus.bit_length() - 1)
    assert guarantee.participation.window == 6
    assert guarantee.correlated_noise_ratio != 1
    assert "both of its messages" in str(guarantee)


def test_noise_is_given_where_it_is_correlated_and_only_there():
    state = CORRELATED.begin_noise(SecureRandom())
    for mean, noise_state in ((CORRELATED, None), (INDEPENDENT, state)):
        with pytest.raises(ValueError, match="noise_state"):
            mean.encode(np.zeros(50), SecureRandom(), noise_state=noise_state)
    for use in (lambda: INDEPENDENT.begin_noise(SecureRandom()), lambda: INDEPENDENT.settle(state)):
        with pytest.raises(ValueError, match="noise = None: must be"):
            use()
    with pytest.raises(TypeError, match="SecureRandom"):
        CORRELATED.begin_noise(SeededRandom(1))


@pytest.mark.parametrize(
    "state", [0, np.zeros(64, dtype=np.int64), CORRELATED.noise.sample(63, SecureRandom()), RESIDUAL]
)
def test_other_noise_is_neither_added_nor_canceled(state):
    encode = lambda: CORRELATED.encode(np.zeros(50), SecureRandom(), noise_state=state)  # noqa: E731
    for use in (encode, lambda: CORRELATED.settle(state)):
        with pytest.raises((TypeError, ValueError), match="noise_state"):
            use()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise": True}, "noise = True: must be rqm.CorrelatedNoise"),
        ({"noise": {"gain": 5}}, "noise"),
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
                "participation": replace(PARTICIPATION, sampling="uniform"),
            },
            "honest_fraction = 0.5: must be a number",
        ),
    ],
)
def test_correlated_noise_that_the_proof_does_not_cover_is_refused(change, message):
    with pytest.raises((ValueError, TypeError), match=message):
        replace(CORRELATED, **change)
