"""Bounds with correlated noise: against whole small runs that are enumerated, against Gaussians and the accountant."""

import json
import re
from functools import reduce
from itertools import product
from math import ceil, inf, sqrt

import numpy as np
import pytest

from rqm import CorrelatedNoise, Participation, StochasticRounding, private_mean
from rqm.correlated.handover import gaussian_squared_mu
from rqm.verify import epsilon_bound, verify
from rqm.verify.correlated_bound import bits_ratio, participation_mu, path_ratio, path_weights, shift_ratio
from rqm.verify.gaussian_bound import gaussian_epsilon
from rqm.verify.integer_pmfs import end_pmfs, transient_noise
from rqm.verify.ledger_claims import read_claims
from tests.correlated.enumeration import (
    Scheme,
    always,
    bernoulli_sum,
    discrete_gaussian,
    joint_pmf,
    pmf_variance,
    smallest_mu,
    transient_only,
)
from tests.verify.ledgers import change_mean, describe, ledger_bytes, silo_ledger, silo_plan

MECHANISM = StochasticRounding(clip=4 / 1024, levels=2, margin=8.3)


def mean_of(mechanism=MECHANISM, noise=26.0, min_separation=64, **values):
    noise = CorrelatedNoise.of(noise) if noise else "independent"
    values = {"dim": 2**20, "clients": 1000, "delta": 1e-6, "rounds": 200, **values}
    return private_mean(mechanism=mechanism, noise=noise, min_separation=min_separation, **values)


def claims_of(*args, **values):
    return read_claims(describe(mean_of(*args, **values)))


# -- transient noise of users ---------------------------------------------------------------------


def gaussian_mu(claims, honest, window):
    """μ if all noise were Gaussian."""
    squared_mu = path_weights(0.0, honest * claims.noise["transient_std"] ** 2, 1, honest / 4, window)[-1][2]
    return sqrt(claims.squared_length * squared_mu) / (1 + claims.mechanism["margin"])


@pytest.mark.parametrize(("margin", "noise", "clients", "ratio"), [(8.3, 26.0, 1000, 1.04), (33.0, 26.0, 100, 1.06)])
def test_mu_of_wide_noise_is_nearly_that_of_gaussians(margin, noise, clients, ratio):
    claims = claims_of(StochasticRounding(clip=4 / 1024, levels=2, margin=margin), noise, 34, clients=clients)
    mu = participation_mu(claims, clients, 1e-10)
    assert 1 < mu / gaussian_mu(claims, clients, 34) < ratio


@pytest.mark.parametrize(("clients", "margin", "std"), [(2, 1.0, 0.6), (3, 0.3, 0.5), (4, 3.0, 0.5), (4, 1.0, 0.7)])
@pytest.mark.parametrize("min_separation", [1, 2])
def test_no_run_is_easier_to_tell_apart(clients, margin, std, min_separation):
    """All clients of one or two rounds; inputs depend on what was seen; at last the remaining noise is shown."""
    mechanism, failure, nearest = StochasticRounding(levels=2, margin=margin), 1e-6, 0.0
    claims = claims_of(mechanism, std, min_separation, dim=1, clients=clients, rotate=False, rounds=4)
    assert claims.window == min_separation
    low, high = (mechanism.pmf(x)[1] for x in (-1.0, 1.0))
    others = [bernoulli_sum([high] * k + [low] * (clients - 1 - k)) for k in range(clients)]
    noise = transient_only(transient_noise(std, 1)[0])
    mu, rng = participation_mu(claims, clients, failure), np.random.default_rng(clients)
    for case in range(2 * clients):
        table = rng.integers(0, clients, 101) if case >= clients else np.full(101, case)
        scheme = Scheme(
            noise,
            [clients] * min_separation + [0],
            [others] * min_separation + [[np.ones(1)]],
            choose=lambda index, past, table=table: table[past.sum(axis=1) % 101] * (index < min_separation),
        )
        pair = joint_pmf(scheme, [{0: always(probability)} for probability in (low, high)])
        nearest = max(nearest, smallest_mu(*pair, failure) / mu)
    assert 0.3 < nearest <= 1
    assert min_separation > 1 or nearest > 0.97


