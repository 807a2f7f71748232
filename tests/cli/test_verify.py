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


def test_a_sound_ledger(write_ledger):
    ledger = write_ledger()
    done = rqm("verify", ledger, "--rounds", 3, "--dim", 100)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[1] == "Verified: chain, signatures and ε are consistent."
    assert "3 charges for 3 rounds" in done.stdout
    assert "- all 20 clients of every round are honest" in lines
    assert "ε ≤ " in done.stdout
    report, account = rqm_json("verify", ledger.parent), rqm_json("account", ledger.parent)
    assert (report["status"], report["head_hash"]) == ("verified", account["head_hash"])
    assert account["epsilon"] <= report["epsilon"] <= 1.10 * account["epsilon"]


@pytest.mark.parametrize(
    "options",
    [("--rounds", 4), ("--dim", 99), ("--delta", "1e-5"), ("--honest-clients", 19), ("--key", "0" * 64), "changed"],
)
def test_what_is_wrong_is_named(write_ledger, options):
    ledger = write_ledger()
    if options == "changed":
        ledger.write_bytes(ledger.read_bytes().replace(b'{"round": 1', b'{"round": 0'))
        options = ()
    done = rqm("verify", ledger, *options)
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[1] == "Wrong: do not rely on this ledger."
    assert lines[2].startswith("wrong: ")


def test_what_cannot_be_verified(write_ledger):
    done = rqm("verify", write_ledger(RQM(clip=0.4)))
    assert (done.returncode, "cannot verify: levels = 16" in done.stdout) == (3, True)
