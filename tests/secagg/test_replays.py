"""Messages and keys of another round, of another client, of another plan, or a second time."""

from dataclasses import replace

import pytest

from rqm.secagg import Client, Identity, Params, Roster, masking, wire
from rqm.secagg.wire import Kind
from tests.secagg.rounds import PARAMS, STEPS, Round
from tests.secagg.test_malicious import refuses, shares, told


@pytest.mark.parametrize("kind", list(STEPS))
def test_a_message_sent_twice(kind):
    round_ = Round(kind)
    STEPS[kind](round_.clients[0], round_.inbox[0])
    with refuses("not due|says nothing more"):
        STEPS[kind](round_.clients[0], round_.inbox[0])


@pytest.mark.parametrize("kind", list(STEPS))
def test_a_message_of_another_round(kind):
    other = Params(clients=5, count=3, levels=16, round=b"two", threshold=3)
    data = Round(kind, other).inbox[0]
    with refuses("a message of another round"):
        STEPS[kind](Round(kind).clients[0], data)


@pytest.mark.parametrize("kind", list(STEPS))
def test_a_message_for_another_client(kind):
    round_ = Round(kind)
    with refuses("a message for client 1: this is client 0"):
        STEPS[kind](round_.clients[0], round_.inbox[1])


def test_shares_of_another_run_of_the_same_round():
    with refuses("shares from client 1 were altered"):
        STEPS[Kind.INBOX](Round(Kind.INBOX).clients[0], Round(Kind.INBOX).inbox[0])


def test_one_round_with_two_plans():
    """The others are ordered less noise, under the same name: their keys are signed for that, and good for nothing."""
    members = [Identity(bytes([u + 1]) * 32) for u in range(5)]
    roster = Roster.of([one.public for one in members])
    mine, theirs = (replace(PARAMS, roster=roster.hash, about=bytes([plan]) * 32) for plan in (1, 2))
    client = Client(mine, 0, members[0], roster)
    keys = {0: bytes(wire.unframe(client.keys(), Kind.KEYS, mine.digest))}
    for u in range(1, 5):
        keys[u] = bytes(wire.unframe(Client(theirs, u, members[u], roster).keys(), Kind.KEYS, theirs.digest))
    with refuses("client 1"):
        client.share(wire.frame(Kind.PARTIES, mine.digest, 0, wire.entries(keys.items())))


def test_nothing_is_encoded_before_it_is_due():
    client = Round(Kind.PARTIES).clients[0]
    with refuses("INBOX: not due"):
        client.answer(Kind.MASKED, b"", lambda: pytest.fail("encoded"))


def test_keys_of_an_earlier_run_of_the_same_round():
    """Signed, of clients who were lost then, so that the server has their mask keys: they say nothing now."""
    members = [Identity(bytes([u + 1]) * 32) for u in range(8)]
    roster = Roster.of([one.public for one in members])
    params = Params(clients=8, count=3, levels=16, round=b"one", threshold=4, minimum=7, roster=roster.hash)
    live, ghosts = range(5), range(5, 7)
    clients = {u: Client(params, u, members[u], roster) for u in (*live, *ghosts)}
    keys = wire.entries((u, bytes(wire.unframe(one.keys(), Kind.KEYS, params.digest))) for u, one in clients.items())

    def answers(kind, body, skip, size):
        found = {}
        for u in live:
            message = STEPS[kind](clients[u], wire.frame(kind, params.digest, u, body(u)))
            found[u] = wire.read_entries(wire.unframe(message, Kind(kind + 1), params.digest)[skip:], size, 8)[0]
        return lambda u: [(v, bytes(found[v][u])) for v in live if v != u]

    dealt = answers(Kind.PARTIES, lambda _: keys, 32, masking.DEALT)
    absent = wire.clients(list(ghosts))
    tags = answers(Kind.INBOX, lambda u: wire.entries(dealt(u)) + absent, params.masked_size, 16)
    everybody, none = wire.pack_set({*live, *ghosts}, 8), [(v, bytes(16)) for v in ghosts]
    acks = answers(Kind.SURVIVORS, lambda u: everybody + wire.entries(tags(u) + none) + wire.clients([]), 0, 16)
    with refuses("4 clients were told of this sum: must be at least 6"):
        STEPS[Kind.PROOF](clients[0], wire.frame(Kind.PROOF, params.digest, 0, wire.entries(acks(0))))


def test_shares_that_were_meant_for_another_client():
    round_ = Round(Kind.INBOX)
    mine, others = (shares(round_, to) for to in (0, 1))
    message = round_.send(Kind.INBOX, wire.entries({**mine, 2: others[2]}.items()), wire.clients([]))
    rest = wire.read_entries(wire.unframe(message, Kind.MASKED, PARAMS.digest)[PARAMS.masked_size :], 16, 5)[1]
    assert wire.read_clients(rest, 5)[0] == {2}  # kept from nobody, and not kept
    again = Round(Kind.INBOX)
    mine, others = (shares(again, to) for to in (0, 1))
    with refuses("shares from client 2 were altered, or belong to another round or client; those of 2 others"):
        again.send(Kind.INBOX, wire.entries({**mine, 2: others[2], 3: others[3]}.items()), wire.clients([]))


def test_a_client_that_has_refused_stays_silent():
    round_ = Round(Kind.SURVIVORS)
    good = round_.inbox[0]
    with refuses("both"):
        told(round_, [1, 2, 3, 4], [2])
    with refuses("says nothing more"):
        round_.clients[0].acknowledge(good)


def test_out_of_turn():
    with refuses("PROOF: not due, SURVIVORS is"):
        Round(Kind.SURVIVORS).clients[0].reveal(b"")
    client = Client(PARAMS, 0)
    client.keys()
    with refuses("keys were sent already"):
        client.keys()
