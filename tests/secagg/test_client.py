"""A client that is saved after every message goes on as if nothing had been; other files are refused."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rqm.secagg import Client, Params, ProtocolError, Server

PARAMS = Params(clients=5, count=3, levels=16, round=b"one", threshold=3)


def test_a_round_with_clients_that_are_saved_and_loaded_every_time():
    saved = {u: Client(PARAMS, u).save() for u in range(5)}
    server, inbox = Server(PARAMS), dict.fromkeys(range(5), b"")
    values = np.arange(15).reshape(5, 3)
    for step in ("keys", "share", "mask", "acknowledge", "reveal"):
        for u, data in inbox.items():
            if step == "acknowledge" and u == 2:
                continue
            client = Client.load(PARAMS, saved[u])
            given = () if step == "keys" else (data, values[u]) if step == "mask" else (data,)
            server.receive(getattr(client, step)(*given))
            saved[u] = client.save()
        inbox = server.advance() if step != "reveal" else {}
    assert server.finish().tolist() == values.sum(axis=0).tolist()
    done = Client.load(PARAMS, saved[0])
    with pytest.raises(ProtocolError, match="says nothing more"):
        done.reveal(b"")


def test_another_round_is_refused():
    saved = Client(PARAMS, 1).save()
    with pytest.raises(ProtocolError, match="a saved client of another round"):
        Client.load(Params(clients=5, count=3, levels=16, round=b"two", threshold=3), saved)


@given(st.binary(max_size=50))
def test_files_that_are_no_clients(noise):
    with pytest.raises(ProtocolError, match="not a saved client"):
        Client.load(PARAMS, noise)


NAMES = ["number", "own", "masks", "held", "alive", "told", "due", "digest", "channels", "others", "drawn"]


@pytest.mark.parametrize("name", NAMES)
def test_files_that_are_damaged(name):
    state = json.loads(Client(PARAMS, 1).save())
    for bad in ("zz", 7.5, None, ["x"]):
        if (name, bad) == ("due", None):
            continue  # a client that is done
        with pytest.raises(ProtocolError):
            Client.load(PARAMS, json.dumps({**state, name: bad}).encode())
