"""What a process remembers of settings: nothing that would not come out of equal ones again."""

import pickle

import pytest

pytest.importorskip("flwr")
from rqm.config.round_parameters import Link
from rqm.flower import Settings
from rqm.secagg import ProtocolError

CONFIG = {"rqm.clients": 5, "rqm.rounds": 3, "rqm.mechanism.mechanism": "rqm"}


def settings(**changes):
    return Settings.from_run_config({**CONFIG, **{f"rqm.{name}": value for name, value in changes.items()}})


def test_equal_settings_have_one_encoding_for_each_size_of_model():
    entry, another = settings(), pickle.loads(pickle.dumps(settings()))
    assert entry.mean(20) is another.mean(20)
    assert entry.mean(20) == entry.plan.private_mean(20)
    assert entry.mean(21).dim == 21
    assert entry.mean(20) != settings(rounds=4).mean(20)


def test_what_is_remembered_is_not_sent_along():
    entry = settings()
    earlier = len(pickle.dumps(entry))
    entry.params(10, b"round")
    entry.mean(10)
    assert len(pickle.dumps(entry)) == earlier


def test_every_round_has_parameters_of_its_own():
    entry = settings()
    first = entry.params(10, b"first")
    assert entry.params(10, b"first") is first
    assert {entry.params(10, b"second").round, entry.params(10, b"first", bytes(32)).roster} == {b"second", bytes(32)}
    assert (
        len({entry.params(*delivered).digest for delivered in ((10, b"first"), (10, b"second"), (11, b"first"))}) == 3
    )
    assert settings(threshold=3).params(10, b"first").threshold == 3
    with pytest.raises(ProtocolError, match="chain"):
        entry.params(10, b"first", b"", Link(b"chain", 0))
