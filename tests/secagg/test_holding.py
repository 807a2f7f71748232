"""Two kinds of clients in one sum: noise that is taken back, once, into the right sum; and the noise of who is gone."""

from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest

from rqm.secagg import Aborted, Client, Params, ProtocolError, Server
from rqm.secagg.holding import Held
from rqm.secagg.wire import STAGES, Kind

N, COUNT, BITS = 5, 3, 12
ABOUT = [sha256(b"%d" % turn).digest() for turn in range(4)]


def params(turn, owed=None, **change):
    second = 0 if owed is None else len(owed.members)
    found = Params(
        clients=N + second,
        count=COUNT,
        levels=2**BITS,
        round=b"%d" % turn,
        degree=N + second - 1,
        threshold=(N + second) // 2 + 1,
        minimum=2,
        bits=BITS,
        modular=True,
        about=ABOUT[turn],
        second=second,
        follows=b"" if owed is None else owed.name,
        least=3,
        holds=3,
    )
    return replace(found, **change)


def noise(secret):
    return np.frombuffer(sha256(secret).digest()[: 2 * COUNT], "<u2").astype(np.int64) % 50


def carry_out(now, turn, owed=None, held=(), lost=None, hears=lambda u, stage, data: data, view=None):
    """A round in which client u sends u, 1, 0 and its noise, or takes back its noise; the sum less what is found."""
    lost = lost or {}
    clients = {}
    for u in range(now.clients):
        if lost.get(u) != Kind.KEYS:
            before = held[u - N] if u >= N else None
            clients[u] = Client(now, u, held=before, after=ABOUT[turn + 1])
    server = Server(now, owed=owed)
    server.params = now if view is None else view(now)
    inbox = dict.fromkeys(clients, b"")
    for stage in STAGES:
        for u, data in inbox.items():
            if stage >= lost.get(u, 99):
                continue

            def values(u=u):
                own = -noise(held[u - N].secret) if u >= N else np.array([u, 1, 0]) + noise(clients[u].secret)
                return own % 2**BITS

            server.receive(hears(u, stage, clients[u].answer(stage, data, values)), u)
        if stage != Kind.REVEAL:
            inbox = server.advance()
    total = server.finish()
    found = server.secrets()
    for secret in found.values():
        total = (total - noise(secret)) % 2**BITS if secret is not None else total
    owes = server.owed()
    return total, [clients[u].held for u in owes.members], owes, found, clients


def clean(total, clients, before=None):
    """What clients sent of their own, given the noise of all in the sum, and in the one before."""
    rest = total - sum(noise(one.secret) for one in clients) + sum(noise(one.secret) for one in before or ())
    return (rest % 2**BITS).tolist()


def test_what_was_added_is_taken_back_in_the_sum_that_follows():
    total, held, owed, _, _ = carry_out(params(0), 0)
    assert clean(total, held) == [10, 5, 0]
    total, later, owed, found, _ = carry_out(params(1, owed), 1, owed, held)
    assert clean(total, later, held) == [10, 5, 0]
    assert not found


@pytest.mark.parametrize("stage", STAGES)
def test_the_noise_of_who_is_gone_is_found_again_and_no_other(stage):
    _, held, owed, _, _ = carry_out(params(0), 0)
    lost = {N + 1: stage, N + 4: stage}
    now = params(1, owed)
    total, later, _, found, _ = carry_out(now, 1, owed, held, lost)
    assert clean(total, later, held) == [10, 5, 0]
    gone = {1, 4} if stage <= Kind.MASKED else set()
    assert found.keys() == gone
    assert all(found[u] == held[u].secret for u in gone)


def test_who_was_not_in_the_sum_owes_nothing_and_holds_nothing():
    lost = {2: Kind.MASKED}
    total, held, owed, _, clients = carry_out(params(0), 0, lost=lost)
    assert clean(total, held) == [8, 4, 0]
    assert owed.members == (0, 1, 3, 4)
    assert clients[2].held is None
    total, later, _, _, _ = carry_out(params(1, owed), 1, owed, held)
    assert clean(total, later, held) == [10, 5, 0]


def test_in_the_sum_but_silent_since_is_gone_in_the_next():
    _, held, owed, _, clients = carry_out(params(0), 0, lost={2: Kind.ACKS})
    assert clients[2].held is None
    assert owed.members == (0, 1, 2, 3, 4)
    total, later, _, found, _ = carry_out(params(1, owed), 1, owed, held, lost={N + 2: Kind.KEYS})
    assert clean(total, later, clients.values()) == [10, 5, 0]
    assert found == {2: clients[2].secret}