@pytest.mark.parametrize(("clients", "margin"), [(340, 0.4), (360, 0.4), (500, 0.05), (512, 0.4), (1000, 0.3)])
def test_sums_with_ends_below_all_floats_have_no_small_mu(clients, margin):
    mechanism = StochasticRounding(clip=0.125, levels=2, margin=margin)
    claims = claims_of(mechanism, 8.0, 50, dim=1024, clients=clients)
    by_rounding = (2 / (1 + margin)) * 8 / sqrt(clients)  # about, at zero
    assert 0.1 * by_rounding < participation_mu(claims, clients, 1e-10) < 20 * by_rounding


@pytest.mark.parametrize("number", [1, 2, 9])
def test_the_ratio_of_bits_dominates_that_of_every_input(number):
    low, high, _ = end_pmfs(StochasticRounding(levels=2, margin=1.5).to_dict())
    ratio = bits_ratio(low, high, number, number * float(low[0] * low[1]))
    rng, nearest = np.random.default_rng(number), 0.0
    points = np.concatenate([[0.0], np.geomspace(0.05, 20, 60)])
    bound = np.array([np.maximum(ratio.values - q, 0) @ ratio.pmf + ratio.unmatched for q in points])
    for case in range(30):
        ends = rng.integers(0, 2, number) if case > 3 else np.full(number, case % 2)
        noise = bernoulli_sum([high[1] if is_high else low[1] for is_high in ends])
        p, q = np.append(0.0, noise), np.append(noise, 0.0)
        exact = np.array([np.maximum(p - factor * q, 0).sum() for factor in points])
        assert (exact <= bound + 1e-9).all()
        nearest = max(nearest, float((exact[20:40] / bound[20:40]).max()))
    assert nearest > 0.9


# -- a part of the noise is residual --------------------------------------------------------------


@pytest.mark.parametrize(
    ("clients", "margin", "noise"),
    [
        pytest.param(1000, 2.27, CorrelatedNoise(27.0, 1.0, 50), marks=pytest.mark.slow),
        (100, 7.4, CorrelatedNoise(54.0, 1.5, 16)),
    ],
)
def test_mu_with_residual_noise_is_nearly_that_of_gaussians(clients, margin, noise):
    claims = claims_of(StochasticRounding(clip=4 / 1024, levels=2, margin=margin), noise, 34, clients=clients)
    variances = clients * noise.residual_std**2, clients * noise.transient_std**2
    exact = gaussian_squared_mu(34, *variances, noise.gain, clients / 4)
    ratio = participation_mu(claims, clients, 1e-10) / (sqrt(exact * claims.squared_length) / (1 + margin))
    assert 1 < ratio < 1.05


def two_rounds_pmf(residual, transient, gain, bits, user_bit):
    """The pmf of both sums, of a user who is in the first, and of the noise that is left after the second.

    y_t = gain·E_t + F_t + bits + the user's bit − (gain − 1)·E_{t−1} − F_{t−1}.
    """
    far_residual, far_transient = len(residual) // 2, len(transient) // 2
    farthest, reach = gain * far_residual + far_transient, (gain - 1) * far_residual + far_transient
    later = np.ones(1)
    for bit in (0, user_bit):  # the last round first
        table = np.zeros((2 * farthest + 1, len(later) + 2 * reach, *later.shape[1:]))
        for (e, p), (f, q) in product(enumerate(residual), enumerate(transient)):
            added = gain * (e - far_residual) + f - far_transient
            canceled = (gain - 1) * (e - far_residual) + f - far_transient
            table[farthest + added, reach - canceled : reach - canceled + len(later)] += p * q * later
        later = np.zeros((2 * farthest + 1 + len(bits), *table.shape[1:]))
        for number, probability in enumerate(bits):
            later[number + bit : number + bit + 2 * farthest + 1] += probability * table
    return later.ravel()


