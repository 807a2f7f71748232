"""Plans, ledgers and Flower settings of older versions are refused with the remedy, and stay as they are."""

import json
import shutil
from pathlib import Path

import pytest

from rqm import Plan
from rqm.config.account import account_ledger
from rqm.config.plan import PLAN
from rqm.ledger.ledger import LEDGER, Ledger, LedgerError, read
from rqm.report.page import build_page
from tests.commands import rqm

OLD = Path(__file__).parents[1] / "fixtures" / "v0.1.0"
REMEDY = "use the rqm that wrote it"


@pytest.fixture
def old(tmp_path):
    """A copy of the old files, which nothing changes."""
    folder = tmp_path / "old"
    shutil.copytree(OLD, folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    yield folder
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_ledger_of_version_0_1_0_is_refused_with_the_remedy(old):
    path = old / "private" / LEDGER
    about = json.loads(path.read_text().splitlines()[0])["about"]
    for ask in (lambda: read(path), lambda: account_ledger(path), lambda: Ledger(path, about)):
        with pytest.raises(LedgerError, match=f"it has format 1, this version reads format 4: {REMEDY}"):
            ask()


@pytest.mark.parametrize("version", [1, 2, 3, 5])
def test_ledgers_of_other_formats_are_refused_with_the_remedy(version, tmp_path):
    path = tmp_path / LEDGER
    with Ledger(path, {"mean": {}}) as ledger:
        ledger.charge(0)
    assert read(path).charges == {0: 1}
    path.write_bytes(path.read_bytes().replace(b'{"ledger": 4', b'{"ledger": %d' % version, 1))
    with pytest.raises(LedgerError, match=f"it has format {version}, this version reads format 4: {REMEDY}"):
        read(path)


def test_the_plan_of_an_old_run_is_refused_with_the_remedy(old):
    with pytest.raises(ValueError, match=f"did you mean max_participations.*older version: {REMEDY}") as error:
        Plan.of_run(old / "private")
    assert str(error.value).startswith(str(old / "private" / PLAN))
    with pytest.raises(ValueError, match=REMEDY):
        build_page([old / "private"])


@pytest.mark.parametrize("command", [("train", "--resume"), ("account",), ("report",)])
def test_commands_refuse_an_old_run_in_one_line(command, old, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = rqm(*command, old / "private")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert REMEDY in done.stderr


def test_a_plan_of_today_that_is_wrong_is_not_called_old(tmp_path):
    (tmp_path / PLAN).write_text(json.dumps(Plan().to_dict() | {"participations": 3}))
    with pytest.raises(ValueError, match="did you mean max_participations") as error:
        Plan.of_run(tmp_path)
    assert REMEDY not in str(error.value)


def test_old_settings_of_flower_are_refused_with_the_new_name():
    pytest.importorskip("flwr")
    from rqm.flower import Settings

    config = json.loads((OLD / "flower-settings.json").read_text())
    given = {"rqm.epsilon": 8.0, "rqm.clients": 1000, "rqm.rounds": 3}
    kept = ("rqm.clients", "rqm.rounds", "rqm.delta", "rqm.threshold")
    renamed = {"rqm.participations": "max-participations", "rqm.survivors": "min-survivors"}
    for key, value in config.items():
        if key in kept or key.startswith("rqm.mechanism."):
            given[key] = value
            continue
        name = key.split(".")[1].replace("_", "-")
        with pytest.raises(ValueError, match=f"rqm.{name}: unknown key; ") as error:
            Settings.from_run_config({**given, key: value})
        assert f"did you mean rqm.{renamed.get(key, '')}" in str(error.value) or key not in renamed
    settings = Settings.from_run_config(given)
    assert (settings.clients, settings.delta, settings.mechanism.margin) == (1000, 1e-6, 30.0)
