"""Messages that are altered, cut or made up end in the protocol's own error and nothing else."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rqm.secagg import Client, ProtocolError, Server, wire
from rqm.secagg.wire import STAGES, Kind
from tests.secagg.rounds import PARAMS, STEPS, Round


@pytest.mark.parametrize("kind", list(STEPS))
def test_every_cut_of_a_message(kind):
    data = Round(kind).inbox[0]
    for size in range(0, len(data), max(1, len(data) // 60)):
        if size % 7 == 0 or size < 50:
            round_ = Round(kind)
            with pytest.raises(ProtocolError):
                STEPS[kind](round_.clients[0], round_.inbox[0][:size])
    round_ = Round(kind)
    with pytest.raises(ProtocolError, match="bytes too many"):
        STEPS[kind](round_.clients[0], round_.inbox[0] + b"\0")


@settings(max_examples=40)
@given(
    st.sampled_from(list(STEPS)),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=3),
)
def test_a_client_meets_altered_messages_with_its_own_error(kind, flips):
    round_ = Round(kind)
    data = bytearray(round_.inbox[0])
    for place, bits in flips:
        data[place % len(data)] ^= bits
    try:
        message = STEPS[kind](round_.clients[0], bytes(data))
    except ProtocolError:
        return
    if bytes(data) == round_.inbox[0] or kind == Kind.PARTIES:  # a changed key is still a key
        return
    try:  # what came from one neighbour may be bad: the client goes on, and says so or does without
        round_.server.receive(message, 0)
    except ProtocolError:
        return
    assert kind == Kind.PROOF or any(0 in some for some in round_.server._distrust.values())


@settings(max_examples=60)
@given(st.sampled_from(STAGES), st.binary(max_size=400), st.booleans())
def test_a_server_meets_anything_with_its_own_error(stage, noise, framed):
    if stage == Kind.KEYS:
        server = Server(PARAMS)
    else:
        round_ = Round(Kind(stage - 1))
        server = round_.server
    data = wire.frame(stage, PARAMS.digest, 1, noise) if framed else noise
    before = set(server._heard)
    try:
        server.receive(data)
    except ProtocolError:
        assert server._heard == before


@given(st.binary(max_size=200))
def test_a_client_meets_anything_with_its_own_error(noise):
    client = Client(PARAMS, 0)
    client.keys()
    with pytest.raises(ProtocolError):
        client.share(noise)


def test_versions_and_types():
    data = bytearray(Client(PARAMS, 0).keys())
    data[7] = 1
    with pytest.raises(ProtocolError, match="version 1 of the protocol: this is version 3"):
        Server(PARAMS).receive(bytes(data))
    with pytest.raises(ProtocolError, match="not a message of this protocol"):
        Server(PARAMS).receive(b"x" * 100)
    with pytest.raises(ProtocolError, match="a message of type str: must be bytes"):
        Server(PARAMS).receive("text")
    with pytest.raises(ProtocolError, match="client 7 is listed: there are 5"):
        wire.read_entries(memoryview(struct.pack("<III", 2, 1, 7)), 0, 5)
    with pytest.raises(ProtocolError, match="client 1 is listed after 1"):
        wire.read_entries(memoryview(struct.pack("<III", 2, 1, 1)), 0, 5)
