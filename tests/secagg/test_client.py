"""A client that is saved after every message goes on as if nothing had been; bad values and files are refused."""

import copy
import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rqm.secagg import Client, Params, ProtocolError, Server, wire
from rqm.secagg.wire import STAGES, Kind
from tests.secagg.rounds import IDENTITIES, PARAMS, VALUES, Round, roster_of

SPARSE = Params(clients=24, count=3, levels=16, round=b"sparse", degree=8, threshold=5, minimum=20)


@pytest.mark.parametrize(("params", "dropouts"), [(PARAMS, {2}), (SPARSE, set())], ids=["complete", "sparse"])
def test_a_round_with_clients_that_are_saved_and_loaded_every_time(params, dropouts):
    server, inbox = Server(params), dict.fromkeys(range(params.clients), b"")
    saved = {u: Client(params, u).save() for u in inbox}
    for stage in STAGES:
        for u, data in inbox.items():
            if stage < Kind.ACKS or u not in dropouts:
                client = Client.load(params, saved[u])
                server.receive(client.answer(stage, data, lambda: VALUES), u)
                saved[u] = client.save()
        inbox = server.advance() if stage != Kind.REVEAL else {}
    assert (server.finish() == params.clients * VALUES).all()
    done = Client.load(params, saved[0])
    with pytest.raises(ProtocolError, match="not due, nothing"):
        done.answer(Kind.REVEAL, b"")


def test_another_round_is_refused():
    saved = Client(PARAMS, 1).save()
    with pytest.raises(ProtocolError, match="a saved client of another round"):
        Client.load(Params(clients=5, count=3, levels=16, round=b"two", threshold=3), saved)


@given(st.binary(max_size=50))
def test_files_that_are_no_clients(noise):
    with pytest.raises(ProtocolError, match="not a saved client"):
        Client.load(PARAMS, noise)


SAVED = Client(PARAMS, 1).save()


@given(st.integers(0, len(SAVED) - 1), st.integers(1, 255))
def test_files_that_are_damaged(position, flips):
    damaged = bytearray(SAVED)
    damaged[position] ^= flips
    with pytest.raises(ProtocolError, match="not a saved client, or damaged"):
        Client.load(PARAMS, bytes(damaged))


@pytest.mark.parametrize("name", json.loads(SAVED[32:]))
def test_files_with_other_values(name):
    """As another version of this library could have written."""
    state = json.loads(SAVED[32:])
    for value in ("zz", 7.5, None, ["x"]):
        with pytest.raises(ProtocolError, match="not a saved client"):
            Client.load(PARAMS, wire.dump_state({**state, name: value}))
    del state[name]
    with pytest.raises(ProtocolError, match="not a saved client"):
        Client.load(PARAMS, wire.dump_state(state))


def test_a_client_cannot_be_copied():
    client = Client(PARAMS, 0)
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied"):
            attempt(client)


@pytest.mark.parametrize(
    ("values", "match"),
    [
        (np.array([0, 1, 16]), "contain 16"),
        (np.array([0, -1, 1]), "contain -1"),
        (np.zeros(3), "must be 3 whole numbers"),
        (np.zeros(4, int), "must be 3 whole numbers"),
    ],
)
def test_values_outside_their_range(values, match):
    round_ = Round(Kind.MASKED)
    with pytest.raises(ValueError, match=match):
        round_.clients[0].answer(Kind.MASKED, round_.inbox[0], lambda: values)
    round_.clients[0].answer(Kind.MASKED, round_.inbox[0], lambda: VALUES)  # the caller's mistake costs nothing


def test_signed_rounds_need_an_identity_and_the_roster():
    roster = roster_of(4)
    params = Params(clients=4, count=3, levels=16, round=b"s", threshold=2, roster=roster.hash)
    with pytest.raises(ValueError, match="roster must be given"):
        Server(params)  # which would take any keys
    for identity, its_roster, match in (
        (None, None, "identity"),
        (IDENTITIES[9], roster, "must be in the roster"),
        (IDENTITIES[0], roster_of(1), "the roster of this round"),
    ):
        with pytest.raises(ValueError, match=match):
            Client(params, 0, identity, its_roster)
