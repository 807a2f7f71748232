"""What a person sees, saved in `snapshots/`: tables and errors on terminals of 80 and of 40 columns.

To change them: `RQM_SNAPSHOTS=write python -m pytest tests/cli/test_snapshots.py`, and review the difference.
"""

import os
import shlex
from pathlib import Path

import pytest

from rqm.audit import mutants
from rqm.audit.mutants import Verdict
from rqm.cli import audit, bench, doctor, train
from rqm.cli.doctor import Check
from tests.cli.test_cases import PLAN
from tests.commands import rqm

FOLDER = Path(__file__).parent / "snapshots"
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


@pytest.fixture(params=[80, 40])
def compare(request, monkeypatch, tmp_path):
    """Compare a text with its snapshot, on a terminal of this many columns without colors."""
    width = request.param
    for name, value in {"COLUMNS": str(width), "LINES": "50", "FORCE_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    Path("plan.toml").write_text(PLAN)

    def check(name, text, *, fits=True):
        lines = [line.rstrip() for line in text.splitlines()]
        assert max(map(len, lines)) <= width or not fits, text
        path, text = FOLDER / f"{name}-{width}.txt", "\n".join(lines) + "\n"
        if os.environ.get("RQM_SNAPSHOTS") == "write":
            path.write_text(text)
        assert text == path.read_text()

    return check


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_shows(name, compare):
    compare(name, rqm(*shlex.split(COMMANDS[name])).stdout)


def test_errors(compare):
    compare("errors", "".join(f"$ rqm {typed}\n{rqm(*shlex.split(typed)).stderr}" for typed in ERRORS), fits=False)


def result_of_training(monkeypatch):
    curves = {
        "private": {"accuracy": [[0.1, 0.69]], "loss": [[3.0, 1.1]]},
        "noise-free": {"accuracy": [[0.2, 0.73], [0.2, 0.75]], "loss": [[2.9, 1.0], [2.8, 0.98]]},
    }
    summary = {"accuracy": 0.69, "epsilon": 7.98, "seconds": 91.0, "sentence": "Certified for every user: an example."}
    return train._sweep_result({"summary": summary, "curves": curves})


def result_of_doctor(monkeypatch):
    checks = [
        Check("rqm", "good", "0.2.0 on Python 3.11, Linux"),
        Check("[flower]", "missing", "flwr is not installed: pip install 'rqm[flower]'"),
        Check("entropy", "good", "AES-256-CTR keyed by os.urandom, 0.52 MB tested"),
    ]
    monkeypatch.setattr(doctor, "examine", lambda: checks)
    return doctor.command()


def result_of_mutants(monkeypatch):
    verdict = Verdict("biased table", "an outcome's row is off by 3 %", "sampler", True, "p = 1e-30", "p = 0.4")
    monkeypatch.setattr(mutants, "audit_mutants", lambda names: [verdict])
    return audit.mutants(["biased table"])


def result_of_bench(monkeypatch):
    bench.list_benchmarks()
    from benchmarks import Entry, Result

    entries = {"rqm": Entry(0.1, 10**6), "numpy": Entry(1.0, 10**6), "torch": Entry(0.4, 10**6)}
    return bench._result(Result("encode", "rqm", ["numpy", "torch"], entries, machine="a machine"), [])


@pytest.mark.parametrize("result", [result_of_training, result_of_doctor, result_of_mutants, result_of_bench])
def test_tables(result, compare, monkeypatch, capsys):
    result(monkeypatch).print(as_json=False)
    compare(result.__name__.removeprefix("result_of_"), capsys.readouterr().out)