@pytest.mark.parametrize("kind", ["first", "second"])
def test_too_few_of_one_kind_and_nothing_is_revealed(kind):
    _, held, owed, _, _ = carry_out(params(0), 0)
    few = range(3) if kind == "first" else range(N, N + 3)
    with pytest.raises(Aborted, match=f"2 clients of the {kind} kind: must be at least 3"):
        carry_out(params(1, owed), 1, owed, held, dict.fromkeys(few, Kind.SHARES))


class Blind:
    """Parameters as a server sees them that does not care how many of each kind there are."""

    def __init__(self, given):
        self.given = given

    def __getattr__(self, name):
        return (lambda there: "") if name == "short_of" else getattr(self.given, name)


@pytest.mark.parametrize("kind", ["first", "second"])
def test_clients_refuse_a_sum_with_too_few_of_one_kind_themselves(kind):
    _, held, owed, _, _ = carry_out(params(0), 0)
    few = dict.fromkeys(range(3) if kind == "first" else range(N, N + 3), Kind.MASKED)
    with pytest.raises(ProtocolError, match=f"a sum of 2 clients of the {kind} kind: must be at least 3"):
        carry_out(params(1, owed), 1, owed, held, few, view=Blind)
    carry_out(params(1, owed, least=2), 1, owed, held, few, view=Blind)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"about": ABOUT[2]}, "does not follow"),  # a later round of the chain, or another kind of noise
        ({"about": b""}, "does not follow"),
        ({"follows": bytes(32)}, "does not follow"),
        ({"second": N - 1, "clients": 2 * N - 1, "degree": 2 * N - 2}, "in another place, or among others"),
    ],
)
def test_noise_is_taken_back_in_no_other_sum(change, words):
    _, held, owed, _, _ = carry_out(params(0), 0)
    now = params(1, owed)
    Client(now, N, held=held[0])
    with pytest.raises(ProtocolError, match=words):
        Client(replace(now, **change), replace(now, **change).first, held=held[0])
    with pytest.raises(ProtocolError, match="another place"):
        Client(now, N + 1, held=held[0])
    with pytest.raises(ProtocolError, match="in no sum"):
        Client(now, N + 1)


def test_shares_of_the_noise_of_those_who_are_there_are_given_to_nobody():
    _, held, owed, _, _ = carry_out(params(0), 0)
    said = {}
    _, _, _, _, _ = carry_out(
        params(1, owed), 1, owed, held, {N + 1: Kind.MASKED}, lambda u, stage, data: said.setdefault((u, stage), data)
    )
    reveal = b"".join(data for (u, stage), data in said.items() if stage == Kind.REVEAL)
    for holder in held:
        for place, share in holder.shares.items():
            assert (share in reveal) == (place == 1 and holder.place != 1)


def test_a_false_share_costs_its_sender_its_place():
    _, held, owed, _, _ = carry_out(params(0), 0)

    def hears(u, stage, data):
        return data[:-1] + bytes([data[-1] ^ 1]) if (u, stage) == (N + 2, Kind.REVEAL) else data

    with pytest.raises(ProtocolError, match="that was not dealt"):
        carry_out(params(1, owed), 1, owed, held, {N + 1: Kind.MASKED}, hears)


def test_what_is_held_can_be_saved():
    _, held, _, _, _ = carry_out(params(0), 0)
    again = Held.load(held[0].save())
    assert again == held[0]
    assert held[0].secret.hex() not in repr(held[0])
    for damaged in (b"", b"[]", b"{}", held[0].save()[:-9]):
        with pytest.raises(ProtocolError, match="not what a client holds"):
            Held.load(damaged)


def test_a_client_of_either_kind_can_be_saved_at_every_stage():
    """The same sums from clients that are written down after every message."""
    _, held, owed, _, _ = carry_out(params(0), 0)
    now = params(1, owed)
    clients = {u: Client(now, u, held=held[u - N] if u >= N else None, after=ABOUT[2]) for u in range(2 * N)}
    server, inbox = Server(now, owed=owed), dict.fromkeys(clients, b"")
    for stage in STAGES:
        for u, data in inbox.items():
            secret = held[u - N].secret if u >= N else clients[u].secret
            sign = -1 if u >= N else 1
            server.receive(clients[u].answer(stage, data, lambda s=secret, i=sign: i * noise(s) % 2**BITS), u)
            clients[u] = Client.load(now, clients[u].save(), held=held[u - N] if u >= N else None)
        inbox = server.advance() if stage != Kind.REVEAL else {}
    assert clean(server.finish(), [clients[u].held for u in range(N)], held) == [0, 0, 0]
