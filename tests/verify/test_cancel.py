"""The verifier's bound for noise that is taken back: against whole small runs, enumerated, and against Gaussians."""

import json
from math import sqrt

import numpy as np
import pytest

from rqm import PrivateMean, Rounding
from rqm.privacy.holding import gaussian_handed
from rqm.verify import bound, reader, verify
from rqm.verify.cancel import holding, mu_cancelled, transient
from rqm.verify.gaussian import epsilon_of
from rqm.verify.kept import corners, handed
from tests.privacy.test_kept import POINTS, binomial, in_rounds, wide
from tests.privacy.views import Scheme, always, coins, seen, smallest_mu, taken_back
from tests.verify.ledgers import about, written

MECH = Rounding(clip=4 / 1024, levels=2, margin=8.3)


def said(mech=MECH, cancel=26.0, separation=64, **parts):
    """What a ledger of such a run says."""
    mean = {"dim": 2**20, "clients": 1000, "delta": 1e-6, "rounds": 200, "l2_clip": 1.0, **parts}
    found = about(PrivateMean(mechanism=mech, **mean))
    return {**found, "mean": {**found["mean"], "cancel": cancel, "separation": separation}}


def promised(*args, **parts):
    return reader._promise(said(*args, **parts))


def gaussian(promise, honest, rounds):
    """μ if all noise were Gaussian."""
    held, stays = honest * promise.cancel**2, honest / 4
    weights = holding(rounds, held, stays)
    longer = 1 - np.cumsum(weights)[:-1]
    part = 1 / (1 + promise.mechanism["margin"])
    return part * sqrt(promise.budget) * sqrt((longer**2).sum() / held + (weights**2).sum() / stays)


@pytest.mark.parametrize(("margin", "cancel", "clients", "near"), [(8.3, 26.0, 1000, 1.04), (33.0, 26.0, 100, 1.06)])
def test_wide_noise_is_nearly_gaussian(margin, cancel, clients, near):
    promise = promised(Rounding(clip=4 / 1024, levels=2, margin=margin), cancel, 34, clients=clients)
    found = mu_cancelled(promise, clients, 3, 1e-10)
    assert 1 < found / gaussian(promise, clients, 34) < near


KEPT = [pytest.param(1000, 2.27, [27.0, 1.0, 50], marks=pytest.mark.slow), (100, 7.4, [54.0, 1.5, 16])]


@pytest.mark.parametrize(("clients", "margin", "cancel"), KEPT)
def test_so_is_noise_of_which_a_part_stays(clients, margin, cancel):
    promise = promised(Rounding(clip=4 / 1024, levels=2, margin=margin), cancel, 34, clients=clients)
    goes, stays, times = cancel
    exact = gaussian_handed(34, clients * goes**2, clients * stays**2, times, clients / 4)
    found = mu_cancelled(promise, clients, 3, 1e-10) / (sqrt(exact * promise.budget) / (1 + margin))
    assert 1 < found < 1.05


