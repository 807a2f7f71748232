"""Every mutant is caught, and its sound version is not; the command says so."""

import json

import pytest
from typer.testing import CliRunner

from rqm.audit import mutants
from rqm.audit.mutants import MUTANTS, Finding, Mutant, audit_mutants
from rqm.cli import app

DEAR = {"wrong keep", "wide clamp", "wrong knot", "under-counted others", "no L2 clip"}


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(one, marks=[pytest.mark.slow] if one.name in DEAR else [], id=one.name) for one in MUTANTS],
)
def test_every_mutant_is_caught(mutant):
    (verdict,) = audit_mutants([mutant.name])
    assert verdict.caught, verdict


def test_what_is_asked_for_is_there():
    asked = {"wrong knot", "biased table", "reused keystream", "late ledger", "under-counted others", "reused masks"}
    assert asked <= {mutant.name for mutant in MUTANTS}


def test_a_mutant_that_nobody_notices_survives_and_so_does_one_with_false_alarms(monkeypatch):
    unseen = Mutant("unseen", "", "", lambda broken: Finding(False, ""))
    crying = Mutant("crying", "", "", lambda broken: Finding(True, ""))
    monkeypatch.setattr(mutants, "MUTANTS", [unseen, crying])
    assert [one.caught for one in audit_mutants()] == [False, False]
    result = CliRunner().invoke(app, ["audit", "mutants", "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["survived"] == ["unseen", "crying"]
