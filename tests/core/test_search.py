"""A search reaches ε or says which is possible: for every mechanism, for users and for records."""

import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from rqm import (
    CorrelatedNoise,
    Gaussian,
    Participation,
    PrivateMean,
    SecureRandom,
    StochasticRounding,
    ThreatModel,
    advise,
    calibrate,
    calibrate_records,
    mean_from_dict,
    private_mean,
    private_record_mean,
)
from rqm.accounting.calibration import Target, fit
from rqm.accounting.release import Release
from rqm.core.transform import second_clip
from rqm.correlated.factorization import Workload
from rqm.correlated.iterates import iterate_noise
from rqm.mechanisms.banded import BandedGaussian
from rqm.registry import BUILT_IN
from tests.core.exact import ONE_BIT, encoded_rows, squared_distance

KINDS = [mechanism.kind for mechanism in BUILT_IN if mechanism.adds_noise and mechanism.kind != "table"]
"""All but the table, which has no noise to adjust."""
CLIENTS, DIMS, EPSILONS = (10, 100, 1000, 10_000), (1, 64, 1024, 2**16, 2**20), (0.5, 1, 3, 8, 10)
POSSIBLE = re.compile(r"(?:must be at least|possible is) ([\d.e+-]+)$")
SAMPLE = [(10, 64, 3), (100, 1024, 1), (1000, 2**20, 10), (10, 1, 8)]
ONE_ROUND = {"population": 10**6, "rounds": 1, "delta": 1e-6}
CORRELATED = {"noise": "correlated", "population": 10**5, "rounds": 5, "clients": 1000, "dim": 64, "epsilon": 1}

# -- every mechanism ------------------------------------------------------------------------------


def failure(kind, clients, dim, epsilon):
    """What is wrong with a calibration, or None."""
    setting = f"{kind}, {clients} clients, {dim} coordinates, ε = {epsilon}"
    try:
        reached = calibrate(kind, epsilon=epsilon, clients=clients, dim=dim, **ONE_ROUND).epsilon
    except ValueError as error:
        match = POSSIBLE.search(str(error))
        return None if match and float(match[1]) > 0 else f"{setting}: {error}"
    return None if 0.98 * epsilon <= reached <= epsilon else f"{setting}: {reached}"


@pytest.mark.parametrize("kind", KINDS)
def test_mechanisms_reach_epsilon_or_name_what_is_possible(kind):
    assert [message for setting in SAMPLE if (message := failure(kind, *setting))] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clients", CLIENTS)
def test_mechanisms_reach_epsilon_on_the_whole_grid(kind, clients):
    assert [message for setting in product(DIMS, EPSILONS) if (message := failure(kind, clients, *setting))] == []


@pytest.mark.slow
def test_an_epsilon_that_is_named_as_possible_is_reached():
    values = {"clients": 1000, "dim": 1, **ONE_ROUND}
    with pytest.raises(ValueError, match=r"cannot be adjusted so finely; possible is") as refused:
        calibrate("binomial", epsilon=10, **values)
    possible = float(POSSIBLE.search(str(refused.value))[1])
    assert 0.98 * possible <= calibrate("binomial", epsilon=possible, **values).epsilon <= possible


@pytest.mark.parametrize(
    ("clients", "dim", "epsilon"),
    [(10, 64, 3), (1000, 2**20, 10), pytest.param(100, 1024, 1, marks=pytest.mark.slow)],
)
def test_the_adviser_compares_at_equal_epsilon(clients, dim, epsilon):
    candidates = advise(clients=clients, population=10**6, dim=dim, epsilon=epsilon, delta=1e-6).candidates
    assert {"RQM, wide margin", "PBM", "1 bit"} <= {candidate.name for candidate in candidates}
    assert all(0.99 * epsilon <= candidate.epsilon <= epsilon for candidate in candidates)


def test_a_calibration_clips_vectors():
    """The mechanism alone does not: a long vector would have several times the stated ε."""
    calibration = calibrate("rounding", levels=2, epsilon=1, clients=1000, dim=2**10, **ONE_ROUND)
    mean, vector = calibration.private_mean(), np.full((1, 2**10), 100.0)
    assert mean.guarantee().to_dict() == calibration.guarantee.to_dict()
    assert mean.mechanism == calibration.mechanism
    budget = 4 * mean.quantizer.budget
    assert squared_distance(mean.mechanism, encoded_rows(mean, vector)[0]) <= budget
    assert squared_distance(mean.mechanism, vector[0]) > 10 * budget


