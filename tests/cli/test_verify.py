"""`rqm verify` as a user types it: what it prints, and its exit code."""

import pytest

from rqm import RQM, Participation, PrivateMean, StochasticRounding
from rqm.ledger.budget_guard import Guard
from tests.commands import rqm, rqm_json


@pytest.fixture
def write_ledger(tmp_path):
    """Write a ledger of three rounds."""

    def write(mechanism=None):
        mechanism = mechanism or StochasticRounding(clip=0.4, levels=2, margin=9.0)
        mean = PrivateMean(dim=100, mechanism=mechanism, participation=Participation(20, 3), delta=1e-6)
        with Guard(mean, tmp_path) as guard:
            for round_index in range(3):
                guard.charge(round_index)
        return tmp_path / "ledger.jsonl"

    return write


def test_the_verifier_and_the_account_agree(write_ledger):
    folder = write_ledger().parent
    report, account = rqm_json("verify", folder), rqm_json("account", folder)
    assert (report["status"], report["head_hash"]) == ("verified", account["head_hash"])
    assert account["epsilon"] <= report["epsilon"] <= 1.10 * account["epsilon"]


def test_what_cannot_be_verified(write_ledger):
    done = rqm("verify", write_ledger(RQM(clip=0.4)))
    assert (done.returncode, "cannot verify: levels = 16" in done.stdout) == (3, True)
