"""Every command with good and with bad input: no traceback, the documented exit code, one line that helps.

The cases are in ``cases.txt``.
"""

import json
import shlex
from pathlib import Path
from shutil import copytree

import pytest

from rqm import Participation, PrivateMean, Rounding, account, advise
from rqm.mechanisms.table import Table
from rqm.plan.guard import Guard
from tests.commands import rqm

PLAN = """
data = "glyphs"
model = "linear"
clients = 20
rounds = 4
delta = 1e-5
transforms = { l2_clip = 0.5, rotate = true }
mechanism = { mechanism = "rounding", clip = 0.0078125, levels = 2, margin = 150.0 }
"""
KEY = "3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29"

CASES = (Path(__file__).parent / "cases.txt").read_text()


def parsed(line):
    typed, code, words = (part.strip() for part in line.split("|"))
    return typed, int(code), words.removesuffix("# *").strip()


TABLE = [parsed(line) for line in CASES.splitlines() if not line.startswith("#")]


@pytest.fixture
def folder(tmp_path, made):
    """Everything that the cases name, anew for each."""
    return copytree(made, tmp_path / "here")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("made")
    mean = PrivateMean(
        dim=100, mechanism=Rounding(clip=0.4, levels=2, margin=9.0), delta=1e-6, participation=Participation(20, 3)
    )
    (tmp_path / "ledger").mkdir()
    with Guard(mean, tmp_path / "ledger") as guard:
        guard.charge(0)
        guard.charge(1)
    Table().save(tmp_path / "table.json")
    for name in ("empty", "taken"):
        (tmp_path / name).mkdir()
    for name, text in {
        "plan.toml": PLAN,
        "plan.json": "{}",
        "unknown.toml": f"ronds = 3\n{PLAN}",
        "bad.toml": "rounds = = 3",
        "text.txt": "some text\n",
        "nothing-in-it.toml": "# a comment\n",
        "nobody.txt": "",
        "list.json": "[1,2]",
        "in-the-way": "a file",
        "roster.txt": KEY + "\n",
        "taken/policy.toml": "mine",
        "taken/identity.key": "mine",
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe")
    return tmp_path


def test_there_are_enough_cases_and_every_command_is_among_them():
    assert len(TABLE) >= 150
    assert len({typed for typed, *_ in TABLE}) == len(TABLE)
    assert CASES.count("# *") >= 8  # the other two are errors of Python, below
    bad = {typed.split()[0] for typed, code, _ in TABLE if code and typed}
    good = {typed.split()[0] for typed, code, _ in TABLE if not code and typed}
    commands = {"privacy", "account", "advise", "audit", "figures", "bench", "train", "report", "explore", "verify"}
    assert commands | {"init", "keys", "experiments", "doctor"} <= bad
    assert commands - {"report"} | {"init", "keys", "experiments"} <= good


@pytest.mark.parametrize(("typed", "code", "words"), TABLE, ids=[typed or "(nothing)" for typed, *_ in TABLE])
def test_a_command_ends_as_documented_and_says_why(typed, code, words, folder):
    done = rqm(*shlex.split(typed), folder=folder)
    said = done.stdout + done.stderr
    assert done.returncode == code, said
    assert "Traceback" not in said
    assert "Errno" not in said
    told = done.stderr.splitlines()
    if done.stderr:
        assert told[-1].startswith("rqm: ")
        assert len(told) == 1 or "give a command" in told[-1]
        assert told[-1].count("id you mean") <= 1
        assert words in told[-1]
    else:
        assert words in " ".join(done.stdout.split())
    if "--json" in typed and not done.stderr:
        assert isinstance(json.loads(done.stdout), dict)


def test_the_errors_of_python_name_what_to_do():
    with pytest.raises(TypeError, match=r"plan is a Rounding: must be a rqm.Plan \(of a mechanism alone: rqm.renyi\)"):
        account(Rounding())
    with pytest.raises(ValueError, match="population = 10: must be at least 100, the clients of a round"):
        Participation(100, population=10)
    with pytest.raises(ValueError, match="epsilon = None: must be given, such as 3"):
        advise(clients=5)
