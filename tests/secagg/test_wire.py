"""Messages that are altered, cut or made up end in the protocol's own error and nothing else."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rqm.secagg import Client, ProtocolError, Server, wire
from rqm.secagg.wire import STAGES, Kind
from tests.secagg.rounds import HEADER, PARAMS, VALUES, Round


def answer(stage, data):
    """What the first client answers to a message in that stage."""
    return Round(stage).clients[0].answer(stage, data, lambda: VALUES)


@pytest.mark.parametrize("stage", STAGES[1:])
def test_every_cut_of_a_message(stage):
    round_ = Round(stage)
    data, saved = round_.inbox[0], round_.clients[0].save()
    for size in {*range(0, min(len(data), 50)), *range(0, len(data), max(1, len(data) // 60))}:
        with pytest.raises(ProtocolError):
            Client.load(PARAMS, saved).answer(stage, data[:size], lambda: VALUES)
    with pytest.raises(ProtocolError, match="bytes too many"):
        Client.load(PARAMS, saved).answer(stage, data + b"\0", lambda: VALUES)


@settings(max_examples=40)
@given(
    st.sampled_from(STAGES[1:]),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=3),
)
def test_a_client_meets_altered_messages_with_its_own_error(stage, flips):
    round_ = Round(stage)
    data = bytearray(round_.inbox[0])
    for position, bits in flips:
        data[position % len(data)] ^= bits
    try:
        message = round_.clients[0].answer(stage, bytes(data), lambda: VALUES)
        if bytes(data) == round_.inbox[0] or stage == Kind.SHARES:  # a changed key is still a key
            return
        round_.server.receive(message, 0)
    except ProtocolError:
        return
    # What came from one neighbor may be bad: the client goes on, and says so or does without.
    assert stage == Kind.REVEAL or any(0 in accusers for accusers in round_.server._distrust.values())


@settings(max_examples=60)
@given(st.sampled_from(STAGES), st.binary(max_size=400), st.booleans())
def test_a_server_meets_anything_with_its_own_error(stage, noise, is_framed):
    server = Round(stage).server
    data = wire.frame(stage, PARAMS.digest, 1, noise) if is_framed else noise
    try:
        server.receive(data)
    except ProtocolError:
        assert not server._heard


@given(st.binary(max_size=200))
def test_a_client_meets_anything_with_its_own_error(noise):
    with pytest.raises(ProtocolError):
        answer(Kind.SHARES, noise)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (wire.MAGIC + b"\1" + bytes(HEADER), "version 1 of the protocol: this is version 3"),
        (b"x" * 100, "not a message of this protocol"),
        (b"x" * 10, f"a message of 10 bytes: must have at least {HEADER}"),
        ("text", "a message of type str: must be bytes"),
    ],
)
def test_what_is_no_message(data, match):
    with pytest.raises(ProtocolError, match=match):
        Server(PARAMS).receive(data)


@pytest.mark.parametrize(
    ("read", "data", "match"),
    [
        (
            lambda body: wire.read_entries(body, 0, 5),
            struct.pack("<III", 2, 1, 7),
            "client 7 is listed: must be below 5",
        ),
        (lambda body: wire.read_entries(body, 0, 5), struct.pack("<III", 2, 1, 1), "client 1 is listed after 1"),
        (lambda body: wire.unpack_set(body, 5), bytes([255]), "a set with client 7: must be below 5"),
        (lambda body: wire.read_bytes(body, 5), b"abcd", "cut short: must have 5 bytes here, not 4"),
    ],
)
def test_bad_fields(read, data, match):
    with pytest.raises(ProtocolError, match=match):
        read(memoryview(data))


@given(st.sets(st.integers(0, 99)))
def test_sets_and_lists_are_read_as_they_were_written(chosen):
    assert wire.unpack_set(wire.pack_set(chosen, 100), 100) == chosen
    entries = {client: bytes([client, 1]) for client in chosen}
    assert wire.read_entries(memoryview(wire.encode(entries)), 2, 100) == (entries, b"")
