"""The doctor finds a sound machine sound, and names what is missing or broken."""

from importlib.metadata import PackageNotFoundError
from unittest.mock import Mock

import pytest

from rqm.cli import doctor
from rqm.randomness import SecureRandom
from tests.commands import rqm, rqm_json


def states():
    return {check.name: check.state for check in doctor.examine()}


def test_this_machine_works():
    facts = rqm_json("doctor")
    names = {check["name"]: check["state"] for check in facts["checks"]}
    assert facts["good"] is True
    assert {names[name] for name in ("rqm", "core", "entropy", "encoder", "accounting", "disk")} == {"good"}
    assert "broken" not in names.values()
    assert "encoder" in rqm("doctor").stdout


def test_a_missing_extra_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(doctor.importlib.metadata, "version", Mock(side_effect=PackageNotFoundError("torch")))
    assert doctor._extra("train") == ("missing", "torch is not installed: pip install 'rqm[train]'")
    assert states()["core"] == "broken"
    assert rqm("doctor").returncode == 1


@pytest.mark.parametrize("broken", [lambda words: 0 * words, lambda words: words | 8], ids=["constant", "stuck bit"])
def test_a_bad_source_of_entropy_is_found(monkeypatch, broken):
    words = SecureRandom.words
    monkeypatch.setattr(SecureRandom, "words", lambda self, count: broken(words(self, count)))
    assert states()["entropy"] == "broken"