POINTS = np.concatenate([[0.0], np.geomspace(0.05, 20, 60), np.linspace(0.9, 1.1, 9)])


@pytest.mark.parametrize("probability", [0.5, 0.35])
def test_no_run_is_easier_to_tell_apart_than_a_path_with_residual_noise(probability):
    residual, transient = discrete_gaussian(8, 2.0), discrete_gaussian(32, 8.0)
    gain, bits = 4, bernoulli_sum([probability] * 2)
    ratio, _ = path_ratio(shift_ratio(bits, pmf_variance(bits)), pmf_variance(bits), transient, 2, residual, gain)
    bound = np.array([np.maximum(ratio.values - q, 0) @ ratio.pmf + ratio.unmatched for q in POINTS])
    noise, shifted = (two_rounds_pmf(residual, transient, gain, bits, bit) for bit in (0, 1))
    exact = np.array([np.maximum(shifted - q * noise, 0).sum() for q in POINTS])
    assert (exact <= bound + 1e-9).all()
    is_near_one = (POINTS > 0.94) & (POINTS < 1.01)
    assert (exact[is_near_one] > 0.85 * bound[is_near_one]).all()


# -- ledgers of users -----------------------------------------------------------------------------


def test_epsilon_of_a_ledger_is_that_of_all_participations(confirm):
    mean = mean_of(noise=5.0, min_separation=12, clients=150)
    for rounds, participations in ((1, 1), (12, 1), (13, 2), (30, 3)):
        report = confirm(mean, range(rounds))
        assert report.max_participations == participations
    mu = participation_mu(read_claims(describe(mean)), 150, epsilon_bound.TAIL_PART * 1e-6 / 3)
    assert report.epsilon == pytest.approx(gaussian_epsilon(sqrt(3) * mu, 1e-6)[0], rel=0.01)
    assert mean.account(dict.fromkeys(range(30), 1)).epsilon == pytest.approx(report.epsilon, rel=0.05)
    independent = confirm(mean_of(noise=None, min_separation=12, clients=150), range(30))
    assert independent.max_participations == 3
    assert independent.epsilon > 2 * report.epsilon


def test_a_ledger_with_residual_noise_is_verified(confirm):
    mean = mean_of(noise=CorrelatedNoise(20.0, 1.5, 5), min_separation=12, clients=150)
    assert confirm(mean, range(30)).max_participations == 3


def test_correlated_noise_is_verified(verify_bytes):
    """With other values than below."""
    description = describe(mean_of(noise=5.0, clients=150))
    changes = {"noise": CorrelatedNoise(20.0).to_dict(), "min_separation": 2, "coordinates": None}
    assert verify_bytes(ledger_bytes(range(3), change_mean(description, **changes))).status == "verified"


@pytest.mark.parametrize(
    "changes",
    [{"noise": CorrelatedNoise(20.0).to_dict() | {"transient_std": std}} for std in (0.1, 1e9, "much", None, True)]
    + [
        {"noise": noise}
        for noise in (
            20.0,
            "correlated",
            {},
            {"transient_std": 20.0, "residual_std": 0.0},
            {"transient_std": 20.0, "residual_std": 0.1, "gain": 20},
            {"transient_std": 20.0, "residual_std": 0.0, "gain": 2},
            {"transient_std": 20.0, "residual_std": False, "gain": 1},
            {"transient_std": 20.0, "residual_std": 1.0, "gain": 1},
            {"transient_std": 20.0, "residual_std": 1.0, "gain": 5000},
            {"transient_std": 20.0, "residual_std": 1.0, "gain": 2.0},
        )
    ]
    + [
        {"min_separation": 0},
        {"min_separation": None},
        {"honest_fraction": 0.5, "population": 10**4, "sampling": "uniform"},
        {"zero_distance": 1.1},
        {"coordinates": 1000},
        {"mechanism": StochasticRounding(clip=4 / 1024, levels=4, margin=33.0).to_dict(), "clients": 20},
    ],
)
def test_correlated_noise_without_a_bound_is_not_verified(verify_bytes, changes):
    report = verify_bytes(ledger_bytes(range(3), change_mean(describe(mean_of(noise=5.0, clients=150)), **changes)))
    assert (report.status, report.epsilon) == ("cannot verify", None)


