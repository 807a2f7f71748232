"""The doctor finds a sound machine sound, and says what is missing or broken."""

import json
from importlib.metadata import PackageNotFoundError

import pytest

from rqm.cli import doctor
from tests.commands import rqm


def states(found):
    return {one.name: one.state for one in found}


def test_this_machine_works():
    found = states(doctor.examine())
    assert {found[name] for name in ("rqm", "core", "entropy", "encoder", "accounting", "disk")} == {"good"}
    assert "broken" not in found.values()


def test_a_missing_extra_is_named_with_the_command_that_installs_it(monkeypatch):
    def version(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor.importlib.metadata, "version", version)
    state, facts = doctor._extra("train")
    assert (state, facts) == ("missing", "torch is not installed: pip install 'rqm[train]'")
    assert states(doctor.examine())["core"] == "broken"


@pytest.mark.parametrize("broken", ["constant", "stuck bit"])
def test_a_bad_source_of_entropy_is_found(monkeypatch, broken):
    from rqm.randomness import SecureRandom

    words = SecureRandom.words
    fake = {"constant": lambda self, n: 0 * words(self, n), "stuck bit": lambda self, n: words(self, n) | 8}[broken]
    monkeypatch.setattr(SecureRandom, "words", fake)
    assert states(doctor.examine())["entropy"] == "broken"


def test_the_command_line_and_its_json():
    done = rqm("doctor", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["good"] is True
    assert {"name", "state", "facts"} <= found["checks"][0].keys()
