"""Every command with good and bad input: no traceback, the documented exit code, and one line that helps.

The cases are in `cases.txt`.
"""

import json
import shlex
from pathlib import Path
from shutil import copytree

import pytest

import rqm as rqm_package
from rqm import Participation, PrivateMean, StochasticRounding, account, advise
from rqm.ledger.budget_guard import Guard
from rqm.mechanisms.table import Table
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
APP = Path(rqm_package.__file__).parent / "flower" / "template"
KEY = "3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29"
FILES = {
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
}
LINES = [line for line in (Path(__file__).parent / "cases.txt").read_text().splitlines() if not line.startswith("#")]
CASES = [tuple(part.strip() for part in line.replace("NINES", "9" * 5000).split("|")) for line in LINES]


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A folder with everything that the cases name."""
    folder = tmp_path_factory.mktemp("template")
    mechanism = StochasticRounding(clip=0.4, levels=2, margin=9.0)
    mean = PrivateMean(dim=100, mechanism=mechanism, delta=1e-6, participation=Participation(20, 3))
    for name in ("empty", "taken", "ledger"):
        (folder / name).mkdir()
    with Guard(mean, folder / "ledger") as guard:
        guard.charge(0)
        guard.charge(1)
    changed = (folder / "ledger" / "ledger.jsonl").read_bytes().replace(b'{"round": 1', b'{"round": 0')
    (folder / "changed.jsonl").write_bytes(changed)
    Table().save(folder / "table.json")
    copytree(APP, folder / "private-app")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "binary.txt").write_bytes(b"\xff\xfe")
    return folder


def test_every_command_has_good_and_bad_cases():
    assert len(CASES) >= 150
    assert len({typed for typed, *_ in CASES}) == len(CASES)
    good = {typed.split()[0] for typed, code, _ in CASES if code == "0" and typed}
    bad = {typed.split()[0] for typed, code, _ in CASES if code != "0" and typed}
    commands = {"privacy", "account", "advise", "audit", "figures", "bench", "train", "explore", "verify"}
    commands |= {"init", "keys", "experiments", "flower"}
    assert commands <= good
    assert commands | {"report", "doctor"} <= bad


@pytest.mark.parametrize(("typed", "code", "text"), CASES, ids=[typed[:99] or "(nothing)" for typed, *_ in CASES])
def test_a_command_ends_as_documented_and_says_why(typed, code, text, template, tmp_path):
    folder = copytree(template, tmp_path / "here")
    if typed.startswith("flower"):
        pytest.importorskip("flwr")
        pytest.importorskip("torch")
    done = rqm(*shlex.split(typed), folder=folder)
    output = done.stdout + done.stderr
    assert done.returncode == int(code), output
    assert not any(unwanted in output for unwanted in ("Traceback", "Errno", "\x1b"))
    assert (folder / "in-the-way").read_text() == "a file"
    if not done.stderr:
        assert text in " ".join(done.stdout.split())
        assert "--json" not in typed or isinstance(json.loads(done.stdout), dict)
        return
    *lines, last = done.stderr.splitlines()
    assert last.startswith("rqm: ")
    assert text in last
    assert last.count("id you mean") <= 1
    assert not lines or "give a command" in last


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: account(StochasticRounding()),
            r"plan is a StochasticRounding: must be a rqm.Plan \(of a mechanism alone: rqm.renyi\)",
        ),
        (lambda: Participation(100, population=10), "population = 10: must be at least 100, the clients of a round"),
        (lambda: advise(clients=5), "epsilon = None: must be given, such as 3"),
    ],
)
def test_the_errors_of_python_name_what_to_do(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()
