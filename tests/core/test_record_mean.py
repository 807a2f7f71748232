"""One record changes what a silo sends by no more than its clip, as the encoder sees it, in integers."""

import numpy as np
import pytest
import torch

from rqm import (
    RQM,
    CorrelatedNoise,
    DiscreteGaussian,
    Gaussian,
    Participation,
    PrivateRecordMean,
    SecureRandom,
    SeededRandom,
    StochasticRounding,
    ThreatModel,
    private_record_mean,
)
from rqm.core.record_mean import RecordSum
from tests.core.exact import encoded_rows

DIM = 100
SILOS = {"clients": 3, "delta": 1e-6, "dim": DIM, "l2_clip": 16.0, "record_clip": 1.0}
MEAN = private_record_mean(epsilon=5, **SILOS)
MECHANISM = DiscreteGaussian(clip=12.8, scale=0.1, steps=401, bits=16)


def distance(mean, first, second):
    """The L2 distance of two sums as the encoder sees them, in the units of the records."""
    sampler = mean.mechanism.discrete.sampler
    rows = encoded_rows(mean, np.stack([first.total, second.total]))
    difference = np.subtract(*sampler.position(rows).astype(float))
    return np.linalg.norm(difference) * 2 * mean.mechanism.clip / (sampler.high - sampler.low)


def records(count, size, seed=0):
    return size * np.random.default_rng(seed).normal(size=(count, DIM))


# -- what one record changes ----------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e-3, 0.05, 1.0, 1e30])
@pytest.mark.parametrize("count", [1, 7, 400])  # the last is scaled down to the public bound
def test_one_record_changes_a_sum_by_no_more_than_its_clip(size, count):
    rows = records(count, size)
    rows[0] *= 1e6
    dtype = torch.float32 if size < 1e3 else torch.float64
    for kind in (np.array, lambda x: torch.tensor(x, dtype=dtype)):
        larger, smaller = MEAN.sum_records(kind(rows)), MEAN.sum_records(kind(rows[1:]))
        assert distance(MEAN, larger, smaller) <= 1.0
        replaced = MEAN.sum_records(kind(np.vstack([-rows[:1], rows[1:]])))
        assert distance(MEAN, larger, replaced) <= 2.0
    single, empty = MEAN.sum_records(rows[:1]), MEAN.sum_records(rows[:0])
    expected = min(1.0, 1e6 * np.linalg.norm(records(1, size)))
    assert distance(MEAN, single, empty) == pytest.approx(expected, rel=1e-2)


def test_a_record_at_the_clip_changes_a_sum_by_all_of_it():
    """So a clip that is slightly too large would be noticed."""
    row = np.ones((1, DIM)) / DIM**0.5
    empty = MEAN.sum_records(row[:0])
    assert 0.999 < MEAN.record_length < 1
    assert 0.999 < distance(MEAN, MEAN.sum_records(5.0 * row), empty) <= 1.0
    wider = private_record_mean(mechanism=MEAN.mechanism, **SILOS | {"record_clip": 1.01})
    assert distance(MEAN, wider.sum_records(5.0 * row), empty) > 1.0


def test_a_mean_over_the_number_of_records_or_without_their_clip_would_change_by_more():
    rows = records(10, 1.0)
    rows[0] *= -100
    clipped = [MEAN.sum_records(rows[start:]) for start in (0, 1)]
    assert distance(MEAN, *clipped) <= 1.0
    divided = [RecordSum(16 * total.total / total.records, 1) for total in clipped]
    assert distance(MEAN, *divided) > 1.0
    unclipped = [RecordSum(16 * rows[start:].mean(axis=0), 1) for start in (0, 1)]
    assert distance(MEAN, *unclipped) > 2.0


# -- sums -----------------------------------------------------------------------------------------


