"""Exact sums, whoever is lost and when; a clean end when too few are left."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rqm.secagg import Aborted, Client, Identity, Params, Roster, Server
from rqm.secagg.local import aggregate
from rqm.secagg.wire import STAGES, Kind


def values(u):
    return np.array([15, 0, (7 * u + 3) % 16])


def expected(params, lost):
    """Who is in the sum by the rules, with everybody as neighbours; None if the round must end without one."""
    t = params.threshold
    here = [u for u in range(params.clients) if lost.get(u) != Kind.KEYS]
    if len(here) < params.minimum or len(here) - 1 < t:
        return None
    here = [u for u in here if lost.get(u) != Kind.SHARES]
    if len(here) < params.minimum or len(here) - 1 < t:  # too few have shared: nobody masks anything
        return None
    in_sum = [u for u in here if lost.get(u) != Kind.MASKED]
    if len(in_sum) < params.minimum or len(in_sum) - 1 < t:
        return None
    acks = [u for u in in_sum if lost.get(u) != Kind.ACKS]
    if len(acks) < params.minimum or len(acks) - 1 < t:  # nobody hears from enough
        return None
    left = [u for u in acks if lost.get(u) != Kind.REVEAL]
    owners = set(here)  # of the secrets that are needed
    if any(len(set(left) - {u}) < t for u in owners):
        return None
    return in_sum


def check(params, lost):
    wanted = expected(params, lost)
    if wanted is None:
        with pytest.raises(Aborted):
            aggregate(params, values, lost)
        return False
    total, survivors, _ = aggregate(params, values, lost)
    assert survivors == wanted
    assert (total == sum(values(u) for u in wanted)).all()
    return True


def every_pattern(clients, threshold, first=(None, *STAGES)):
    params = Params(clients=clients, count=3, levels=16, round=b"all", threshold=threshold, minimum=2)
    done = 0
    for pattern in product(first, *[(None, *STAGES)] * (clients - 1)):
        done += check(params, {u: stage for u, stage in enumerate(pattern) if stage})
    return done


@pytest.mark.parametrize(
    ("clients", "threshold", "sums"), [(2, 1, 1), (3, 2, 1), pytest.param(4, 3, 1, marks=pytest.mark.slow), (4, 2, 21)]
)
def test_every_pattern_of_losses(clients, threshold, sums):
    """With four clients and a threshold of two, one may be lost at any of five stages: 1 + 4 · 5 patterns end well."""
    assert every_pattern(clients, threshold) == sums


@pytest.mark.slow
@pytest.mark.parametrize("first", [None, *STAGES])
@pytest.mark.parametrize(("clients", "threshold"), [(5, 3), (6, 3)])
def test_every_pattern_of_losses_among_more(clients, threshold, first):
    every_pattern(clients, threshold, [first])


@settings(max_examples=10)
@given(st.integers(0, 2**32), st.sampled_from([39, 24]))
def test_a_third_of_forty_may_be_lost(seed, degree):
    rng = np.random.default_rng(seed)
    params = Params(clients=40, count=50, levels=16, round=b"x", degree=degree, threshold=degree // 2 + 1, minimum=25)
    z = rng.integers(0, 16, (40, 50))
    gone = rng.permutation(40)[: rng.integers(0, 14)]
    lost = {int(u): STAGES[rng.integers(5)] for u in gone}
    try:
        total, survivors, _ = aggregate(params, lambda u: z[u], lost)
    except Aborted:
        assert degree == 24  # a few may have lost nearly half of their neighbours
        assert len(gone) > 4
        return
    assert survivors == [u for u in range(40) if lost.get(u) not in (Kind.KEYS, Kind.SHARES, Kind.MASKED)]
    assert (total == z[survivors].sum(axis=0)).all()


@settings(max_examples=25)
@given(st.integers(2, 6), st.integers(2, 300), st.integers(1, 70), st.integers(0, 20), st.integers(0, 2**32))
def test_any_number_of_bits_and_values(clients, levels, count, more, seed):
    bits = min(32, (clients * (levels - 1)).bit_length() + more)
    params = Params(clients=clients, count=count, levels=levels, round=b"y", bits=bits)
    z = np.random.default_rng(seed).integers(0, levels, (clients, count))
    z[:, 0] = levels - 1  # the largest sum
    total, survivors, cost = aggregate(params, lambda u: z[u])
    assert (total == z.sum(axis=0)).all()
    assert survivors == list(range(clients))
    assert cost.by_kind["MASKED"] == clients * (params.masked_size + 45 + 4 + 20 * (clients - 1) + 4)


def test_signed_rounds():
    identities = [Identity(bytes([u]) * 32) for u in range(4)]
    roster = Roster.of(one.public for one in identities)
    params = Params(clients=4, count=3, levels=16, round=b"s", threshold=2, roster=roster.hash)
    total, survivors, _ = aggregate(
        params,
        values,
        {1: Kind.MASKED},
        client=lambda u: {"identity": identities[u], "roster": roster},
        server={"roster": roster},
    )
    assert survivors == [0, 2, 3]
    assert (total == sum(values(u) for u in survivors)).all()
    with pytest.raises(ValueError, match="roster must be given"):
        Server(params)  # who would take any keys
    with pytest.raises(ValueError, match="must be in the roster"):
        Client(params, 0, Identity(b"x" * 32), roster)
    with pytest.raises(ValueError, match="the roster of this round"):
        Client(params, 0, identities[0], Roster.of([identities[0].public]))


def test_forty_clients_of_the_papers_model_send_few_bytes():
    params = Params(clients=40, count=1_018_174, levels=16, round=b"z")
    assert params.bits == 10
    assert params.masked_size <= 1_300_000


def test_the_masked_vectors_say_nothing_alone():
    """The same values masked twice share no more coordinates than chance."""

    params = Params(clients=3, count=20_000, levels=16, round=b"1", bits=10)
    seen = []
    for _ in range(2):
        clients, server = [Client(params, u) for u in range(3)], Server(params)
        for client in clients:
            server.receive(client.keys())
        for u, data in server.advance().items():
            server.receive(clients[u].share(data))
        inbox = server.advance()
        seen.append(
            np.frombuffer(clients[0].mask(inbox[0], np.full(20_000, 5))[45 : 45 + params.masked_size], np.uint8)
        )
    same = (seen[0] == seen[1]).mean()
    assert abs(same - 1 / 256) < 5 * (1 / 256 / len(seen[0])) ** 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": 1}, "clients = 1"),
        ({"levels": 1}, "levels = 1"),
        ({"count": 0}, "count = 0"),
        ({"bits": 9}, "bits = 9: must be at least 10, or sums of 600 wrap around"),
        ({"levels": 2**31, "clients": 40}, r"clients · \(levels − 1\) = .*: must be below"),
        ({"degree": 40}, "degree = 40"),
        ({"degree": 20, "minimum": 20}, "minimum = 20"),  # two sums could be told
        ({"degree": 30, "minimum": 30}, "minimum = 30"),
        ({"threshold": 19}, "threshold = 19"),  # not more than half
        ({"threshold": 40}, "threshold = 40"),
        ({"minimum": 1}, "minimum = 1"),
        ({"round": b""}, "round = b''"),
        ({"round": "text"}, "round = 'text'"),
    ],
)
def test_parameters_that_cannot_be(change, message):
    with pytest.raises(ValueError, match=message):
        Params(**{"clients": 40, "count": 5, "levels": 16, "round": b"1", **change})


def test_every_parameter_is_in_the_digest():
    base = {"clients": 40, "count": 5, "levels": 16, "round": b"1"}
    changes = [
        {},
        {"clients": 41},
        {"count": 6},
        {"levels": 15},
        {"round": b"2"},
        {"degree": 20},
        {"threshold": 30},
        {"minimum": 39},
        {"bits": 11},
        {"roster": b"r" * 32},
        {"roster": b"s" * 32},
    ]
    assert len({Params(**{**base, **change}).digest for change in changes}) == len(changes)
