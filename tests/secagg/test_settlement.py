"""Clients that send vectors and clients that settle in one sum: noise is settled once, in the right sum."""

from dataclasses import replace
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
import pytest

from rqm.secagg import Aborted, Client, Params, ProtocolError, Server, wire
from rqm.secagg.settlement import ClientSettlement
from rqm.secagg.wire import STAGES, Kind
from tests.secagg.rounds import IDENTITIES, roster_of

N, COUNT, BITS = 5, 3, 12
CONTEXTS = [sha256(b"%d" % index).digest() for index in range(4)]
ROSTER = roster_of(3 * N)


def params(index=0, pending=None, **change):
    settling = 0 if pending is None else len(pending.members)
    values = {
        "clients": N + settling,
        "count": COUNT,
        "levels": 2**BITS,
        "round": b"%d" % index,
        "threshold": (N + settling) // 2 + 1,
        "minimum": 2,
        "bits": BITS,
        "modular": True,
        "context": CONTEXTS[index],
        "settling_clients": settling,
        "previous_sum": b"" if pending is None else pending.name,
        "min_per_kind": 3,
        "noise_threshold": 3,
    }
    return Params(**{**values, **change})


def noise(secret):
    return np.frombuffer(sha256(secret).digest()[: 2 * COUNT], "<u2").astype(np.int64) % 50


class Outcome(NamedTuple):
    """A sum without the noise that the server has recovered, and what is kept for the next round."""

    total: Any
    clients: dict[int, Client]
    pending: Any
    settlements: list[ClientSettlement]
    recovered: dict[int, Any]


def carry_out(previous=None, dropouts=None, *, tamper=None, blind=False, owners=None, **change):
    """A round in which client u sends u, 1, 0 and its noise, or settles its noise; all are saved after each message.

    A server that is blind does not care how many clients of each kind there are.
    """
    dropouts, index, pending = dropouts or {}, 0 if previous is None else 1, previous and previous.pending
    now = params(index, pending, **change)
    roster, of_server = ROSTER if now.roster else None, replace(now)
    if blind:
        object.__setattr__(of_server, "check_survivors", lambda *_: None)
    server, options, clients = Server(of_server, roster, previous=pending), {}, {}
    for u in set(range(now.clients)) - {u for u, stage in dropouts.items() if stage == Kind.KEYS}:
        owner = (owners or {}).get(u, u - N if u >= N else u + index * N)
        options[u] = {"previous": previous.settlements[u - N] if u >= N else None}
        options[u] |= {"identity": IDENTITIES[owner], "roster": roster} if roster else {}
        clients[u] = Client(now, u, next_context=CONTEXTS[index + 1], **options[u])

    def values(u):
        if u >= N:
            return -noise(previous.settlements[u - N].noise_secret) % 2**BITS
        return np.array([u, 1, 0]) + noise(clients[u].noise_secret)

    inbox = dict.fromkeys(clients, b"")
    for stage in STAGES:
        for u, data in inbox.items():
            if stage < dropouts.get(u, 99):
                message = clients[u].answer(stage, data, lambda u=u: values(u))
                clients[u] = Client.load(now, clients[u].save(), **options[u])
                server.receive(tamper(u, stage, message) if tamper else message, u)
        inbox = server.advance() if stage != Kind.REVEAL else {}
    total, recovered, pending = server.finish(), server.recovered_secrets(), server.settlement()
    for secret in recovered.values():
        total = (total - noise(secret)) % 2**BITS if secret is not None else total
    settlements = [clients[u].settlement for u in pending.members]
    return Outcome(total, clients, pending, settlements, recovered)


def clean(outcome, previous=None):
    """What clients sent of their own, given the noise of all in the sum, and in the previous one."""
    total = outcome.total - sum(noise(settlement.noise_secret) for settlement in outcome.settlements)
    total += sum(noise(settlement.noise_secret) for settlement in (previous.settlements if previous else ()))
    return (total % 2**BITS).tolist()


@pytest.fixture(scope="module")
def first():
    return carry_out()


def test_noise_is_settled_in_the_sum_that_follows(first):
    assert clean(first) == [10, 5, 0]
    second = carry_out(first)
    assert clean(second, first) == [10, 5, 0]
    assert not second.recovered


@pytest.mark.parametrize("stage", STAGES)
def test_the_noise_of_dropouts_is_recovered_and_no_other(first, stage):
    second = carry_out(first, {N + 1: stage, N + 4: stage})
    assert clean(second, first) == [10, 5, 0]
    dropouts = {1, 4} if stage <= Kind.MASKED else set()
    assert second.recovered == {u: first.settlements[u].noise_secret for u in dropouts}


def test_noise_of_dropouts_is_not_recovered_by_too_few(first):
    silent = {N + u: Kind.REVEAL for u in (0, 2, 3)}
    assert carry_out(first, {N + 1: Kind.MASKED, **silent}, threshold=5).recovered == {1: None}


def test_who_is_not_in_the_sum_has_nothing_to_settle():
    first = carry_out(dropouts={2: Kind.MASKED})
    assert clean(first) == [8, 4, 0]
    assert first.pending.members == (0, 1, 3, 4)
    assert first.clients[2].settlement is None
    assert clean(carry_out(first), first) == [10, 5, 0]


