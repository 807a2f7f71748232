"""What some clients could try against the others: it costs them their place, never the round; and they are named."""

import copy
import pickle
from random import Random

import numpy as np
import pytest

from rqm.secagg import Aborted, Client, Params, Spoiled, wire
from rqm.secagg import client as module
from rqm.secagg.local import aggregate
from rqm.secagg.roster import SIGNATURE
from rqm.secagg.wire import STAGES, Kind

COUNT = 20
SIZES = [pytest.param(16, id="16 clients"), pytest.param(100, id="100 clients", marks=pytest.mark.slow)]


def params(clients):
    """Of 16 clients three may lie, of 100 with 30 neighbours each five."""
    size = {"degree": 30, "threshold": 20} if clients == 100 else {"threshold": 11}
    return Params(clients=clients, count=COUNT, levels=16, round=b"one", minimum=clients * 3 // 4, **size)


def some_liars(chance, clients):
    return set(chance.sample(range(2, clients), chance.randint(1, 5 if clients == 100 else 3)))


def values(u):
    return np.full(COUNT, u % 16)


def expected(survivors):
    return sum(values(u) for u in survivors)


HEADER = wire.HEADER.size
GARBAGE = {
    "nothing": lambda message, chance: b"",
    "noise": lambda message, chance: chance.randbytes(len(message)),
    "cut short": lambda message, chance: message[: chance.randrange(len(message))],
    "too long": lambda message, chance: message + chance.randbytes(3),
    "another's name": lambda message, chance: message[: HEADER - 4] + wire.number(1) + message[HEADER:],
    "another round": lambda message, chance: message[:9] + bytes(32) + message[41:],
    "a list that is too long": lambda message, chance: message[:HEADER] + b"\xff" * 4 + message[HEADER + 4 :],
    "noise inside": lambda message, chance: message[:HEADER] + chance.randbytes(len(message) - HEADER),
    "huge": lambda message, chance: message[:HEADER] + chance.randbytes(100_000),
}


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
@pytest.mark.parametrize("kind", GARBAGE)
@pytest.mark.parametrize("clients", SIZES)
def test_garbage_costs_its_sender_its_place(clients, kind, stage):
    chance = Random(f"{kind} {stage}")
    liars = some_liars(chance, clients)

    def tampers(u, at, message):
        return GARBAGE[kind](message, chance) if u in liars and at == stage else None

    total, survivors, cost = aggregate(params(clients), values, hears=tampers)
    honest_vector = (kind, stage) in (
        ("noise inside", Kind.KEYS),
        ("noise inside", Kind.MASKED),
        ("a list that is too long", Kind.MASKED),
        ("a list that is too long", Kind.KEYS),
    )
    if not honest_vector:  # keys of noise are keys, a vector of noise is a vector: nobody can tell
        assert set(cost.liars) == liars
        assert (total == expected(survivors)).all()
    in_sum = stage in (Kind.ACKS, Kind.REVEAL)  # then their vectors were there already
    assert set(range(clients)) - liars <= set(survivors)
    assert in_sum or honest_vector or liars.isdisjoint(survivors)


def spoilt_entries(message, place, size, chance, some):
    """The same message with noise in some entries of the list at ``place``."""
    data, count = bytearray(message), int.from_bytes(message[place : place + 4], "little")
    assert len(message) >= place + 4 + count * (4 + size)  # a list is there
    for entry in chance.sample(range(count), some(count)):
        start = place + 4 + entry * (4 + size) + 4
        data[start : start + size] = chance.randbytes(size)
    return bytes(data)


def lists(clients):
    """Where in a message of each stage a list begins that has something for every neighbour, and how long that is."""
    return {
        Kind.SHARES: (HEADER + 32, module.DEALT),
        Kind.MASKED: (HEADER + params(clients).masked_size, 16),
        Kind.ACKS: (HEADER, 16),
        Kind.REVEAL: (HEADER, 32),
    }


@pytest.mark.parametrize("stage", STAGES[1:], ids=lambda stage: stage.name)
@pytest.mark.parametrize("many", [False, True], ids=["for one neighbour", "for all"])
@pytest.mark.parametrize("clients", SIZES)
def test_bad_ciphertexts_tags_and_shares_cost_their_sender_its_place(clients, stage, many):
    chance = Random(f"{many} {stage}")
    liars = some_liars(chance, clients)
    place, size = lists(clients)[stage]

    def tampers(u, at, message):
        if u in liars and at == stage:
            if stage == Kind.ACKS and params(clients).sparse:  # a signature for everybody
                return message[:HEADER] + chance.randbytes(SIGNATURE) + message[HEADER + SIGNATURE :]
            return spoilt_entries(message, place, size, chance, lambda count: count if many else 1)
        return None

    total, survivors, cost = aggregate(params(clients), values, hears=tampers)
    assert (total == expected(survivors)).all()
    assert set(range(clients)) - liars <= set(survivors)
    provable = many or stage == Kind.REVEAL
    if provable and stage != Kind.ACKS:
        assert set(cost.liars) == liars
    assert set(cost.liars) <= liars  # nobody else is ever named


def test_a_dispute_drops_nobody():
    place, size = lists(16)[Kind.SHARES]
    heard = {}

    def tampers(u, at, message):
        if at == Kind.MASKED:
            _, rest = wire.read_entries(memoryview(message)[lists(16)[at][0] :], 16, 16)
            heard[u] = wire.read_clients(rest, 16)[0]
        return spoilt_entries(message, place, size, Random(3), lambda _: 2) if (u, at) == (7, Kind.SHARES) else None

    total, survivors, cost = aggregate(params(16), values, hears=tampers)
    assert sorted(survivors) == list(range(16))
    assert (total == expected(survivors)).all()
    assert sum(7 in some for some in heard.values()) == 2
    assert not cost.liars  # one of each two lies, and nobody else can tell which


def dealing_wrongly(monkeypatch, liars, spoil):
    """Let some clients deal other shares than those of their secrets; all is encrypted and promised as it should be."""
    split, turn = module.sharing.split, iter(range(10**6))  # the liars' turns come once: they are not asked again

    def wrong(secret, points, threshold, random):
        given = secret, points, threshold, random
        return spoil(split, *given) if next(turn) in liars else split(*given)

    monkeypatch.setattr(module.sharing, "split", wrong)


def shifted(some):
    def spoil(split, *given):
        return [bytes(64) if place < some else share for place, share in enumerate(split(*given))]

    return spoil


def other_secret(split, secret, *given):
    return split(bytes(len(secret)), *given)


@pytest.mark.parametrize("silent", [False, True], ids=["goes on", "falls silent"])
@pytest.mark.parametrize("spoil", [shifted(2), shifted(16), other_secret], ids=["two", "all", "another secret"])
def test_shares_that_do_not_belong_to_the_secret(monkeypatch, spoil, silent):
    dealing_wrongly(monkeypatch, {4, 9}, spoil)
    lost = {4: Kind.MASKED, 9: Kind.MASKED} if silent else {}
    total, survivors, cost = aggregate(params(16), values, lost=lost)
    assert (total == expected(survivors)).all()
    assert set(range(16)) - {4, 9} <= set(survivors)
    assert set(cost.liars) <= {4, 9}
    assert spoil is not other_secret or set(cost.liars) == {4, 9}


def test_one_who_deals_badly_to_as_many_as_may_lie_and_a_silent_friend():
    """Shares for k − t neighbours cannot be opened, and one more neighbour says nothing at the end."""
    place, size = lists(16)[Kind.SHARES]

    def tampers(u, at, message):
        return spoilt_entries(message, place, size, Random(1), lambda _: 4) if (u, at) == (7, Kind.SHARES) else None

    total, survivors, cost = aggregate(params(16), values, lost={9: Kind.REVEAL}, hears=tampers)
    assert set(cost.liars) <= {7}
    assert set(range(16)) - {7, 9} <= set(survivors)
    assert (total == expected(survivors)).all()


def test_a_round_with_too_many_liars_ends(monkeypatch):
    dealing_wrongly(monkeypatch, set(range(5)), other_secret)
    with pytest.raises(Aborted, match="11 clients are left after KEYS: must be at least 12"):
        aggregate(params(16), values)
    assert issubclass(Spoiled, Aborted)


def test_a_client_cannot_be_copied():
    client = Client(params(16), 0)
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied"):
            attempt(client)
