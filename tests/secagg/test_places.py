"""Who is of the second kind was in the sum that a round follows: nobody else has a place there."""

import pytest

from rqm.secagg import Client, Identity, ProtocolError, Roster, Server
from rqm.secagg.holding import Held
from rqm.secagg.wire import STAGES, Kind
from tests.secagg.test_holding import ABOUT, BITS, N, noise, params

WHO = [Identity(bytes([u]) * 32) for u in range(3 * N)]
ROSTER = Roster.of([one.public for one in WHO])


def carry_out(now, server, clients, values):
    """All messages of a round, written down after each."""
    inbox = dict.fromkeys(clients, b"")
    for stage in STAGES:
        for u, data in inbox.items():
            server.receive(clients[u].answer(stage, data, lambda u=u: values(u) % 2**BITS), u)
            own = clients[u]
            clients[u] = Client.load(now, own.save(), own._identity, ROSTER, held=own._before)
        inbox = server.advance() if stage != Kind.REVEAL else {}


def first_sum():
    now = params(0, roster=ROSTER.hash)
    clients = {u: Client(now, u, WHO[u], ROSTER, after=ABOUT[1]) for u in range(N)}
    server = Server(now, ROSTER)
    carry_out(now, server, clients, lambda u: noise(clients[u].secret))
    return server.owed(), [Held.load(clients[u].held.save()) for u in range(N)]


def second_sum(owed, held, there):
    """A round after it; ``there`` says who is in which place of the second kind."""
    now = params(1, owed, roster=ROSTER.hash)
    clients = {u: Client(now, u, WHO[N + u], ROSTER, after=ABOUT[2]) for u in range(N)}
    for place, who in there.items():  # who was not in the sum has been told all that is held in that place
        clients[N + place] = Client(now, N + place, WHO[who], ROSTER, held=held[place])
    server = Server(now, ROSTER, owed=owed)
    carry_out(now, server, clients, lambda u: -noise(held[u - N].secret) if u >= N else noise(clients[u].secret))
    return server.secrets()


def test_those_who_were_in_the_sum_are_there():
    owed, held = first_sum()
    assert second_sum(owed, held, {place: place for place in range(N)}) == {}
    assert second_sum(owed, held, {place: place for place in range(1, N)}) == {0: held[0].secret}


@pytest.mark.parametrize("who", [2 * N, 4])
def test_somebody_else_in_the_place_of_one_who_was_is_refused(who):
    """Or others of the server's could stand for those who follow elsewhere: one sum would be taken back in two."""
    owed, held = first_sum()
    with pytest.raises(ProtocolError, match=f"client {N + 1} was not in the sum that this round follows"):
        second_sum(owed, held, {0: 0, 1: who, 2: 2, 3: 3})
