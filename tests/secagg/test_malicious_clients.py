"""What some clients could try against the others: it costs them their part, never the round; and they are blamed."""

from random import Random

import numpy as np
import pytest

from rqm.secagg import Aborted, Client, CorruptedRound, Params, Server, sharing, wire
from rqm.secagg.local import aggregate
from rqm.secagg.masking import sealed_bytes
from rqm.secagg.roster import SIGNATURE_BYTES
from rqm.secagg.server import most_disputed
from rqm.secagg.wire import STAGES, Kind
from tests.secagg.rounds import HEADER, PARAMS, VALUES, Round
from tests.secagg.test_malicious import refuses

COUNT = 20
SIZES = [pytest.param(16, id="16 clients"), pytest.param(100, id="100 clients", marks=pytest.mark.slow)]


def params(clients):
    """Of 16 clients three may be malicious, of 100 with 30 neighbors each five."""
    size = {"degree": 30, "threshold": 20} if clients == 100 else {"threshold": 11}
    return Params(clients=clients, count=COUNT, levels=16, round=b"one", minimum=clients * 3 // 4, **size)


def some_clients(chance, clients):
    return set(chance.sample(range(2, clients), chance.randint(1, 5 if clients == 100 else 3)))


def values(u):
    return np.full(COUNT, u % 16)


def outcome(clients, malicious, **options):
    """The survivors and the blamed clients of a round whose sum is exact, and has all honest clients."""
    total, survivors, cost = aggregate(params(clients), values, **options)
    assert (total == sum(values(u) for u in survivors)).all()
    assert set(range(clients)) - malicious <= set(survivors)
    return set(survivors), set(cost.blamed)


# -- messages that anybody sees are wrong ---------------------------------------------------------

GARBAGE = {
    "noise": lambda message, chance: chance.randbytes(len(message)),
    "cut short": lambda message, chance: message[: chance.randrange(1, len(message))],
    "too long": lambda message, chance: message + chance.randbytes(3),
    "another's name": lambda message, chance: message[: HEADER - 4] + wire.number(1) + message[HEADER:],
    "another round": lambda message, chance: message[:9] + bytes(32) + message[41:],
    "a list that is too long": lambda message, chance: message[:HEADER] + b"\xff" * 4 + message[HEADER + 4 :],
    "noise inside": lambda message, chance: message[:HEADER] + chance.randbytes(len(message) - HEADER),
    "huge": lambda message, chance: message[:HEADER] + chance.randbytes(100_000),
}
VALID = {(kind, stage) for kind in ("noise inside", "a list that is too long") for stage in (Kind.KEYS, Kind.MASKED)}
"""Keys of noise are keys, and a vector of noise is a vector: nobody can tell."""


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
@pytest.mark.parametrize("kind", GARBAGE)
@pytest.mark.parametrize("clients", SIZES)
def test_garbage_costs_its_sender_its_part(clients, kind, stage):
    chance = Random(f"{kind} {stage}")
    malicious = some_clients(chance, clients)

    def tamper(u, at, message):
        return GARBAGE[kind](message, chance) if u in malicious and at == stage else None

    if (kind, stage) in VALID:
        _, survivors, _ = aggregate(params(clients), values, intercept=tamper)
        assert set(range(clients)) - malicious <= set(survivors)
        return
    survivors, blamed = outcome(clients, malicious, intercept=tamper)
    assert blamed == malicious
    if stage < Kind.ACKS:  # later their vectors are there
        assert malicious.isdisjoint(survivors)


def test_the_server_refuses_and_goes_on():
    server, clients = Server(PARAMS), [Client(PARAMS, u) for u in range(5)]
    first, *messages = (client.answer(Kind.KEYS) for client in clients)
    server.receive(bytearray(first))
    for match, message, sender in (
        ("client 0 has sent its KEYS already", first, 0),
        ("a message in the name of client 0, sent by client 1", first, 1),
        ("client 9: not in this round", wire.frame(Kind.KEYS, PARAMS.digest, 9, first[45:]), None),
        ("client 1 has a key or an identity that is in use", wire.frame(Kind.KEYS, PARAMS.digest, 1, first[45:]), None),
        ("gives no secret", wire.frame(Kind.KEYS, PARAMS.digest, 1, bytes(64)), None),
        ("cut short", wire.frame(Kind.KEYS, PARAMS.digest, 1, b"abc"), None),
        ("a message of kind 3: must be of kind 1, KEYS", wire.frame(Kind.SHARES, PARAMS.digest, 1), None),
        ("a message of kind 77: must be of kind 1, KEYS", wire.frame(77, PARAMS.digest, 1), None),
    ):
        with refuses(match):
            server.receive(message, sender)
    assert list(server.blamed) == [1]
    for message in messages:
        server.receive(message)
    server.advance()
    for early in (server.finish, server.recovered_secrets):
        with refuses("not finished: SHARES is due"):
            early()


@pytest.mark.parametrize(
    ("kind", "alter", "match"),
    [
        (Kind.SHARES, lambda seed, shares: [seed, dict(list(shares.items())[1:])], "not shared its secrets with 4"),
        (Kind.SHARES, lambda seed, shares: [seed, {0: shares[1], **{u: shares[u] for u in (1, 2, 3)}}], "not shared"),
        (Kind.MASKED, lambda v, tags, refused: [v, {1: tags[1]}, refused], "for others than its neighbors"),
        (Kind.MASKED, lambda v, tags, refused: [v, tags, [0]], "for others than its neighbors"),
        (Kind.ACKS, lambda tags, refused: [{1: tags[1]}, refused], "acknowledged others than its neighbors"),
        (Kind.ACKS, lambda tags, refused: [tags, [1]], "acknowledged others than its neighbors"),
        (Kind.REVEAL, lambda shares: [{1: shares[1]}], "revealed shares of others than its neighbors"),
    ],
)
def test_messages_about_others_than_neighbors(kind, alter, match):
    round_ = Round(kind)
    fields = PARAMS.read(round_.answers(kind)[0], kind, 0)
    with refuses(match):
        round_.server.receive(wire.frame(kind, PARAMS.digest, 0, *alter(*fields)), 0)
    assert list(round_.server.blamed) == [0]


def test_nothing_follows_the_last_stage():
    with refuses("all messages have been sent: finish"):
        Round(Kind.REVEAL).server.advance()


# -- shares and tags that only their receiver can check -------------------------------------------


def spoil(message, start, size, chance, count=None):
    """The same message with noise in some entries, or all, of the list that begins there."""
    data, entries = bytearray(message), int.from_bytes(message[start : start + 4], "little")
    assert len(message) >= start + 4 + entries * (4 + size)  # a list is there
    for entry in chance.sample(range(entries), count or entries):
        position = start + 4 + entry * (4 + size) + 4
        data[position : position + size] = chance.randbytes(size)
    return bytes(data)


def list_in(stage, clients):
    """Where in a message of a stage a list begins that has something for every neighbor, and the size of that."""
    return {
        Kind.SHARES: (HEADER + 32, sealed_bytes(2)),
        Kind.MASKED: (HEADER + params(clients).masked_size, 16),
        Kind.ACKS: (HEADER, 16),
        Kind.REVEAL: (HEADER, 32),
    }[stage]


@pytest.mark.parametrize("stage", STAGES[1:], ids=lambda stage: stage.name)
@pytest.mark.parametrize("count", [1, None], ids=["for one neighbor", "for all"])
@pytest.mark.parametrize("clients", SIZES)
def test_bad_ciphertexts_tags_and_shares_cost_their_sender_its_part(clients, stage, count):
    chance = Random(f"{count is None} {stage}")
    malicious = some_clients(chance, clients)

    def tamper(u, at, message):
        if u not in malicious or at != stage:
            return None
        if stage == Kind.ACKS and params(clients).sparse:  # a signature for everybody
            return message[:HEADER] + chance.randbytes(SIGNATURE_BYTES) + message[HEADER + SIGNATURE_BYTES :]
        return spoil(message, *list_in(stage, clients), chance, count)

    _, blamed = outcome(clients, malicious, intercept=tamper)
    assert blamed <= malicious  # nobody else is ever blamed
    if stage == Kind.REVEAL or (count is None and stage != Kind.ACKS):
        assert blamed == malicious


def test_a_dispute_drops_nobody():
    refused, server = {}, Server(params(16))
    clients = {u: Client(params(16), u) for u in range(16)}

    def tamper(u, stage, message):
        if stage == Kind.MASKED:
            refused[u] = params(16).read(message, stage, u)[2]
        if (u, stage) == (7, Kind.SHARES):
            return spoil(message, *list_in(stage, 16), Random(3), 2)
        return message

    round_ = Round(params=params(16), clients=clients, server=server, values=values(1))
    for stage in STAGES:
        for u, message in round_.answers(stage).items():
            server.receive(tamper(u, stage, message), u)
        round_.inbox = server.advance() if stage != Kind.REVEAL else {}
    assert (server.finish() == 16 * values(1)).all()
    accusers = [u for u in range(16) if 7 in refused[u]]
    assert len(accusers) == 2
    assert server.disputes == [(u, 7) for u in accusers]
    assert not server.blamed  # one of each pair has lied, and nobody else can tell which


def test_those_in_most_disputes_are_left_out():
    assert list(most_disputed({(1, 2), (3, 1), (1, 4)})) == [1]
    assert sorted(most_disputed({(1, 2), (3, 1), (1, 4), (5, 6)})) == [1, 5, 6]


def dealing_wrongly(monkeypatch, malicious, change):
    """Let some clients deal other shares than those of their secrets, encrypted and committed to as they should be."""
    split, calls = sharing.split, iter(range(10**6))  # the malicious ones deal once: they are not asked again

    def wrong(*arguments):
        return change(split, *arguments) if next(calls) in malicious else split(*arguments)

    monkeypatch.setattr(sharing, "split", wrong)


def zeros(count):
    def change(split, *arguments):
        return [bytes(64) if index < count else share for index, share in enumerate(split(*arguments))]

    return change


def other_secret(split, secret, *arguments):
    return split(bytes(len(secret)), *arguments)


@pytest.mark.parametrize("silent", [False, True], ids=["goes on", "falls silent"])
@pytest.mark.parametrize("change", [zeros(2), zeros(16), other_secret], ids=["two", "all", "another secret"])
def test_shares_that_do_not_belong_to_the_secret(monkeypatch, change, silent):
    dealing_wrongly(monkeypatch, {4, 9}, change)
    _, blamed = outcome(16, {4, 9}, dropouts={4: Kind.MASKED, 9: Kind.MASKED} if silent else {})
    assert blamed <= {4, 9}
    assert change is not other_secret or blamed == {4, 9}


def test_one_who_deals_badly_to_as_many_as_may_be_malicious_and_a_silent_friend():
    """Shares for k − t neighbors cannot be opened, and one more neighbor says nothing at the end."""

    def tamper(u, stage, message):
        return spoil(message, *list_in(stage, 16), Random(1), 4) if (u, stage) == (7, Kind.SHARES) else None

    _, blamed = outcome(16, {7, 9}, dropouts={9: Kind.REVEAL}, intercept=tamper)
    assert blamed <= {7}


def test_a_round_with_too_many_malicious_clients_ends(monkeypatch):
    dealing_wrongly(monkeypatch, set(range(5)), other_secret)
    with pytest.raises(Aborted, match="11 clients are left after KEYS: must be at least 12"):
        aggregate(params(16), values)
    assert issubclass(CorruptedRound, Aborted)


@pytest.mark.parametrize("count", [1, 2])
def test_shares_that_were_not_dealt_are_found_out(count):
    """Some clients lie about their share of the secret of client 0: they are blamed."""
    round_ = Round(Kind.REVEAL)
    for u, message in round_.answers(Kind.REVEAL).items():
        if 1 <= u <= count:
            wrong = bytearray(message)
            wrong[HEADER + 4 + 4] ^= 1  # the first entry: client 0
            with refuses(f"client {u} has revealed a share of client 0 that was not dealt to it"):
                round_.server.receive(bytes(wrong), u)
        else:
            round_.server.receive(message, u)
    assert sorted(round_.server.blamed) == list(range(1, count + 1))
    if count == 1:
        assert (round_.server.finish() == 5 * VALUES).all()
    else:
        with refuses("2 neighbors of client 0 are left to recover its secret: must be at least 3"):
            round_.server.finish()
