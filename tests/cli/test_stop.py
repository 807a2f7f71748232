"""Ctrl-C while a command is being loaded, at the import of every part of it."""

import sys

import pytest

from tests.commands import process, rqm

SAID = "rqm: stopped by the user\n"
STOPPED_AT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.{handler})  # of a suite that runs in the background Ctrl-C is ignored
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {at!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv = ["rqm", *{typed!r}]
from rqm.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("at", "typed"),
    [
        ("rqm.cli", "--version"),
        ("typer", "--version"),
        ("numpy", "privacy"),
        ("rqm.cli.privacy", "privacy"),
        ("numba", "privacy"),
        ("numba._devicearray", "privacy"),  # makes an ImportError of it
        ("scipy", "privacy"),
        ("torch", "train glyphs --out nowhere"),
        ("torch._C", "train glyphs --out nowhere"),
        ("matplotlib", "figures laws --out nowhere"),
    ],
)
def test_who_stops_a_command_while_it_is_loaded_is_told_so_in_one_line(at, typed, tmp_path):
    pytest.importorskip(at.partition(".")[0])
    done = process("-c", STOPPED_AT.format(at=at, typed=typed.split(), handler="default_int_handler"), cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", SAID)
    assert not list(tmp_path.glob("nowhere/*"))


def test_nothing_is_loaded_before_a_command_can_be_stopped():
    done = process("-c", "import sys; before = {*sys.modules}; import rqm.__main__; print(*{*sys.modules} - before)")
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded - sys.stdlib_module_names <= {"rqm"}
    assert not any(name.startswith("rqm.") and name != "rqm.__main__" for name in done.stdout.split())


def test_a_command_that_is_to_go_on_in_the_background_goes_on(tmp_path):
    """As a shell starts it with nohup, or with & in a script: it must not be stopped by somebody else's Ctrl-C."""
    done = process("-c", STOPPED_AT.format(at="rqm.cli", typed=["--version"], handler="SIG_IGN"), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("rqm 0.")


def test_every_public_name_is_where_it_is_said_to_be():
    import rqm as package

    assert {name for name in package.__all__ if getattr(package, name).__name__ == name} == {*package.__all__}
    assert {*package.__all__} <= {*dir(package)}
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = package.nonsense


def test_who_stops_a_command_while_what_was_typed_is_read_is_told_so(monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("rqm.cli.Commands.parse_args", stopped)
    done = rqm("--version")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", SAID)


def test_who_stops_a_command_in_compiled_code_is_told_so_too(monkeypatch):
    """Which says that it "returned a result with an exception set"."""

    def stopped(*_, **__):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise SystemError("returned a result with an exception set") from error

    monkeypatch.setattr("rqm.cli.doctor.examine", stopped)
    done = rqm("doctor")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", SAID)

    def broken(*_, **__):
        raise SystemError("of another kind")

    monkeypatch.setattr("rqm.cli.doctor.examine", broken)
    with pytest.raises(SystemError, match="of another kind"):
        rqm("doctor")
