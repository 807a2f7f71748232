"""What help and the shell's completion show, and the progress bar."""

import io
import sys

import pytest
import typer

from rqm.cli import app, completion
from rqm.cli.progress import Bar, progress
from tests.commands import process


def leaf_commands():
    """Every command with the words that a user types for it."""
    group = typer.main.get_command(app)
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        for inner_name, inner in getattr(command, "commands", {"": command}).items():
            yield pytest.param(inner, id=f"{name} {inner_name}".strip())


@pytest.mark.parametrize("command", list(leaf_commands()))
def test_every_command_has_an_example_and_prints_json_and_every_parameter_has_a_help_text(command, request):
    assert f"rqm {request.node.callspec.id}" in command.help
    assert "Args:" not in command.help
    assert "--json" in [option for param in command.params for option in param.opts]
    assert [param.name for param in command.params if not param.help] == []


def test_nothing_heavy_is_imported_to_begin_with():
    heavy = "('numba', 'scipy', 'matplotlib', 'torch', 'flwr', 'rich.progress')"
    done = process("-c", f"import sys, rqm.cli; print([m for m in {heavy} if m in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("rqm account user-level-", ["user-level-outsider", "user-level-server"]),
        ("rqm train gl", ["glyphs"]),
        ("rqm privacy --mechanism ro", ["rounding"]),
        ("rqm figures renyi-theta1", ["renyi-theta15"]),
        ("rqm bench div", ["divergence"]),
        ("rqm audit membership memb", ["membership", "membership-emnist"]),
        ("rqm acc", ["account"]),
    ],
)
def test_names_are_completed(typed, expected, monkeypatch, capsys):
    monkeypatch.setenv("_RQM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    monkeypatch.setattr(sys, "argv", ["rqm"])
    with pytest.raises(SystemExit):
        app(prog_name="rqm", standalone_mode=False)
    assert capsys.readouterr().out.split() == expected


def test_plans_ledgers_and_folders_are_completed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "first").mkdir(parents=True)
    for name in ("plan.toml", "notes.txt", "runs/first/ledger.jsonl", ".hidden.toml"):
        (tmp_path / name).write_text("")
    assert completion.files("") == ["plan.toml", "runs/"]
    assert completion.files("runs/") == ["runs/first/"]
    assert completion.files("runs/first/led") == ["runs/first/ledger.jsonl"]
    assert completion.files("nowhere/x") == []
    assert completion.mutants("biased") == ["biased table"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("is_visible", [True, False])
def test_a_terminal_shows_a_bar_with_facts_unless_json_is_printed(is_visible, monkeypatch):
    monkeypatch.setattr(Bar, "is_visible", is_visible)
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with progress("training [1]", 4) as bar:
        bar.begin("first step")
        bar.end("second step")
        bar.update(None, 3, facts=["accuracy 31.0%", "ε 4.2"])
    shown = sys.stderr.getvalue()
    assert all((text in shown) == is_visible for text in ("training [1]", "75%", "accuracy 31.0%, ε 4.2"))