def test_records_are_summed_in_batches():
    rows, total = records(50, 0.3), None
    for batch in np.array_split(rows, 7):
        total = MEAN.sum_records(batch, total)
    assert total.records == 50
    np.testing.assert_allclose(total.total, MEAN.sum_records(rows).total, rtol=1e-12)
    messages = [MEAN.encode_simulated(x, SeededRandom(3)) for x in (total, rows)]
    np.testing.assert_array_equal(*messages)
    many = RecordSum(np.zeros(DIM), 2**20)
    assert MEAN.sum_records(rows[:1], many).records == 2**20 + 1  # no number of records is refused


def test_the_sum_of_all_records_is_decoded():
    mean = private_record_mean(epsilon=50, **SILOS)
    rows = [records(20, 0.02, seed) for seed in range(3)]
    expected, noise = np.concatenate(rows).sum(axis=0), mean.guarantee().noise_multiplier
    simulated = torch.zeros(mean.coordinates, dtype=torch.int32)
    silos = [mean.sum_records(torch.from_numpy(silo_rows)) for silo_rows in rows]
    assert mean.add_messages(silos, simulated, SeededRandom(0), round_index=0).all()
    for total in (sum(mean.encode(silo_rows, SecureRandom()) for silo_rows in rows), simulated.numpy()):
        error = 3 * mean.decode(total, 3) - expected
        assert np.abs(error).max() < 6 * noise
        assert np.linalg.norm(error) == pytest.approx(noise * DIM**0.5, rel=0.4)


def test_a_record_that_is_not_finite_counts_as_zero():
    rows = records(3, 0.05)
    rows[1, 4] = np.nan
    np.testing.assert_allclose(MEAN.sum_records(rows).total, rows[[0, 2]].sum(axis=0), rtol=1e-6)


def test_rows_of_any_dtype_are_summed_and_not_changed():
    rows = torch.ones(2, DIM)
    for tensor in (rows, rows.half(), rows.int(), rows.double()):
        copy = tensor.clone()
        assert MEAN.sum_records(tensor).total.norm() == pytest.approx(2.0, rel=1e-3)
        assert torch.equal(tensor, copy)


@pytest.mark.parametrize("empty", [[], np.array([]), torch.tensor([]), np.empty((0, DIM)), torch.empty(0, DIM)])
def test_no_records_are_a_sum_of_zero_and_a_message_of_the_same_length(empty):
    assert not MEAN.sum_records(empty).total.any()
    assert len(MEAN.encode(empty, SecureRandom())) == MEAN.coordinates
    assert MEAN.sum_records(empty, MEAN.sum_records(records(2, 1.0))).records == 2


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1.0] * DIM, [1.0]], "rows: ragged; every row must have the same length"),
        ([1.0] * DIM, r"rows have shape \(100,\): must be \(records, 100\)"),
        (np.empty((0, 3)), r"rows have shape \(0, 3\)"),
    ],
)
def test_rows_of_another_shape_are_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        MEAN.encode(rows, SecureRandom())


def test_vectors_that_are_no_sums_of_records_are_refused():
    total = torch.zeros(MEAN.coordinates, dtype=torch.int32)
    with pytest.raises(TypeError, match=r"must be what PrivateRecordMean\.sum_records\(\) returned"):
        MEAN.add_messages(torch.zeros(1, DIM), total, SeededRandom(0), round_index=0)


def test_a_trusted_server_adds_noise_in_units_of_the_record_clip():
    mean = private_record_mean(mechanism=Gaussian(2.0), **SILOS | {"record_clip": 3.0})
    assert mean.guarantee().noise_multiplier == 2.0
    total = torch.zeros(mean.coordinates, dtype=torch.float64)
    mean.add_messages([mean.sum_records(torch.zeros(2, DIM))], total, SeededRandom(0), round_index=0)
    revealed = mean.reveal(total, 3, mean.server_noise(lambda round_index: 1), round_index=0)
    assert float(revealed.std()) == pytest.approx(6.0, rel=0.3)


# -- correlated noise -----------------------------------------------------------------------------


