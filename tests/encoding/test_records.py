"""One record moves what a silo sends by no more than its clip: as the encoder sees it, in integers."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from rqm import Gaussian, PrivateMean, SecureRandom, SeededRandom
from rqm.encoding.calibrate import calibrate_records
from rqm.encoding.records import Gathered, record_length
from rqm.privacy.factorization import Workload

DIM = 100
SILOS = {"unit": "record", "clients": 3, "delta": 1e-6, "dim": DIM, "l2_clip": 16.0, "record_clip": 1.0}
MEAN = PrivateMean(epsilon=5, neighbours="add-remove", **SILOS)


def positions(mean, gathered):
    """Where the encoder rounds from."""
    rows, _ = mean._prepared(np.asarray(gathered.total)[None].copy(), 0)
    return mean.mechanism.channel.recipe.position(mean._within(rows)[0])


def moved(mean, one, other):
    """How far two sums are apart as the encoder sees them, in the units of the records."""
    recipe, clip = mean.mechanism.channel.recipe, mean.mechanism.channel.clip
    apart = positions(mean, one) - positions(mean, other)
    return float(np.linalg.norm(apart.astype(float))) * 2 * clip / (recipe.high - recipe.low)


def records(count, size, seed=0):
    return size * np.random.default_rng(seed).normal(size=(count, DIM))


@pytest.mark.parametrize("size", [1e-3, 0.05, 1.0, 1e30])
@pytest.mark.parametrize("count", [1, 7, 400])  # the last is scaled down to the public bound
def test_one_record_moves_a_sum_by_no_more_than_its_clip(size, count):
    rows = records(count, size)
    rows[0] *= 1e6
    for kind in (np.array, lambda x: torch.tensor(x, dtype=torch.float32 if size < 1e3 else torch.float64)):
        with_it, without = MEAN.gather(kind(rows)), MEAN.gather(kind(rows[1:]))
        assert moved(MEAN, with_it, without) <= 1.0
        swapped = MEAN.gather(kind(np.vstack([-rows[:1], rows[1:]])))
        assert moved(MEAN, with_it, swapped) <= 2.0
    alone = MEAN.gather(rows[:1]), MEAN.gather(rows[:0])
    assert moved(MEAN, *alone) == pytest.approx(min(1.0, 1e6 * np.linalg.norm(records(1, size))), rel=1e-2)


def test_one_that_is_already_at_the_edge_is_moved_by_all_of_it():
    """So that a clip that is a little too large would be seen."""
    one = np.ones((1, DIM)) / DIM**0.5
    apart = moved(MEAN, MEAN.gather(5.0 * one), MEAN.gather(one[:0]))
    assert 0.999 < apart <= 1.0
    wider = PrivateMean(mechanism=MEAN.mechanism, neighbours="add-remove", **SILOS | {"record_clip": 1.01})
    assert moved(MEAN, wider.gather(5.0 * one), MEAN.gather(one[:0])) > 1.0


def test_a_mean_over_the_true_number_of_records_or_a_clip_of_the_batch_would_move_by_more():
    rows = records(10, 1.0)
    rows[0] *= -100
    by_count = [Gathered(16 * rows[i:].mean(axis=0), 1) for i in (0, 1)]  # nobody's record is clipped
    clipped = [MEAN.gather(rows[i:]) for i in (0, 1)]
    divided = [Gathered(16 * one.total / one.records, 1) for one in clipped]
    assert moved(MEAN, *by_count) > 2.0
    assert moved(MEAN, *divided) > 1.0
    assert moved(MEAN, *clipped) <= 1.0


def test_records_are_gathered_in_virtual_batches():
    rows = records(50, 0.3)
    found = None
    for part in np.array_split(rows, 7):
        found = MEAN.gather(part, found)
    assert found.records == 50
    np.testing.assert_allclose(found.total, MEAN.gather(rows).total, rtol=1e-12)
    one, other = (MEAN.simulated(x, SeededRandom(3)) for x in (found, rows))
    np.testing.assert_array_equal(one, other)


def test_the_sum_of_all_records_comes_back():
    rows = [records(20, 0.02, seed) for seed in range(3)]
    loud = PrivateMean(epsilon=50, neighbours="add-remove", **SILOS)
    total = sum(loud.encode(one, SecureRandom()) for one in rows)
    found = 3 * loud.decode(total, 3)
    truth = sum(np.sum(one, axis=0) for one in rows)
    noise = loud.guarantee.noise_multiplier
    assert np.abs(found - truth).max() < 6 * noise
    assert np.linalg.norm(found - truth) == pytest.approx(noise * DIM**0.5, rel=0.4)


def test_what_is_not_finite_counts_as_no_record():
    rows = records(3, 0.05)
    rows[1, 4] = np.nan
    np.testing.assert_allclose(MEAN.gather(rows).total, rows[[0, 2]].sum(axis=0), rtol=1e-6)


def test_rows_are_left_as_they_are_whatever_their_kind():
    rows = torch.ones(2, DIM)
    for one in (rows, rows.half(), rows.int(), rows.double()):
        before = one.clone()
        assert MEAN.gather(one).total.norm() == pytest.approx(2.0, rel=1e-3)
        assert torch.equal(one, before)


def test_an_empty_sample_sends_as_much_as_a_full_one():
    assert MEAN.encode(np.empty((0, DIM)), SecureRandom()).shape == MEAN.encode(records(9, 1.0), SecureRandom()).shape


def test_of_no_records_any_shape_without_rows_will_do_and_what_is_ragged_is_named():
    for nothing in ([], np.array([]), torch.tensor([]), np.empty((0, DIM)), torch.empty(0, DIM)):
        assert len(MEAN.encode(nothing, SecureRandom())) == MEAN.coordinates
        assert MEAN.gather(nothing, MEAN.gather(records(2, 1.0))).records == 2
    for rows, said in (
        ([[1.0] * DIM, [1.0]], "rows: ragged; every row must have the same length"),
        ([1.0] * DIM, "rows have shape \\(100,\\): must be \\(records, 100\\)"),
        (np.empty((0, 3)), "rows have shape \\(0, 3\\)"),
    ):
        with pytest.raises(ValueError, match=said):
            MEAN.encode(rows, SecureRandom())


def test_a_calibration_says_what_it_lacks():
    silos = {"clients": 4, "dim": 50, "delta": 1e-6, "record_clip": 1.0, "l2_clip": 9.0}
    for name in silos:
        with pytest.raises(TypeError, match=f"missing 1 required keyword-only argument: '{name}'"):
            calibrate_records(epsilon=8, rate=0.1, rounds=40, **{one: silos[one] for one in silos if one != name})


def test_baselines_add_noise_in_units_of_a_records_clip():
    mean = PrivateMean(mechanism=Gaussian(2.0), neighbours="add-remove", **SILOS)
    assert mean.guarantee.noise_multiplier == 2.0
    total = torch.zeros(mean.coordinates, dtype=torch.float64)
    mean.add([mean.gather(torch.zeros(2, DIM))], total, SeededRandom(0), round=0)
    noise = mean.revealed(total, 3, seed=1)
    assert float(noise.std()) == pytest.approx(2.0, rel=0.3)


def test_what_was_not_gathered_is_refused():
    with pytest.raises(TypeError, match=r"must be what PrivateMean\.gather returned"):
        MEAN.add(torch.zeros(1, DIM), torch.zeros(MEAN.coordinates, dtype=torch.int32), SeededRandom(0), round=0)
    with pytest.raises(ValueError, match="rows have shape \\(100,\\): must be \\(records, 100\\)"):
        MEAN.encode(np.zeros(DIM), SecureRandom())
    assert MEAN.gather(records(1, 1.0), Gathered(np.zeros(DIM), 2**20)).records == 2**20 + 1  # no count is refused
    assert not MEAN.gather(np.zeros((0, DIM))).total.any()
    users = PrivateMean(epsilon=1, clients=100, dim=DIM)
    with pytest.raises(ValueError, match="unit = 'user'"):
        users.gather(records(1, 1.0))


def test_a_record_clip_that_is_lost_among_positions_is_refused():
    from rqm import Rounding

    tiny = SILOS | {"l2_clip": 16000.0}
    with pytest.raises(ValueError, match="some of the encoder's positions"):
        PrivateMean(mechanism=Rounding(clip=1000.0, levels=2, margin=1e4), neighbours="add-remove", **tiny)
    assert 0.999 < record_length(MEAN) < 1


@pytest.mark.slow
def test_of_secret_draws_and_fixed_orders_the_one_with_the_least_noise_in_the_models_is_taken():
    silos = {"clients": 4, "dim": 20, "delta": 1e-6, "l2_clip": 16.0, "record_clip": 1.0}
    asked = {
        "rare": {"epsilon": 1, "rate": 0.001, "rounds": 20},
        "often": {"epsilon": 8, "rate": 0.1, "rounds": 40},
        "all": {"epsilon": 8, "rate": 1.0, "rounds": 3},
    }
    found = {name: calibrate_records(**one, **silos) for name, one in asked.items()}
    assert found["rare"].mean.record_rate == 0.001
    assert found["rare"].why.startswith("Secret draws: the least noise in the models; a fixed order of 20 batches ")
    assert (found["often"].mean.separation, found["often"].mean.cancel > 1) == (10, True)
    assert "; secret draws 1." in found["often"].why
    assert found["all"].mean.cancel is None
    for name, one in found.items():
        assert 0.95 < one.mean.guarantee.epsilon / asked[name]["epsilon"] <= 1
    other = calibrate_records(**asked["often"], **silos, workload=Workload(40, 0.0, "constant"))
    assert other.mean.cancel != found["often"].mean.cancel  # what is best depends on how the server steps


PAGE = Path(__file__).parents[2] / "docs" / "silos.md"
ROW = r"^\| (\d+) \| ([\d,]+) \| (\d+) \| (\d+), (\.\d+) \| (\d+) \| ([\d.]+) \| (\d+) \|$"


@pytest.mark.slow  # half a minute each
@pytest.mark.parametrize("row", re.findall(ROW, PAGE.read_text(), re.M), ids=lambda row: f"{row[0]}-{row[1]}")
def test_the_noise_of_silos_over_a_trusted_servers_is_what_the_page_says(row):
    """By dp-accounting's own account of the trusted server."""
    import dp_accounting as dp

    clients, dim, bound, rounds, rate, epsilon, over, bits = (float(one.replace(",", "")) for one in row)
    who = {"unit": "record", "neighbours": "add-remove", "clients": int(clients), "dim": int(dim), "delta": 1e-6}
    who |= {"l2_clip": bound, "record_clip": 1.0, "rounds": int(rounds), "record_rate": rate}
    found = PrivateMean(epsilon=epsilon, **who).guarantee
    assert found.noise_std_over_gaussian == pytest.approx(over, abs=6e-4)
    assert found.noise_std_over_gaussian <= 1.03
    assert found.bits_under_secagg == bits <= 16
    accountant = dp.pld.PLDAccountant()
    trusted = dp.GaussianDpEvent(found.noise_multiplier / found.noise_std_over_gaussian)
    accountant.compose(dp.PoissonSampledDpEvent(rate, trusted), int(rounds))
    assert accountant.get_epsilon(1e-6) == pytest.approx(found.epsilon, rel=5e-3)


def test_the_page_has_six_such_settings_from_four_to_a_hundred_silos():
    rows = re.findall(ROW, PAGE.read_text(), re.M)
    assert len(rows) == 6
    assert {rows[0][0], rows[-1][0]} == {"4", "100"}