def test_who_is_in_the_sum_but_silent_since_is_a_dropout_of_the_next():
    first = carry_out(dropouts={2: Kind.ACKS})
    assert first.clients[2].settlement is None
    assert first.pending.members == (0, 1, 2, 3, 4)
    second = carry_out(first, {N + 2: Kind.KEYS})
    assert second.recovered == {2: first.clients[2].noise_secret}
    hidden = sum(noise(client.noise_secret) for client in first.clients.values())
    assert ((first.total - hidden) % 2**BITS).tolist() == [10, 5, 0]


@pytest.mark.parametrize(("dropped", "kind"), [(range(3), "send vectors"), (range(N, N + 3), "settle")])
def test_too_few_of_one_kind(first, dropped, kind):
    """The round ends; and where the server does not care, clients refuse such a sum themselves."""
    with pytest.raises(Aborted, match=f"2 clients that {kind} are left after SHARES: must be at least 3"):
        carry_out(first, dict.fromkeys(dropped, Kind.SHARES))
    dropouts = dict.fromkeys(dropped, Kind.MASKED)
    with pytest.raises(ProtocolError, match=f"2 clients that {kind} are in the sum: must be at least 3"):
        carry_out(first, dropouts, blind=True)
    carry_out(first, dropouts, min_per_kind=2)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"context": CONTEXTS[2]}, "does not follow"),  # a later round of the chain, or another kind of noise
        ({"context": b""}, "does not follow"),
        ({"previous_sum": bytes(32)}, "does not follow"),
        ({"settling_clients": N - 1, "clients": 2 * N - 1}, "under another index, or among others"),
    ],
)
def test_noise_is_settled_in_no_other_sum(first, change, match):
    now, settlement = params(1, first.pending), first.settlements[0]
    Client(now, N, previous=settlement)
    with pytest.raises(ProtocolError, match=match):
        Client(params(1, first.pending, **change), N, previous=settlement)
    with pytest.raises(ProtocolError, match="another index"):
        Client(now, N + 1, previous=settlement)
    with pytest.raises(ProtocolError, match="in no sum"):
        Client(now, N)
    with pytest.raises(ValueError, match="must be the settlement of the sum that this round follows"):
        Server(now)


def test_shares_of_the_noise_of_those_who_settle_are_given_to_nobody(first):
    messages = {}
    carry_out(first, {N + 1: Kind.MASKED}, tamper=lambda u, stage, data: messages.setdefault((u, stage), data))
    reveal = b"".join(data for (_, stage), data in messages.items() if stage == Kind.REVEAL)
    for holder in first.settlements:
        for index, share in holder.shares.items():
            assert (share in reveal) == (index == 1 and holder.index != 1)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda shares: {1: bytes(32)}, "that was not dealt"),
        (lambda shares: shares | {3: bytes(32)}, "client 3 of the previous round, which has settled"),
    ],
)
def test_false_shares_of_noise_secrets_are_refused(first, change, match):
    def tamper(u, stage, data):
        if (u, stage) != (N + 2, Kind.REVEAL):
            return data
        now = params(1, first.pending)
        shares, noise_shares = now.read(data, stage, u)
        return wire.frame(stage, now.digest, u, shares, change(noise_shares))

    with pytest.raises(ProtocolError, match=match):
        carry_out(first, {N + 1: Kind.MASKED}, tamper=tamper)


def test_noise_secrets_are_shared_with_all_others_that_send_vectors():
    def tamper(u, stage, data):
        if (u, stage) != (2, Kind.SHARES):
            return data
        *fields, noise_shares = params().read(data, stage, u)
        return wire.frame(stage, params().digest, u, *fields, {1: noise_shares[1]})

    with pytest.raises(ProtocolError, match="client 2 has not shared its noise secret with all others"):
        carry_out(tamper=tamper)


def test_settlements_can_be_saved(first):
    settlement = first.settlements[0]
    assert ClientSettlement.load(settlement.save()) == settlement
    assert settlement.noise_secret.hex() not in repr(settlement)
    for damaged in (b"", b"[]", b"{}", settlement.save()[:-9], settlement.save().replace(b'"index": 0', b'"index": 1')):
        with pytest.raises(ProtocolError, match="not a client's saved settlement"):
            ClientSettlement.load(damaged)


# -- who settles ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def signed():
    return carry_out(roster=ROSTER.hash)


def test_settling_clients_were_in_the_sum(signed):
    second = carry_out(signed, {N: Kind.KEYS}, roster=ROSTER.hash)
    assert second.recovered == {0: signed.settlements[0].noise_secret}


@pytest.mark.parametrize("owner", [2 * N, 4])
def test_nobody_else_settles_under_their_index(signed, owner):
    """Or others could stand in for clients that settle elsewhere: one sum would be settled in two."""
    with pytest.raises(ProtocolError, match=f"client {N + 1} was not in the sum that this round follows"):
        carry_out(signed, {N + 4: Kind.KEYS}, owners={N + 1: owner}, roster=ROSTER.hash)
