"""Shamir's sharing against schoolbook arithmetic, and what fewer shares say."""

import os
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rqm.secagg import ProtocolError
from rqm.secagg.sharing import MODULUS, join, split


def product(a, b):
    """In GF(2¹⁶), bit by bit."""
    out = 0
    while b:
        out, b = out ^ (a if b & 1 else 0), b >> 1
        a = a << 1 ^ (MODULUS if a >> 15 else 0)
    return out


def test_the_modulus_is_primitive():
    """x has order 2¹⁶ − 1: none of (2¹⁶ − 1) / p for its primes 3, 5, 17 and 257."""

    def power(exponent):
        out, base = 1, 2
        while exponent:
            out, exponent, base = product(out, base) if exponent & 1 else out, exponent >> 1, product(base, base)
        return out

    assert power(2**16 - 1) == 1
    assert all(power((2**16 - 1) // prime) != 1 for prime in (3, 5, 17, 257))


@given(st.binary(min_size=1, max_size=3), st.sets(st.integers(1, 65535), min_size=1, max_size=6), st.data())
def test_shares_are_values_of_the_polynomial(secret, points, data):
    secret, points = secret * 2, sorted(points)
    threshold = data.draw(st.integers(1, len(points)))
    random = data.draw(st.binary(min_size=(threshold - 1) * len(secret), max_size=(threshold - 1) * len(secret)))
    shares = split(secret, points, threshold, random)
    rows = np.frombuffer(secret + random, "<u2").reshape(threshold, -1).tolist()
    for point, share in zip(points, shares, strict=True):
        for index, value in enumerate(np.frombuffer(share, "<u2").tolist()):
            expected, power = 0, 1
            for row in rows:
                expected, power = expected ^ product(row[index], power), product(power, point)
            assert value == expected
    for subset in combinations(zip(points, shares, strict=True), threshold):
        assert join(list(subset), threshold) == secret


def test_many_shares():
    points, secret = list(range(1, 1001)), os.urandom(64)
    shares = split(secret, points, 667, os.urandom(666 * 64))
    assert join(list(zip(points, shares, strict=True))[333:], 667) == secret


def test_fewer_shares_fit_every_secret_equally_well():
    """With threshold 2 one share says nothing: for every secret exactly one random coefficient explains it."""
    point = 7
    shares = [split(secret.to_bytes(2, "little"), [point, 9], 2, b"\x34\x12")[0] for secret in range(2**16)]
    assert len(set(shares)) == 2**16


def test_a_wrong_share_gives_another_secret():
    shares = split(b"12345678", [1, 2, 3], 2, os.urandom(8))
    wrong = bytes([shares[0][0] ^ 1]) + shares[0][1:]
    assert join([(1, wrong), (2, shares[1])], 2) != b"12345678"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((b"123", [1, 2], 2, b""), "3 bytes: must be an even"),
        ((b"", [1], 1, b""), "0 bytes"),
        ((b"12", [1, 1], 1, b""), "must be distinct"),
        ((b"12", [0, 1], 1, b""), "from 1 to 65535"),
        ((b"12", [1, 65536], 1, b""), "from 1 to 65535"),
        ((b"12", [1], 2, b"ab"), "threshold = 2"),
        ((b"12", [1, 2], 2, b""), "random has 0 bytes: must be 2"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        split(*arguments)


def test_too_few_or_ragged_shares():
    with pytest.raises(ProtocolError, match="1 shares of a secret: must be at least 2"):
        join([(1, b"ab")], 2)
    with pytest.raises(ProtocolError, match="differ in length"):
        join([(1, b"ab"), (2, b"abcd")], 2)