def test_a_trusted_server_with_poisson_sampling_has_no_private_mean():
    users = {"clients": 10, "population": 100, "rounds": 5, "dim": 4}
    poisson = calibrate("gaussian", epsilon=3, neighboring="add-or-remove-one", adversary="outsider", **users)
    assert 2.99 < poisson.epsilon <= 3
    with pytest.raises(TypeError, match="trusted server"):
        poisson.private_mean()
    for change in ({"adversary": "server"}, {"mechanism": "rounding"}):
        with pytest.raises(ValueError, match="must come with the mechanism gaussian and the adversary outsider"):
            calibrate(
                **{"mechanism": "gaussian", "adversary": "outsider", **users} | change,
                epsilon=3,
                neighboring="add-or-remove-one",
            )


# -- private_mean ---------------------------------------------------------------------------------


def test_a_mechanism_is_found_for_an_epsilon():
    values = {"delta": 1e-5, "clients": 50, "dim": 20, "l2_clip": 3.0}
    mean = private_mean(epsilon=2, **values)
    assert 1 < mean.guarantee().epsilon <= 2
    assert mean.mechanism.clip == pytest.approx(4 * 3.0 / 32**0.5)
    assert mean.guarantee().dim == mean.coordinates == 32
    assert "user-level (replace-one), against the server" in str(mean.guarantee())
    again = private_mean(mechanism=mean.mechanism, epsilon=2, **values)
    assert again == mean
    assert hash(again) == hash(mean)


@pytest.mark.slow
def test_a_mechanism_is_found_for_few_coordinates():
    values = {"epsilon": 3, "delta": 1e-5, "clients": 200, "dim": 10_000, "coordinates": 512, "l2_clip": 2.0}
    mean = private_mean(**values)
    guarantee = mean.guarantee()
    assert 2.9 < guarantee.epsilon <= 3
    assert guarantee.dim == mean.coordinates == 512
    assert guarantee.subset.total == 16_384
    assert mean.mechanism.clip == pytest.approx(4 * 2.0 * second_clip(512) / 512**0.5)
    assert guarantee.wire_bits_per_parameter == pytest.approx(512 * mean.wire_bits / 10_000)
    assert guarantee.noise_std_over_gaussian < 1.1 * second_clip(512)
    assert "a public choice of 512 of 16,384" in str(guarantee)
    assert f"{guarantee.wire_bits_per_parameter:.4g} bits per parameter" in str(guarantee)
    pbm = calibrate("pbm", levels=5, rounds=1, **values).private_mean()
    assert (pbm.coordinates, pbm.l2_bound, pbm.mechanism.clip) == (512, mean.l2_bound, mean.mechanism.clip)
    assert 2.9 < pbm.guarantee().epsilon <= 3
    message = mean.encode(np.ones(10_000), SecureRandom())
    assert message.shape == (512,)
    assert mean.decode(200 * message % mean.modulus, 200).shape == (10_000,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dim": 0}, "dim = 0"),
        ({"clients": 0}, "clients = 0"),
        ({"l2_clip": 0.0}, "l2_clip = 0.0"),
        ({"l2_clip": float("nan")}, "l2_clip = nan"),
        ({"delta": 1.0}, "delta = 1.0"),
        ({"rounds": 0}, "rounds = 0"),
        ({"adversary": "nobody"}, "adversary = 'nobody'"),
        ({"noise": "patient"}, "noise = 'patient': must be 'independent', 'correlated'"),
        ({"noise": "correlated"}, r"noise = 'correlated': must be rqm\.CorrelatedNoise"),
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
        ({"coordinates": 0}, "coordinates = 0: must be a whole number from 1 to 4"),
        ({"coordinates": 5}, "coordinates = 5"),
        ({"coordinates": 2, "rotate": False}, "must come with an L2 clip and a rotation"),
        ({"coordinates": 2, "l2_clip": None}, "must come with an L2 clip and a rotation"),
        ({"coordinates": 2, "noise": CorrelatedNoise(5.0), "rounds": 3}, "with correlated noise"),
        ({"coordinates": 2, "noise": "correlated", "mechanism": None, "epsilon": 1.0}, "with correlated noise"),
        ({"coordinates": 2, "mechanism": BandedGaussian(noise_multiplier=1.0, bands=2)}, "with correlated"),
    ],
)
def test_values_without_a_guarantee_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        private_mean(**{"mechanism": ONE_BIT, "dim": 3, "clients": 3} | change)


# -- correlated noise -----------------------------------------------------------------------------


def test_correlated_noise_is_found_for_an_epsilon():
    values = CORRELATED | {"dim": 60_000, "rounds": 30, "max_participations": 1}
    mean = private_mean(delta=1e-6, **values)
    guarantee = mean.guarantee()
    assert 0.98 < guarantee.epsilon <= 1
    assert mean.noise.transient_std > 0.5
    assert guarantee.correlated_noise_ratio < 0.6
    assert guarantee.noise_std_over_gaussian < 1.05


