"""``rqm verify`` as a user types it: what it says, and what it ends with."""

import json

import pytest

from rqm import RQM, Participation, PrivateMean, Rounding
from rqm.plan.guard import Guard
from tests.commands import rqm

MECHANISM = Rounding(clip=0.4, levels=2, margin=9.0)


@pytest.fixture
def ledger(tmp_path):
    """The ledger of three rounds."""

    def make(mechanism=MECHANISM):
        mean = PrivateMean(dim=100, mechanism=mechanism, participation=Participation(20, 3), delta=1e-6)
        with Guard(mean, tmp_path) as guard:
            for round_index in range(3):
                guard.charge(round_index)
        return tmp_path / "ledger.jsonl"

    return make


def test_a_sound_ledger_ends_with_0_and_says_epsilon(ledger):
    done = rqm("verify", ledger(), "--rounds", 3, "--dim", 100)
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 charges for 3 rounds" in done.stdout
    assert "ε ≤ " in done.stdout
    assert done.stdout.splitlines()[1] == "Verified: chain, signatures and ε are consistent."
    assert "- all 20 clients of every round are honest" in done.stdout.splitlines()


def test_the_folder_of_a_run_as_json(ledger):
    folder = ledger().parent
    done = rqm("verify", folder, "--json")
    found, stated = json.loads(done.stdout), json.loads(rqm("account", folder, "--json").stdout)
    assert (done.returncode, found["status"], found["head_hash"]) == (0, "verified", stated["head_hash"])
    assert stated["epsilon"] <= found["epsilon"] <= 1.10 * stated["epsilon"]


@pytest.mark.parametrize(
    "options", [("--rounds", 4), ("--dim", 99), ("--delta", "1e-5"), ("--honest-clients", 19), ("--key", "0" * 64)]
)
def test_what_is_wrong_ends_with_1_and_is_named(ledger, options):
    done = rqm("verify", ledger(), *options)
    assert (done.returncode, done.stderr) == (1, "")
    assert [line for line in done.stdout.splitlines() if line.startswith("wrong: ")]
    assert done.stdout.splitlines()[1] == "Wrong: do not rely on this ledger."


def test_a_changed_charge_ends_with_1_in_one_line(ledger):
    path = ledger()
    path.write_bytes(path.read_bytes().replace(b'{"round": 1', b'{"round": 0'))
    done = rqm("verify", path)
    assert (done.returncode, done.stdout.count("\nwrong: ")) == (1, 1)


def test_what_cannot_be_verified_ends_with_3(ledger, tmp_path):
    assert rqm("verify", tmp_path / "nothing").returncode == 3
    done = rqm("verify", ledger(RQM(clip=0.4)))
    assert done.returncode == 3
    assert "cannot verify: levels = 16" in done.stdout
