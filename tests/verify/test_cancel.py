"""The verifier's bound for noise that is taken back: against whole small runs, enumerated, and against Gaussians."""

import json
from math import sqrt

import numpy as np
import pytest

from rqm import PrivateMean, Rounding
from rqm.verify import bound, reader, verify
from rqm.verify.cancel import holding, mu_cancelled, transient
from rqm.verify.gaussian import epsilon_of
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
    promise = promised(Rounding(clip=4 / 1024, levels=2, margin=margin), cancel, 12, clients=clients)
    found = mu_cancelled(promise, clients, 3, 1e-10)
    assert 1 < found / gaussian(promise, clients, 12) < near


@pytest.mark.parametrize(
    ("clients", "margin", "deviation"), [(4, 1.0, 1.0), (7, 0.3, 0.8), (7, 3.0, 1.2), (12, 1.0, 0.6)]
)
@pytest.mark.parametrize("separation", [1, 2])
def test_no_run_tells_more(clients, margin, deviation, separation):
    """Two rounds of all clients, the others at any ends, by what was seen; the noise that is left is shown at last."""
    promise = promised(
        Rounding(levels=2, margin=margin), deviation, separation, dim=1, clients=clients, rotate=False, rounds=4
    )
    down, up = (0.5 - 0.5 / (1 + margin)), (0.5 + 0.5 / (1 + margin))
    others = [coins([up] * k + [down] * (clients - 1 - k)) for k in range(clients)]
    law, lost = transient(deviation, 1)[0], 1e-4
    law = law[law > 1e-4]  # narrower noise tells more, by little
    law = taken_back(law / law.sum())
    found, rng = mu_cancelled(promise, clients, 2, lost), np.random.default_rng(clients)
    for turn in range(4):
        table = rng.integers(0, clients, 101)
        scheme = Scheme(
            law,
            [clients if clients < 5 else 1] * separation + [0],
            [others] * separation + [[np.ones(1)]],
            choose=lambda now, past, table=table: table[past.sum(axis=1) % 101] * (now < separation),
        )
        if turn == 0 and scheme.honest[0] == 1:
            found = mu_with(promise, clients, lost)
        exact = smallest_mu(*seen(scheme, [{0: always(v)} for v in (down, up)]), lost + 1e-2)
        assert exact <= found


def mu_with(promise, others, lost):
    """The same beside as many coins, but one client's noise alone, by its law of as many more clients' steps."""
    narrow = promise._replace(cancel=promise.cancel)
    return max(mu_cancelled(narrow, others, 2, lost), mu_cancelled(narrow._replace(separation=1), others, 2, lost))


def test_a_ledger_of_such_a_run(check):
    for rounds, most in ((1, 1), (12, 1), (13, 2), (30, 3)):
        report = check(written(range(rounds), said(separation=12, clients=200)))
        assert report.status == "verified"
        assert report.participations == most
    mu = mu_cancelled(promised(separation=12, clients=200), 200, 3, bound.FARTHEST * 1e-6 / 3)
    assert report.epsilon == pytest.approx(epsilon_of(sqrt(3) * mu, 1e-6)[0], rel=0.01)
    alone = check(written(range(30), said(cancel=None, separation=12, clients=200)))
    assert alone.participations == 3
    assert alone.epsilon > 2 * report.epsilon


@pytest.mark.parametrize(
    "wrong",
    [
        {"cancel": 0.1},
        {"cancel": 1e9},
        {"cancel": "much"},
        {"separation": 0},
        {"honest": 0.5, "population": 10**4},
        {"mech": Rounding(clip=4 / 1024, levels=4, margin=33.0)},
    ],
)
def test_what_is_not_known_cannot_be_verified(check, wrong):
    assert check(written(range(3), said(**wrong))).status == "cannot verify"


def test_rounds_that_are_missing_may_have_brought_somebody_back_too_early(check):
    assert check(written([0, 1, 5], said(separation=3))).status == "cannot verify"


def test_who_wrote_a_wider_separation_is_not_confirmed(tmp_path):
    """Or less of δ, or more clients: ε is that of another run."""
    (tmp_path / "ledger.jsonl").write_bytes(written(range(30), said(separation=12, clients=200)))
    for other, status in (({}, "verified"), ({"separation": 30}, "cannot verify"), ({"cancel": 40.0}, "cannot verify")):
        promise = promised(**{"separation": 12, "clients": 200, **other})
        count = -(-30 // promise.separation)
        stated = epsilon_of(sqrt(count) * mu_cancelled(promise, 200, count, 1e-10), 1e-6)[0]
        (tmp_path / "summary.json").write_text(json.dumps({"epsilon": stated}))
        assert verify(tmp_path).status == status
