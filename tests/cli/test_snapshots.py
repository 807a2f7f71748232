"""What a person sees, kept in ``snapshots/``: bars, tables and errors on terminals of 80 and of 40 columns.

To change them: ``RQM_SNAPSHOTS=write python -m pytest tests/cli/test_snapshots.py``, and a look at the difference.
"""

import os
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from rqm.audit.mutants import Verdict
from rqm.cli import audit, bench, doctor, train
from rqm.cli.doctor import Check
from rqm.cli.waits import Wait
from tests.cli.test_cases import PLAN
from tests.commands import rqm

KEPT = Path(__file__).parent / "snapshots"
WIDTHS = (80, 40)


def waits():
    """Waits at different times: (what is waited for, now)."""
    counted = Wait("round", 100, began=0.0)
    yield counted, 1.0
    half = replace(counted, done=50, _first=(0.0, 0), _latest=60.0)
    yield half, 61.0
    facts = ("accuracy 31.0%", "ε 4.2", "loss 2.301", "1.64 MB a round")
    yield replace(half, done=12, facts=facts), 62.0
    yield replace(half, done=99, _latest=5e5, facts=facts), 5e5
    yield replace(half, done=100), 62.0
    yield Wait("1 bit, ε=8, a variant of a long name, seed 3", 4000, None, facts, 777, 0.0, (0.0, 0), 90.0), 91.0
    yield Wait("accounting for user-level-server", began=0.0), 3.0
    yield Wait("accounting for user-level-server", began=0.0, last=20.0), 3.0
    yield Wait("accounting for user-level-server", began=0.0, last=20.0), 30.0
    yield Wait("certifying what a coordinate leaks", began=0.0, last=9000.0), 30.0


ERRORS = (
    "privcy",
    "account glyhps",
    "account runs/five",
    "account plan.toml --set client=5",
    "account plan.toml --set l2_clip=1",
    "account plan.toml --population 10",
    "advise",
    "privacy --mechanism table",
    "privacy --keep 2",
    "train plan.toml",
    "verify",
)
COMMANDS = {
    "privacy": "privacy --clients 3",
    "privacy-random": "privacy --clients 3 --others random",
    "account": "account plan.toml",
    "advise": "advise --clients 1 --epsilon 4 --levels 4",
    "experiments": "experiments",
    "figures": "figures --list",
    "bench-list": "bench",
}


def shown(*args, folder):
    done = rqm(*args, folder=folder)
    return "\n".join(line.rstrip() for line in (done.stdout + done.stderr).splitlines()) + "\n"


def table_of_training():
    curves = {
        "private": {"accuracy": [[0.1, 0.69]], "loss": [[3.0, 1.1]]},
        "noise-free": {"accuracy": [[0.2, 0.73], [0.2, 0.75]], "loss": [[2.9, 1.0], [2.8, 0.98]]},
    }
    train._tell(
        {
            "accuracy": 0.69,
            "accuracy_noise_free": 0.74,
            "epsilon": 7.98,
            "seconds": 91.0,
            "sentence": "Certified for every user: an example.",
        }
    )
    train._table(curves)


def table_of_doctor(monkeypatch):
    found = [
        Check("rqm", "good", "0.2.0 on Python 3.11, Linux"),
        Check("[flower]", "missing", "flwr is not installed: pip install 'rqm[flower]'"),
        Check("entropy", "good", "AES-256-CTR keyed by os.urandom, 0.52 MB looked at"),
    ]
    monkeypatch.setattr(doctor, "examine", lambda: found)
    doctor.command(as_json=False)


def table_of_mutants(monkeypatch):
    from rqm.audit import mutants

    verdict = Verdict("biased table", "an outcome's row is off by 3 %", "sampler", True, "p = 1e-30", "p = 0.4")
    monkeypatch.setattr(mutants, "audit_mutants", lambda names: [verdict])
    audit.mutants(name=["biased table"], out=None, as_json=False)


def table_of_bench():
    bench.known()
    from benchmarks import Entry, Result

    bench._show(
        Result(
            "encode",
            "rqm",
            ["numpy", "torch"],
            {"rqm": Entry(0.1, 10**6), "numpy": Entry(1.0, 10**6), "torch": Entry(0.4, 10**6)},
            machine="a machine",
        )
    )


@pytest.fixture(params=WIDTHS)
def terminal(request, monkeypatch, tmp_path):
    """A terminal of so many columns, without colours."""
    for name, value in {"COLUMNS": str(request.param), "LINES": "50", "FORCE_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "plan.toml").write_text(PLAN)
    return request.param, tmp_path


def compare(name, width, text):
    """As it was kept, and nothing wider than the terminal but what a terminal itself breaks."""
    path = KEPT / f"{name}-{width}.txt"
    if os.environ.get("RQM_SNAPSHOTS") == "write":
        KEPT.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def fits(text, width):
    return max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_shows(name, terminal):
    width, folder = terminal
    text = shown(*shlex.split(COMMANDS[name]), folder=folder)
    assert fits(text, width), text
    compare(name, width, text)


def test_bars(terminal):
    width, _ = terminal
    lines = [wait.line(width, now) for wait, now in waits()]
    assert all(len(line) <= width for line in lines)
    assert all(re.search(r"\d+ (s|min|h) (left|so far)", line) for line in lines)
    compare("bars", width, "\n".join(lines) + "\n")


def test_errors(terminal):
    width, folder = terminal
    compare("errors", width, "".join(f"$ rqm {typed}\n{shown(*shlex.split(typed), folder=folder)}" for typed in ERRORS))


@pytest.mark.parametrize("name", ["training", "doctor", "mutants", "bench"])
def test_tables(name, terminal, monkeypatch, capsys):
    width, _ = terminal
    draw = globals()[f"table_of_{name}"]
    draw(monkeypatch) if draw.__code__.co_argcount else draw()
    text = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines()) + "\n"
    assert fits(text, width), text
    compare(name, width, text)
