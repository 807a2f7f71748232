"""What a process remembers of settings: nothing that would not come out of equal ones again."""

import pickle

import pytest

pytest.importorskip("flwr")
from rqm.flower import Settings
from rqm.plan.protocol import Link
from rqm.secagg import ProtocolError

CONFIG = {"rqm.clients": 5, "rqm.rounds": 3, "rqm.mechanism.mechanism": "rqm"}


def settings(**changes):
    return Settings.from_run_config({**CONFIG, **{f"rqm.{name}": value for name, value in changes.items()}})


def test_equal_settings_have_one_encoding_for_each_size_of_model():
    one, other = settings(), pickle.loads(pickle.dumps(settings()))
    assert one.mean(20) is other.mean(20)
    assert one.mean(20) == one.plan.private_mean(20)
    assert one.mean(21).dim == 21
    assert one.mean(20) != settings(rounds=4).mean(20)


def test_what_is_remembered_is_not_sent_along():
    one = settings()
    before = len(pickle.dumps(one))
    one.params(10, b"round")
    one.mean(10)
    assert len(pickle.dumps(one)) == before


def test_every_round_has_parameters_of_its_own():
    one = settings()
    first = one.params(10, b"first")
    assert one.params(10, b"first") is first
    assert {one.params(10, b"second").round, one.params(10, b"first", bytes(32)).roster} == {b"second", bytes(32)}
    assert len({one.params(*given).digest for given in ((10, b"first"), (10, b"second"), (11, b"first"))}) == 3
    assert settings(threshold=3).params(10, b"first").threshold == 3
    with pytest.raises(ProtocolError, match="chain"):
        one.params(10, b"first", b"", Link(b"chain", 0))
