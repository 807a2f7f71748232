"""Ctrl-C at any moment: while a command is imported, while it is parsed, and while it runs."""

import sys
from unittest.mock import Mock

import pytest

import rqm as package
from rqm.__main__ import main
from tests.commands import Done, process, rqm

STOPPED = Done(130, "", "rqm: stopped by the user\n")
STOPPED_AT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.{handler})  # a test suite in the background ignores Ctrl-C
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv = ["rqm", *{typed!r}]
from rqm.__main__ import main
main()
"""


IN_COMPILED_CODE = SystemError("returned a result with an exception set")
IN_COMPILED_CODE.__cause__ = KeyboardInterrupt()


@pytest.mark.parametrize(
    ("module", "typed"),
    [
        ("rqm.cli", "--version"),
        ("typer", "--version"),
        ("numpy", "privacy"),
        ("rqm.cli.privacy", "privacy"),
        ("numba", "privacy"),
        ("numba._devicearray", "privacy"),  # numba turns it into an ImportError
        ("scipy", "privacy"),
        ("torch", "train glyphs --out nowhere"),
        ("torch._C", "train glyphs --out nowhere"),
        ("matplotlib", "figures laws --out nowhere"),
    ],
)
def test_while_a_module_is_imported(module, typed, tmp_path):
    pytest.importorskip(module.partition(".")[0])
    code = STOPPED_AT.format(module=module, typed=typed.split(), handler="default_int_handler")
    done = process("-c", code, cwd=tmp_path)
    assert Done(done.returncode, done.stdout, done.stderr) == STOPPED
    assert not list(tmp_path.glob("nowhere/*"))


def test_a_command_that_ignores_ctrl_c_continues(tmp_path):
    """As a shell starts it with nohup, or with & in a script."""
    code = STOPPED_AT.format(module="rqm.cli", typed=["--version"], handler="SIG_IGN")
    done = process("-c", code, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("rqm 0.")


def test_nothing_is_imported_before_a_command_can_be_stopped():
    done = process("-c", "import sys; before = {*sys.modules}; import rqm.__main__; print(*{*sys.modules} - before)")
    modules = {name for name in done.stdout.split() if name.partition(".")[0] not in sys.stdlib_module_names}
    assert modules <= {"rqm", "rqm.__main__"}


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("rqm.cli.Commands.parse_args", KeyboardInterrupt),
        ("rqm.cli.doctor.examine", KeyboardInterrupt),
        ("rqm.cli.doctor.examine", IN_COMPILED_CODE),
    ],
)
def test_while_a_command_is_parsed_or_runs(function, error, monkeypatch):
    monkeypatch.setattr(function, Mock(side_effect=error))
    assert rqm("doctor") == STOPPED


def test_before_the_command_line_takes_over(monkeypatch, capsys):
    monkeypatch.setattr("rqm.cli.main", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(SystemExit) as end:
        main()
    assert (end.value.code, capsys.readouterr().err) == (STOPPED.returncode, STOPPED.stderr)


def test_another_error_of_compiled_code_is_shown(monkeypatch):
    monkeypatch.setattr("rqm.cli.doctor.examine", Mock(side_effect=SystemError("of another kind")))
    with pytest.raises(SystemError, match="of another kind"):
        rqm("doctor")


def test_every_public_name_is_where_it_is_said_to_be():
    assert {name for name in package.__all__ if getattr(package, name).__name__ == name} == {*package.__all__}
    assert {*package.__all__} <= {*dir(package)}
    assert not hasattr(package, "nonsense")