@pytest.mark.slow
def test_residual_noise_leaves_less_in_the_models():
    users = {"clients": 1000, "population": 10**6, "max_participations": 1, "rounds": 40}
    values = {"delta": 1e-6, "dim": 2**16}
    mean = private_mean(epsilon=1, noise="correlated", **users, **values)
    assert mean.noise.residual_std
    assert 0.98 <= mean.guarantee().epsilon <= 1
    assert mean_from_dict(mean.to_dict()) == mean
    noise = CorrelatedNoise(iterate_noise(Workload(40)).best_ratio(40) / 2)
    participation = Participation(**users)
    target = Target(1.0, 1e-6, participation, ThreatModel(), Release(Gaussian(1.0), 2**16, 1.0))
    mechanism = fit(StochasticRounding(clip=4 / 2**8, levels=2), target, noise)
    transient = PrivateMean(mechanism=mechanism, noise=noise, participation=participation, l2_clip=1.0, **values)
    assert transient.guarantee().epsilon <= 1
    ratios = [candidate.guarantee().correlated_noise_ratio for candidate in (mean, transient)]
    assert ratios[0] < 0.97 * ratios[1]


@pytest.mark.parametrize("noise", [8, -1, 0, "nonsense", True, CorrelatedNoise(8.0)])
def test_noise_is_searched_for_together_with_the_mechanism(noise):
    message = r"noise = .*: must be 'independent', 'correlated'|must be 'correlated' where no"
    with pytest.raises(ValueError, match=message):
        private_mean(**CORRELATED | {"max_participations": 1, "noise": noise})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_participations": 2}, "min_separation"),  # without rounds in between noise is not canceled in time
        ({"adversary": "outsider"}, "adversary = 'server'"),
        ({"honest_fraction": 0.5, "max_participations": 1}, "honest_fraction = 0.5: must be a number"),
    ],
)
def test_a_search_names_what_the_proof_of_correlated_noise_does_not_cover(change, message):
    with pytest.raises(ValueError, match=message):
        private_mean(**CORRELATED | change)


# -- records --------------------------------------------------------------------------------------


def test_a_calibration_of_records_names_a_missing_argument():
    silos = {"clients": 4, "dim": 50, "delta": 1e-6, "record_clip": 1.0, "l2_clip": 9.0}
    for name in silos:
        values = {key: silos[key] for key in silos if key != name}
        with pytest.raises(TypeError, match=f"missing 1 required keyword-only argument: '{name}'"):
            calibrate_records(epsilon=8, sampling_rate=0.1, rounds=40, **values)


@pytest.mark.slow
def test_the_order_of_records_with_the_least_noise_in_the_models_is_chosen():
    silos = {"clients": 4, "dim": 20, "delta": 1e-6, "l2_clip": 16.0, "record_clip": 1.0}
    questions = {
        "rare": {"epsilon": 1, "sampling_rate": 0.001, "rounds": 20},
        "often": {"epsilon": 8, "sampling_rate": 0.1, "rounds": 40},
        "all": {"epsilon": 8, "sampling_rate": 1.0, "rounds": 3},
    }
    orders = {name: calibrate_records(**question, **silos) for name, question in questions.items()}
    assert orders["rare"].mean.sampling_rate == 0.001
    assert orders["rare"].reason.startswith(
        "Poisson sampling: the least noise in the model; a fixed order of 20 batches "
    )
    often = orders["often"].mean
    assert (often.participation.min_separation, often.noise.transient_std > 1) == (10, True)
    assert "; Poisson sampling 1." in orders["often"].reason
    assert orders["all"].mean.noise is None
    for name, order in orders.items():
        assert 0.95 < order.mean.guarantee().epsilon / questions[name]["epsilon"] <= 1
    constant_rate = calibrate_records(**questions["often"], **silos, workload=Workload(40, 0.0, "constant"))
    assert constant_rate.mean.noise != often.noise  # the best noise depends on how the server steps


PAGE = Path(__file__).parents[2] / "docs" / "silos.md"
ROW = r"^\| (\d+) \| ([\d,]+) \| (\d+) \| (\d+), (\.\d+) \| (\d+) \| ([\d.]+) \| (\d+) \|$"
ROWS = re.findall(ROW, PAGE.read_text(), re.M)


@pytest.mark.slow  # half a minute each
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}-{row[1]}")
def test_the_noise_of_silos_over_a_trusted_servers_is_as_documented(row):
    """With dp-accounting's result for the trusted server."""
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


def test_six_settings_from_four_to_a_hundred_silos_are_documented():
    assert len(ROWS) == 6
    assert (ROWS[0][0], ROWS[-1][0]) == ("4", "100")
