"""Every mutant is caught, and its sound version is not; the command says so."""

import json

import pytest
from typer.testing import CliRunner

from rqm.audit import mutants
from rqm.audit.mutants import MUTANTS, Finding, Mutant, audit_mutants
from rqm.cli import app

SLOW = {"wrong keep", "wide clamp", "wrong knot", "under-counted others"}
REQUIRED = {"wrong knot", "biased table", "reused keystream", "late ledger", "under-counted others", "reused masks"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(mutant.name, marks=[pytest.mark.slow] if mutant.name in SLOW else [], id=mutant.name)
        for mutant in MUTANTS
    ],
)
def test_every_mutant_is_caught(name):
    (verdict,) = audit_mutants([name])
    assert verdict.caught, verdict


def test_the_required_mutants_exist():
    assert {mutant.name for mutant in MUTANTS} >= REQUIRED


def test_a_mutant_survives_if_there_is_no_alarm_or_a_false_one(monkeypatch):
    unnoticed = Mutant("unnoticed", "", "", lambda is_broken: Finding(False, ""))
    false_alarm = Mutant("false alarm", "", "", lambda is_broken: Finding(True, ""))
    monkeypatch.setattr(mutants, "MUTANTS", [unnoticed, false_alarm])
    assert [verdict.caught for verdict in audit_mutants()] == [False, False]
    result = CliRunner().invoke(app, ["audit", "mutants", "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["survived"] == ["unnoticed", "false alarm"]
