"""Exact sums, whoever drops out and when; a clean end when too few are left; and parameters."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rqm.secagg import Aborted, Params
from rqm.secagg.local import aggregate
from rqm.secagg.wire import STAGES, Kind
from tests.secagg.rounds import IDENTITIES, Round, roster_of


def values(u):
    return np.array([15, 0, (7 * u + 3) % 16])


def expected_survivors(params, dropouts):
    """Who is in the sum by the rules, with everybody as neighbors; None if the round must end without one."""
    left, owners, survivors = list(range(params.clients)), [], []
    for stage in STAGES:
        left = [u for u in left if dropouts.get(u) != stage]
        owners, survivors = {Kind.SHARES: (left, []), Kind.MASKED: (owners, left)}.get(stage, (owners, survivors))
        if stage < Kind.REVEAL and (len(left) < params.minimum or len(left) - 1 < params.threshold):
            return None
    return None if any(len(set(left) - {u}) < params.threshold for u in owners) else survivors


def has_sum(params, dropouts):
    """Whether the round ends with a sum, which must be the right one."""
    expected = expected_survivors(params, dropouts)
    if expected is None:
        with pytest.raises(Aborted):
            aggregate(params, values, dropouts)
        return False
    total, survivors, _ = aggregate(params, values, dropouts)
    assert survivors == expected
    assert (total == sum(values(u) for u in expected)).all()
    return True


def count_sums(clients, threshold, first=(None, *STAGES)):
    params = Params(clients=clients, count=3, levels=16, round=b"all", threshold=threshold, minimum=2)
    patterns = product(first, *[(None, *STAGES)] * (clients - 1))
    return sum(has_sum(params, {u: stage for u, stage in enumerate(pattern) if stage}) for pattern in patterns)


@pytest.mark.parametrize(
    ("clients", "threshold", "sums"), [(2, 1, 1), (3, 2, 1), pytest.param(4, 3, 1, marks=pytest.mark.slow), (4, 2, 21)]
)
def test_every_pattern_of_dropouts(clients, threshold, sums):
    """With four clients and a threshold of two, one may drop out at any of five stages: 1 + 4 · 5 patterns end well."""
    assert count_sums(clients, threshold) == sums


@pytest.mark.slow
@pytest.mark.parametrize("first", [None, *STAGES])
@pytest.mark.parametrize(("clients", "threshold"), [(5, 3), (6, 3)])
def test_every_pattern_of_dropouts_among_more(clients, threshold, first):
    count_sums(clients, threshold, [first])


@settings(max_examples=10)
@given(st.integers(0, 2**32), st.sampled_from([39, 24]))
def test_a_third_of_forty_may_drop_out(seed, degree):
    rng = np.random.default_rng(seed)
    params = Params(clients=40, count=50, levels=16, round=b"x", degree=degree, threshold=degree // 2 + 1, minimum=25)
    vectors = rng.integers(0, 16, (40, 50))
    dropouts = {int(u): STAGES[rng.integers(5)] for u in rng.permutation(40)[: rng.integers(0, 14)]}
    try:
        total, survivors, _ = aggregate(params, lambda u: vectors[u], dropouts)
    except Aborted:
        assert degree == 24  # a few may have lost nearly half of their neighbors
        assert len(dropouts) > 4
        return
    assert survivors == [u for u in range(40) if dropouts.get(u, Kind.ACKS) > Kind.MASKED]
    assert (total == vectors[survivors].sum(axis=0)).all()


@settings(max_examples=25)
@given(st.integers(2, 6), st.integers(2, 300), st.integers(1, 70), st.integers(0, 20), st.integers(0, 2**32))
def test_any_number_of_bits_and_values(clients, levels, count, more, seed):
    bits = min(32, (clients * (levels - 1)).bit_length() + more)
    params = Params(clients=clients, count=count, levels=levels, round=b"y", bits=bits)
    vectors = np.random.default_rng(seed).integers(0, levels, (clients, count))
    vectors[:, 0] = levels - 1  # the largest sum
    total, survivors, cost = aggregate(params, lambda u: vectors[u])
    assert (total == vectors.sum(axis=0)).all()
    assert survivors == list(range(clients))
    assert cost.by_kind["MASKED"] == clients * (params.masked_size + 45 + 4 + 20 * (clients - 1) + 4)


@pytest.mark.parametrize("bits", [1, 8, 12, 30])
def test_modular_sums_wrap_around(bits):
    params = Params(clients=3, count=4, levels=2**bits, round=b"m", modular=True)
    total, _, _ = aggregate(params, lambda _: np.full(4, 2**bits - 1))
    assert (total == -3 % 2**bits).all()


def test_signed_rounds():
    roster = roster_of(4)
    params = Params(clients=4, count=3, levels=16, round=b"s", threshold=2, roster=roster.hash)
    total, survivors, _ = aggregate(params, values, {1: Kind.MASKED}, identities=IDENTITIES, roster=roster)
    assert survivors == [0, 2, 3]
    assert (total == sum(values(u) for u in survivors)).all()


def test_forty_clients_of_the_papers_model_send_few_bytes():
    params = Params(clients=40, count=1_018_174, levels=16, round=b"z")
    assert params.bits == 10
    assert params.masked_size <= 1_300_000


def test_the_masked_vectors_say_nothing_alone():
    """The same values masked twice share no more coordinates than chance."""
    params = Params(clients=3, count=20_000, levels=16, round=b"1", bits=10)
    rounds = [Round(Kind.MASKED, params, values=np.full(20_000, 5)) for _ in range(2)]
    first, second = (np.frombuffer(params.read(r.answers(Kind.MASKED)[0], Kind.MASKED, 0)[0], np.uint8) for r in rounds)
    assert abs((first == second).mean() - 1 / 256) < 5 * (1 / 256 / len(first)) ** 0.5


# -- parameters -----------------------------------------------------------------------------------

BASE = {"clients": 40, "count": 5, "levels": 16, "round": b"1"}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"clients": 1}, "clients = 1"),
        ({"levels": 1}, "levels = 1"),
        ({"count": 0}, "count = 0"),
        ({"bits": 9}, "bits = 9: must be at least 10, or sums of 600 wrap around"),
        ({"levels": 2**31, "clients": 40}, r"clients · \(levels − 1\) = .*: must be below"),
        ({"bits": 33}, "bits = 33"),
        ({"modular": True, "bits": 5}, "bits = 5: must be 4, the modulus of 16 modular levels"),
        ({"degree": 40}, "degree = 40"),
        ({"degree": 20, "minimum": 20}, "minimum = 20"),  # two sums could be told
        ({"degree": 30, "minimum": 30}, "minimum = 30"),
        ({"threshold": 19}, "threshold = 19"),  # not more than half
        ({"threshold": 40}, "threshold = 40"),
        ({"minimum": 1}, "minimum = 1"),
        ({"round": b""}, "round = b''"),
        ({"round": "text"}, "round = 'text'"),
        ({"roster": b"r"}, "roster = b'r': must be a hash of 32 bytes, or empty"),
        ({"context": "text"}, "context = 'text'"),
        ({"settling_clients": 40}, "settling_clients = 40"),
        ({"settling_clients": 30, "min_per_kind": 11}, "min_per_kind = 11"),
        ({"settling_clients": 10, "min_per_kind": 11}, "min_per_kind = 11"),
        ({"noise_threshold": 40}, "noise_threshold = 40"),
        ({"noise_threshold": 3, "degree": 20}, "noise_threshold = 3: must come with all others as neighbors"),
        ({"previous_sum": bytes(32)}, "previous_sum: must come with settling_clients"),
        ({"settling_clients": 10, "noise_threshold": 3}, "previous_sum: must come with settling_clients"),
    ],
)
def test_parameters_that_cannot_be(change, match):
    with pytest.raises(ValueError, match=match):
        Params(**{**BASE, **change})


def test_every_parameter_is_in_the_digest():
    settling = {"settling_clients": 10, "noise_threshold": 3, "previous_sum": bytes(32)}
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
        {"modular": True, "bits": 4},
        {"roster": b"r" * 32},
        {"roster": b"s" * 32},
        {"context": b"r" * 32},
        {"min_per_kind": 3},
        {"noise_threshold": 3},
        {"settling_clients": 10},
        settling,
        settling | {"previous_sum": b"s" * 32},
    ]
    assert len({Params(**{**BASE, **change}).digest for change in changes}) == len(changes)
