"""One record moves what a silo sends by no more than its clip: as the encoder sees it, in integers."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from rqm import Gaussian, SecureRandom, SeededRandom, StochasticRounding, private_mean, private_record_mean
from rqm.core.record_mean import RecordSum, record_length
from rqm.core.search import calibrate_records
from rqm.correlated.factorization import Workload

DIM = 100
SILOS = {"clients": 3, "delta": 1e-6, "dim": DIM, "l2_clip": 16.0, "record_clip": 1.0}
MEAN = private_record_mean(epsilon=5, **SILOS)


def positions(mean, gathered):
    """Where the encoder rounds from."""
    rows, _ = mean._prepared(np.asarray(gathered.total)[None].copy(), 0)
    return mean.mechanism.discrete.sampler.position(mean._within(rows)[0])


def distance(mean, first, second):
    """The L2 distance of two sums as the encoder sees them, in the units of the records."""
    recipe, clip = mean.mechanism.discrete.sampler, mean.mechanism.discrete.clip
    difference = positions(mean, first) - positions(mean, second)
    return float(np.linalg.norm(difference.astype(float))) * 2 * clip / (recipe.high - recipe.low)


def records(count, size, seed=0):
    return size * np.random.default_rng(seed).normal(size=(count, DIM))


@pytest.mark.parametrize("size", [1e-3, 0.05, 1.0, 1e30])
@pytest.mark.parametrize("count", [1, 7, 400])  # the last is scaled down to the public bound
def test_one_record_moves_a_sum_by_no_more_than_its_clip(size, count):
    rows = records(count, size)
    rows[0] *= 1e6
    for kind in (np.array, lambda x: torch.tensor(x, dtype=torch.float32 if size < 1e3 else torch.float64)):
        with_it, without = MEAN.sum_records(kind(rows)), MEAN.sum_records(kind(rows[1:]))
        assert distance(MEAN, with_it, without) <= 1.0
        swapped = MEAN.sum_records(kind(np.vstack([-rows[:1], rows[1:]])))
        assert distance(MEAN, with_it, swapped) <= 2.0
    alone = MEAN.sum_records(rows[:1]), MEAN.sum_records(rows[:0])
    assert distance(MEAN, *alone) == pytest.approx(min(1.0, 1e6 * np.linalg.norm(records(1, size))), rel=1e-2)


def test_a_record_at_the_clip_moves_a_sum_by_all_of_it():
    """So that a clip that is a little too large would be noticed."""
    row = np.ones((1, DIM)) / DIM**0.5
    assert 0.999 < distance(MEAN, MEAN.sum_records(5.0 * row), MEAN.sum_records(row[:0])) <= 1.0
    wider = private_record_mean(mechanism=MEAN.mechanism, **SILOS | {"record_clip": 1.01})
    assert distance(MEAN, wider.gather(5.0 * row), MEAN.sum_records(row[:0])) > 1.0


def test_a_mean_over_the_true_number_of_records_or_a_clip_of_the_batch_would_move_by_more():
    rows = records(10, 1.0)
    rows[0] *= -100
    by_count = [RecordSum(16 * rows[i:].mean(axis=0), 1) for i in (0, 1)]  # no record is clipped
    clipped = [MEAN.sum_records(rows[i:]) for i in (0, 1)]
    divided = [RecordSum(16 * gathered.total / gathered.records, 1) for gathered in clipped]
    assert distance(MEAN, *by_count) > 2.0
    assert distance(MEAN, *divided) > 1.0
    assert distance(MEAN, *clipped) <= 1.0


def test_records_are_gathered_in_virtual_batches():
    rows = records(50, 0.3)
    gathered = None
    for batch in np.array_split(rows, 7):
        gathered = MEAN.sum_records(batch, gathered)
    assert gathered.records == 50
    np.testing.assert_allclose(gathered.total, MEAN.sum_records(rows).total, rtol=1e-12)
    messages = [MEAN.encode_simulated(x, SeededRandom(3)) for x in (gathered, rows)]
    np.testing.assert_array_equal(*messages)


def test_the_sum_of_all_records_comes_back():
    rows = [records(20, 0.02, seed) for seed in range(3)]
    mean = private_record_mean(epsilon=50, **SILOS)
    total = sum(mean.encode(silo_rows, SecureRandom()) for silo_rows in rows)
    error = 3 * mean.decode(total, 3) - sum(np.sum(silo_rows, axis=0) for silo_rows in rows)
    noise = mean.guarantee().noise_multiplier
    assert np.abs(error).max() < 6 * noise
    assert np.linalg.norm(error) == pytest.approx(noise * DIM**0.5, rel=0.4)


def test_what_is_not_finite_counts_as_no_record():
    rows = records(3, 0.05)
    rows[1, 4] = np.nan
    np.testing.assert_allclose(MEAN.sum_records(rows).total, rows[[0, 2]].sum(axis=0), rtol=1e-6)


def test_rows_are_left_as_they_are_whatever_their_kind():
    rows = torch.ones(2, DIM)
    for tensor in (rows, rows.half(), rows.int(), rows.double()):
        before = tensor.clone()
        assert MEAN.sum_records(tensor).total.norm() == pytest.approx(2.0, rel=1e-3)
        assert torch.equal(tensor, before)


def test_an_empty_sample_sends_as_much_as_a_full_one():
    assert MEAN.encode(np.empty((0, DIM)), SecureRandom()).shape == MEAN.encode(records(9, 1.0), SecureRandom()).shape


def test_any_shape_without_rows_is_no_record_and_ragged_rows_are_refused():
    for empty in ([], np.array([]), torch.tensor([]), np.empty((0, DIM)), torch.empty(0, DIM)):
        assert len(MEAN.encode(empty, SecureRandom())) == MEAN.coordinates
        assert MEAN.sum_records(empty, MEAN.sum_records(records(2, 1.0))).records == 2
    for rows, message in (
        ([[1.0] * DIM, [1.0]], "rows: ragged; every row must have the same length"),
        ([1.0] * DIM, "rows have shape \\(100,\\): must be \\(records, 100\\)"),
        (np.empty((0, 3)), "rows have shape \\(0, 3\\)"),
    ):
        with pytest.raises(ValueError, match=message):
            MEAN.encode(rows, SecureRandom())


def test_a_calibration_names_a_missing_argument():
    silos = {"clients": 4, "dim": 50, "delta": 1e-6, "record_clip": 1.0, "l2_clip": 9.0}
    for name in silos:
        with pytest.raises(TypeError, match=f"missing 1 required keyword-only argument: '{name}'"):
            calibrate_records(
                epsilon=8, sampling_rate=0.1, rounds=40, **{key: silos[key] for key in silos if key != name}
            )


def test_baselines_add_noise_in_units_of_a_records_clip():
    mean = private_record_mean(mechanism=Gaussian(2.0), **SILOS)
    assert mean.guarantee().noise_multiplier == 2.0
    total = torch.zeros(mean.coordinates, dtype=torch.float64)
    mean.add_messages([mean.sum_records(torch.zeros(2, DIM))], total, SeededRandom(0), round_index=0)
    noise = mean.revealed(total, 3, seed=1)
    assert float(noise.std()) == pytest.approx(2.0, rel=0.3)


def test_what_was_not_gathered_is_refused():
    with pytest.raises(TypeError, match=r"must be what PrivateMean\.gather returned"):
        MEAN.add_messages(
            torch.zeros(1, DIM), torch.zeros(MEAN.coordinates, dtype=torch.int32), SeededRandom(0), round_index=0
        )
    with pytest.raises(ValueError, match="rows have shape \\(100,\\): must be \\(records, 100\\)"):
        MEAN.encode(np.zeros(DIM), SecureRandom())
    assert (
        MEAN.sum_records(records(1, 1.0), RecordSum(np.zeros(DIM), 2**20)).records == 2**20 + 1
    )  # no count is refused
    assert not MEAN.sum_records(np.zeros((0, DIM))).total.any()
    users = private_mean(epsilon=1, clients=100, dim=DIM)
    with pytest.raises(ValueError, match="unit = 'user'"):
        users.gather(records(1, 1.0))


def test_a_record_clip_that_is_lost_among_positions_is_refused():
    tiny = SILOS | {"l2_clip": 16000.0}
    with pytest.raises(ValueError, match="some of the encoder's positions"):
        private_record_mean(mechanism=StochasticRounding(clip=1000.0, levels=2, margin=1e4), **tiny)
    assert 0.999 < record_length(MEAN) < 1


@pytest.mark.slow
def test_of_poisson_sampling_and_fixed_orders_the_one_with_the_least_noise_in_the_models_is_taken():
    silos = {"clients": 4, "dim": 20, "delta": 1e-6, "l2_clip": 16.0, "record_clip": 1.0}
    questions = {
        "rare": {"epsilon": 1, "sampling_rate": 0.001, "rounds": 20},
        "often": {"epsilon": 8, "sampling_rate": 0.1, "rounds": 40},
        "all": {"epsilon": 8, "sampling_rate": 1.0, "rounds": 3},
    }
    orders = {name: calibrate_records(**question, **silos) for name, question in questions.items()}
    assert orders["rare"].mean.sampling_rate == 0.001
    assert orders["rare"].why.startswith("Poisson sampling: the least noise in the model; a fixed order of 20 batches ")
    often = orders["often"].mean
    assert (often.participation.min_separation, often.noise.transient_std > 1) == (10, True)
    assert "; Poisson sampling 1." in orders["often"].why
    assert orders["all"].mean.noise is None
    for name, order in orders.items():
        assert 0.95 < order.mean.guarantee().epsilon / questions[name]["epsilon"] <= 1
    other = calibrate_records(**questions["often"], **silos, workload=Workload(40, 0.0, "constant"))
    assert other.mean.noise != often.noise  # what is best depends on how the server steps


PAGE = Path(__file__).parents[2] / "docs" / "silos.md"
ROW = r"^\| (\d+) \| ([\d,]+) \| (\d+) \| (\d+), (\.\d+) \| (\d+) \| ([\d.]+) \| (\d+) \|$"


@pytest.mark.slow  # half a minute each
@pytest.mark.parametrize("row", re.findall(ROW, PAGE.read_text(), re.M), ids=lambda row: f"{row[0]}-{row[1]}")
def test_the_noise_of_silos_over_a_trusted_servers_is_as_documented(row):
    """By dp-accounting's result for the trusted server."""
    import dp_accounting as dp

    clients, dim, bound, rounds, rate, epsilon, ratio, bits = (float(cell.replace(",", "")) for cell in row)
    silos = {"clients": int(clients), "dim": int(dim), "delta": 1e-6, "l2_clip": bound, "record_clip": 1.0}
    guarantee = private_record_mean(epsilon=epsilon, rounds=int(rounds), sampling_rate=rate, **silos).guarantee()
    assert guarantee.noise_std_over_gaussian == pytest.approx(ratio, abs=6e-4)
    assert guarantee.noise_std_over_gaussian <= 1.03
    assert guarantee.bits_under_secagg == bits <= 16
    accountant = dp.pld.PLDAccountant()
    trusted = dp.GaussianDpEvent(guarantee.noise_multiplier / guarantee.noise_std_over_gaussian)
    accountant.compose(dp.PoissonSampledDpEvent(rate, trusted), int(rounds))
    assert accountant.get_epsilon(1e-6) == pytest.approx(guarantee.epsilon, rel=5e-3)


def test_the_page_has_six_such_settings_from_four_to_a_hundred_silos():
    rows = re.findall(ROW, PAGE.read_text(), re.M)
    assert len(rows) == 6
    assert {rows[0][0], rows[-1][0]} == {"4", "100"}