def test_a_silo_cancels_its_noise_in_its_next_message():
    noise, order = CorrelatedNoise(50.0), {"rounds": 4, "min_separation": 4}
    mechanism = DiscreteGaussian(clip=16.0, scale=0.002, steps=1001, bits=14)  # a step or two
    mean = private_record_mean(mechanism=mechanism, noise=noise, **SILOS, **order)
    assert not mean.has_second_message
    assert mean.wire_bits == mean.modulus.bit_length() - 1
    rows, state, total = records(20, 0.02), None, 0
    for round_index in range(2):
        pending, state = state, mean.begin_noise(SecureRandom())
        total = total + mean.encode(rows, SecureRandom(), round_index=round_index, noise_state=state)
        if pending is not None:
            total = total + mean.settle(pending)
    exact = noise.settle(state, mean.modulus)
    independent = private_record_mean(mechanism=mechanism, **SILOS, **order)
    plain = sum(independent.encode_simulated(rows, SeededRandom(9, index)) for index in range(2))
    centered = (total + exact - plain + mean.modulus // 2) % mean.modulus - mean.modulus // 2
    assert np.abs(centered).max() < 15 < noise.transient_std


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"record_clip": None}, "record_clip = None: must be given for records"),
        ({"l2_clip": None}, "l2_clip = None: must be given for records"),
        ({"l2_clip": 0.5}, r"l2_clip = 0\.5: must be from 1 to 16384 times a record's clip"),
        ({"l2_clip": 1e6}, r"l2_clip = 1e\+06: must be from 1 to 16384"),
        ({"delta": None}, "delta = None: must be given for records"),
        ({"neighboring": "zero-out"}, "neighboring = 'zero-out': must be 'add-or-remove-one' or 'replace-one'"),
        (
            {"sampling_rate": 0.1, "neighboring": "replace-one"},
            "neighboring = 'replace-one': must be 'add-or-remove-one'",
        ),
        ({"sampling_rate": 0.1, "rounds": 2, "max_participations": 1}, "sampling_rate: must be given without"),
        ({"sampling_rate": 1.5}, r"sampling_rate = 1\.5: must be above 0 and at most 1"),
        ({"noise": CorrelatedNoise(2.0), "sampling_rate": 0.5, "rounds": 5}, "sampling_rate: must not be given with"),
        ({"noise": CorrelatedNoise(2.0), "rounds": 5}, "min_separation = 1: must be larger with correlated noise"),
        ({"noise": "correlated", "rounds": 5, "mechanism": None, "epsilon": 3}, "min_separation = 1: must be larger"),
        ({"noise": CorrelatedNoise(9.0, 2.0, 5), "rounds": 5, "min_separation": 5}, "noise.residual_std: must be 0"),
        ({"mechanism": RQM(margin=1.0)}, "mechanism = 'rqm': no bound is known for records"),
        (
            {"mechanism": StochasticRounding(clip=1000.0, levels=2, margin=1e4), "l2_clip": 16000.0},
            "some of the encoder's positions",
        ),
    ],
)
def test_values_without_a_bound_for_records_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        private_record_mean(**{"mechanism": MECHANISM} | SILOS | change)


@pytest.mark.parametrize(
    ("threat_model", "change", "message"),
    [
        ({"adversary": "outsider"}, {}, "adversary = outsider: must not be given where the unit is a record"),
        ({"honest_fraction": 0.5}, {}, "honest_fraction = 0.5: must not be given where the unit is a record"),
        ({}, {"coordinates": 64}, "coordinates = 64: no bound is known for records"),
        ({"unit": "user"}, {}, "unit = 'user': must be 'record' for a PrivateRecordMean"),
        ({"unit": "user", "neighboring": "add-or-remove-one"}, {}, "neighboring = 'add-or-remove-one': must be"),
        ({"unit": "patient"}, {}, "unit = 'patient': must be one of user, record"),
    ],
)
def test_a_threat_model_that_is_not_for_records_is_refused(threat_model, change, message):
    silos = {name: value for name, value in SILOS.items() if name != "clients"}
    with pytest.raises(ValueError, match=message):
        PrivateRecordMean(
            mechanism=MECHANISM,
            participation=Participation(4, 1, 10, "uniform"),
            threat_model=ThreatModel(**{"unit": "record"} | threat_model),
            **silos | change,
        )