def test_missing_rounds_may_have_let_users_return_too_early(verify_bytes):
    description = describe(mean_of(noise=5.0, min_separation=3, clients=150))
    assert verify_bytes(ledger_bytes([1, 2, 3], description)).status == "verified"
    report = verify_bytes(ledger_bytes([0, 1, 5], description))
    assert report.unsure == ["min_separation = 3: rounds are missing, so users may have returned too early"]


def test_a_summary_of_a_larger_separation_is_not_confirmed(tmp_path):
    mean = mean_of(noise=5.0, min_separation=12, clients=150)
    (tmp_path / "ledger.jsonl").write_bytes(ledger_bytes(range(30), describe(mean)))
    for min_separation, status in ((12, "verified"), (30, "cannot verify")):
        claims = read_claims(describe(mean.with_values(min_separation=min_separation)))
        mu = participation_mu(claims, 150, 1e-10) * sqrt(ceil(30 / min_separation))
        (tmp_path / "summary.json").write_text(json.dumps({"epsilon": gaussian_epsilon(mu, 1e-6)[0]}))
        assert verify(tmp_path).status == status


def test_the_window_is_that_of_the_plan():
    """Not that of the rounds that were charged: noise that was not canceled yet hides as much."""
    for rounds, limit, min_separation in product((1, 2, 7, 40), (None, 1, 2), (1, 3, 7, 64)):
        participation = Participation(150, rounds, None, "fixed-order", limit, min_separation)
        claims = claims_of(min_separation=min_separation, rounds=rounds, max_participations=limit, clients=150)
        assert claims.window == participation.window


@pytest.mark.parametrize(
    ("rounds", "limit", "min_separation", "charges"),
    [(40, 1, 1, 10), (40, 1, 1, 40), (40, None, 64, 10), (40, None, 20, 10), (40, None, 20, 30), (10, 1, 1, 30)],
)
def test_epsilon_of_a_run_that_is_not_finished_is_that_of_the_accountant(
    confirm, rounds, limit, min_separation, charges
):
    mean = mean_of(
        noise=5.0, min_separation=min_separation, rounds=rounds, max_participations=limit, clients=150, dim=2**16
    )
    confirm(mean, range(charges))
    if rounds > charges and min_separation > 1:  # a window of the charged rounds alone would be another
        shorter = mean.with_values(min_separation=5) if charges == 10 else mean.with_values(min_separation=10)
        assert shorter.account(dict.fromkeys(range(5), 1)).epsilon > 1.001 * mean.account({0: 1}).epsilon


# -- records in a fixed order ---------------------------------------------------------------------


NOISE = {"mechanism": "discrete-gaussian", "clip": 1.0, "scale": 0.2, "steps": 511, "bits": 15}
ORDERED = {"mechanism": NOISE, "records": {"clip": 1.0, "batch": 200}, "min_separation": 8, "noise": 200.0}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"honest_clients": 3},
        {"clients": 8, "min_survivors": 7},
        {"neighboring": "replace-one"},
        {"min_separation": 40, "rounds": 40},
        {"dim": 10**6, "mechanism": NOISE | {"clip": 0.1, "scale": 2.0, "steps": 255, "bits": 14}},
        pytest.param(
            {"dim": 10**6, "mechanism": NOISE | {"clip": 0.1, "scale": 2.0, "bits": 15}}, marks=pytest.mark.slow
        ),
    ],
)
def test_epsilon_of_records_is_that_of_the_accountant(verify_bytes, changes):
    stated, ledger = silo_ledger(range(12), **ORDERED | changes)
    report = verify_bytes(ledger)
    assert report.status == "verified", (report.wrong, report.unsure)
    assert 0.995 * stated <= report.epsilon <= 1.06 * stated


