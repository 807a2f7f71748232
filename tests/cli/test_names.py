"""What a shell completes, what help says of arguments, and what is noted about waits."""

import json
import sys
from unittest.mock import patch

import pytest
import typer

from rqm.cli import app, names, waits
from tests.commands import rqm


@pytest.mark.parametrize(
    ("typed", "found"),
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
def test_names_are_completed(typed, found, monkeypatch, capsys):
    monkeypatch.setenv("_RQM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    with patch.object(sys, "argv", ["rqm"]), pytest.raises(SystemExit):
        app(prog_name="rqm", standalone_mode=False)
    assert capsys.readouterr().out.split() == found


def test_plans_ledgers_and_folders_are_completed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "first").mkdir(parents=True)
    for name in ("plan.toml", "notes.txt", "runs/first/ledger.jsonl"):
        (tmp_path / name).write_text("")
    assert names.files("") == ["plan.toml", "runs/"]
    assert names.files("runs/") == ["runs/first/"]
    assert names.files("runs/first/led") == ["runs/first/ledger.jsonl"]
    assert names.files("nowhere/x") == []
    assert names.mutants("biased") == ["biased table"]


def test_help_tells_what_every_argument_is():
    group = typer.main.get_command(app)
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        for one in getattr(command, "commands", {name: command}).values():
            for param in one.params:
                assert param.help, f"{one.name}: {param.name}"


def test_every_command_prints_json():
    group = typer.main.get_command(app)
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        for one in getattr(command, "commands", {name: command}).values():
            assert "--json" in [option for param in one.params for option in param.opts], one.name


def test_a_long_wait_is_noted_and_told_the_next_time(tmp_path, monkeypatch):
    monkeypatch.setenv("RQM_CACHE", str(tmp_path))
    monkeypatch.setattr(waits, "SHORT", -1.0)
    with waits.waiting("something", key="a thing") as first:
        assert first.left(first.began) is None
    noted = json.loads((tmp_path / waits.NOTES).read_text())
    assert noted.keys() == {"a thing"}
    (tmp_path / waits.NOTES).write_text(json.dumps({"a thing": 12.0, "wrong": "x"}))
    with waits.waiting("something", key="a thing") as second:
        assert 11 < second.left(second.began + 0.5) < 12
    (tmp_path / waits.NOTES).write_text("damaged")
    with waits.waiting("something", key="a thing") as third:
        assert third.left(third.began) is None


def test_time_left_follows_the_steps_that_are_done():
    wait = waits.Wait("round", 10, began=100.0)
    wait.at(1)
    wait.at(2)
    wait._latest = 104.0  # two rounds in four seconds
    assert wait.left(104.0) == 16.0
    assert wait.left(106.0) == 14.0
    resumed = waits.Wait("round", 10, began=100.0)
    resumed.at(6)  # what was done before says nothing about today
    assert resumed.left(resumed._latest) is None
    resumed.at(7)
    resumed._latest = 103.0
    assert resumed.left(103.0) == pytest.approx(9.0, rel=0.01)


def test_bars_are_shown_on_terminals_only():
    done = rqm("privacy", "--clients", "3")
    assert (done.returncode, done.stderr) == (0, "")