@pytest.mark.parametrize("others", [0.5, 0.35])
def test_no_run_tells_more_of_a_coin_than_a_path_whose_noise_stays_in_part(others):
    stays, goes, coins = wide(2.0, 8), wide(8.0, 32), binomial(2, others)
    ratios = [(law, np.append(0.0, law[:-1]) / law) for law in (stays, coins)]
    parts = [(values, law, law[-1]) for law, values in ratios]
    spreads = [float(law @ (np.arange(len(law)) - len(law) // 2) ** 2) for law in (stays, goes, coins)]
    values, chances, alone = handed(*parts, corners(goes, 4), (*spreads, 4, 2))
    assert chances.sum() == pytest.approx(1, abs=1e-9)
    assert chances @ values + alone == pytest.approx(1, abs=1e-9)
    bound = np.array([np.maximum(values - q, 0) @ chances + alone for q in POINTS])
    n, w = (in_rounds(stays, goes, 4, coins, (coin, 0), shown=True) for coin in (0, 1))
    exact = np.array([np.maximum(w - q * n, 0).sum() for q in POINTS])
    assert (exact <= bound + 1e-9).all()
    near = (POINTS > 0.94) & (POINTS < 1.01)
    assert (exact[near] > 0.85 * bound[near]).all()


@pytest.mark.parametrize(
    ("clients", "margin", "deviation"), [(2, 1.0, 0.6), (3, 0.3, 0.5), (4, 3.0, 0.5), (4, 1.0, 0.7)]
)
@pytest.mark.parametrize("separation", [1, 2])
def test_no_run_tells_more(clients, margin, deviation, separation):
    """All clients of one or two rounds, inputs chosen by what was seen; the noise that is left is shown at last."""
    mech = Rounding(levels=2, margin=margin)
    promise = promised(mech, deviation, separation, dim=1, clients=clients, rotate=False, rounds=4)
    down, up = mech.pmf(-1.0)[1], mech.pmf(1.0)[1]
    others = [coins([up] * k + [down] * (clients - 1 - k)) for k in range(clients)]
    noise, lost, nearest = taken_back(transient(deviation, 1)[0]), 1e-6, 0.0
    bounds, rng = mu_cancelled(promise, clients, 2, lost), np.random.default_rng(clients)
    for turn in range(2 * clients):
        table = rng.integers(0, clients, 101) if turn >= clients else np.full(101, turn)
        scheme = Scheme(
            noise,
            [clients] * separation + [0],
            [others] * separation + [[np.ones(1)]],
            choose=lambda now, past, table=table: table[past.sum(axis=1) % 101] * (now < separation),
        )
        nearest = max(nearest, smallest_mu(*seen(scheme, [{0: always(v)} for v in (down, up)]), lost) / bounds)
    assert 0.3 < nearest <= 1
    assert separation > 1 or nearest > 0.97


def test_a_ledger_of_such_a_run(check):
    for rounds, most in ((1, 1), (12, 1), (13, 2), (30, 3)):
        report = check(written(range(rounds), said(separation=12, clients=150, cancel=5.0)))
        assert report.status == "verified"
        assert report.participations == most
    mu = mu_cancelled(promised(separation=12, clients=150, cancel=5.0), 150, 3, bound.FARTHEST * 1e-6 / 3)
    assert report.epsilon == pytest.approx(epsilon_of(sqrt(3) * mu, 1e-6)[0], rel=0.01)
    kept = check(written(range(30), said(separation=12, clients=150, cancel=[20.0, 1.5, 5])))
    assert (kept.status, kept.participations) == ("verified", 3)
    alone = check(written(range(30), said(cancel=None, separation=12, clients=150)))
    assert alone.participations == 3
    assert alone.epsilon > 2 * report.epsilon


@pytest.mark.parametrize(
    "wrong",
    [
        {"cancel": 0.1},
        {"cancel": 1e9},
        {"cancel": "much"},
        {"cancel": [26.0, 1.0]},
        {"cancel": [26.0, 0.1, 20]},
        {"cancel": [26.0, 1.0, 1]},
        {"cancel": [26.0, 1.0, 5000]},
        {"separation": 0},
        {"honest": 0.5, "population": 10**4},
        {"mech": Rounding(clip=4 / 1024, levels=4, margin=33.0), "clients": 20},
    ],
)
def test_what_is_not_known_cannot_be_verified(check, wrong):
    assert check(written(range(3), said(**wrong))).status == "cannot verify"


def test_rounds_that_are_missing_may_have_brought_somebody_back_too_early(check):
    assert check(written([0, 1, 5], said(separation=3))).status == "cannot verify"


def test_who_wrote_a_wider_separation_is_not_confirmed(tmp_path):
    """ε is that of another run."""
    (tmp_path / "ledger.jsonl").write_bytes(written(range(30), said(separation=12, clients=150, cancel=5.0)))
    for other, status in (({}, "verified"), ({"separation": 30}, "cannot verify")):
        promise = promised(**{"separation": 12, "clients": 150, "cancel": 5.0, **other})
        count = -(-30 // promise.separation)
        stated = epsilon_of(sqrt(count) * mu_cancelled(promise, 150, count, 1e-10), 1e-6)[0]
        (tmp_path / "summary.json").write_text(json.dumps({"epsilon": stated}))
        assert verify(tmp_path).status == status


@pytest.mark.parametrize(("clients", "margin"), [(340, 0.4), (360, 0.4), (500, 0.05), (512, 0.4), (1000, 0.3)])
def test_sums_whose_ends_are_below_all_floats_are_no_certificate_of_nothing(clients, margin):
    mech = Rounding(clip=0.125, levels=2, margin=margin)
    promise = promised(mech, 8.0, 50, dim=1024, clients=clients, delta=1e-6)
    coins_alone = (2 / (1 + margin)) * 8 / sqrt(clients)  # about, at zero
    assert 0.1 * coins_alone < mu_cancelled(promise, clients, 2, 1e-10) < 20 * coins_alone