def test_beside_no_honest_silo_only_residual_noise_counts(verify_bytes):
    pairs = [silo_ledger(range(12), **ORDERED | {"honest_clients": 1, "noise": noise}) for noise in (None, 200.0)]
    (stated, report), (stated_with, report_with) = ((epsilon, verify_bytes(ledger)) for epsilon, ledger in pairs)
    assert stated == stated_with
    assert report.epsilon == report_with.epsilon
    assert stated < report.epsilon


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise": {"transient_std": 1e-9, "residual_std": 0.0, "gain": 1}}, "transient_std = 1e-09"),
        ({"noise": {"transient_std": 1e9, "residual_std": 0.0, "gain": 1}}, "transient_std = 1000000000.0"),
        (
            {"noise": {"transient_std": 200.0, "residual_std": 1.0, "gain": 2}},
            "gain = 2: .* for users",
        ),
        ({"min_separation": 1}, "noise = .*correlated only for records in a fixed order"),
        ({"sampling_rate": 0.1}, "noise = .*correlated only for records in a fixed order"),
    ],
)
def test_correlated_noise_of_records_without_a_bound_is_not_verified(verify_bytes, changes, message):
    description = change_mean(describe(silo_plan(**ORDERED).private_mean()), **changes)
    report = verify_bytes(ledger_bytes(range(3), description))
    assert (report.status, report.epsilon) == ("cannot verify", None)
    assert any(re.search(message, doubt) for doubt in report.unsure), report.unsure


def record_run_pmf(first, rounds, residual, transient):
    """The pmf of all sums, y_t = R_t + F_t − F_{t−1} and in the first the record's steps; the last F_t is shown.

    Args:
        first: The pmf of the steps of the first round.
        rounds: The number of rounds.
        residual: The pmf of R_t.
        transient: The pmf of F_t.
    """
    state, reach = np.ones((1, 1)), len(transient) // 2
    for index in range(rounds):
        added = np.convolve(residual, first) if index == 0 else residual
        next_state = np.zeros((len(state), len(added) + 4 * reach, len(transient)))
        for previous, (current, probability) in product(range(state.shape[1]), enumerate(transient)):
            start = 2 * reach + current - (previous if index else 0)
            next_state[:, start : start + len(added), current] += probability * state[:, previous, None] * added
        state = next_state.reshape(-1, len(transient))
    return state.ravel()


RESIDUAL, WIDE, NARROW = (
    reduce(np.convolve, [discrete_gaussian(*parameters)] * 2) for parameters in ((4, 0.9), (9, 2.5), (4, 1.5))
)
"""Sums of the noise of two silos."""


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_no_run_of_silos_is_easier_to_tell_apart(rounds):
    """Up to the next round of the record; and the bound is nearly reached."""
    transient, epsilons = WIDE if rounds < 3 else NARROW, np.linspace(0, 5, 41)
    runs = [record_run_pmf(first, rounds, RESIDUAL, transient) for first in (np.eye(2)[0], np.eye(2)[1])]
    exact = _deltas(*runs, epsilons)
    ratio, _ = path_ratio(shift_ratio(RESIDUAL, pmf_variance(RESIDUAL)), pmf_variance(RESIDUAL), transient, rounds)
    noise, shifted = (ratio.bit_sum_pmf(probability) for probability in (0, 1))
    bound = _deltas(noise, shifted, epsilons)
    assert (exact <= bound + 1e-12).all()
    assert exact[0] > 0.9 * bound[0]


def _deltas(p, q, epsilons):
    is_possible = (p > 0) | (q > 0)
    p, q = p[is_possible], q[is_possible]
    pairs = ((p, q), (q, p))
    return np.array([max(np.maximum(a - np.exp(eps) * b, 0).sum() for a, b in pairs) for eps in epsilons])


def test_without_other_honest_clients_there_is_no_mu():
    assert participation_mu(claims_of(clients=150), 1, 1e-10) == inf
