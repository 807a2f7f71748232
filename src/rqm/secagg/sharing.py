"""Shamir's secret sharing (1979) over GF(2¹⁶), for all the bytes of a secret at once.

A secret of 2w bytes is w elements of the field; each is the value at 0 of a random polynomial of degree t − 1, and a
share is the polynomials' values at one other point. Any t shares give the secret, fewer say nothing at all about it.
"""

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from rqm._util.checks import whole
from rqm.secagg.errors import ProtocolError

MODULUS = 0x1100B
"""x¹⁶ + x¹² + x³ + x + 1, of which x is a primitive root."""
ORDER = 2**16 - 1
MAX_SHARES = ORDER

Points = npt.NDArray[np.int64]


def split(secret: bytes, points: npt.ArrayLike, threshold: int, random: bytes) -> list[bytes]:
    """One share of ``secret`` for each of the distinct ``points`` in 1..65535; any ``threshold`` of them suffice.

    ``random`` are ``(threshold − 1) · len(secret)`` bytes that nobody knows.

    >>> import os
    >>> shares = split(b"four", [1, 2, 3], threshold=2, random=os.urandom(4))
    >>> join([(3, shares[2]), (1, shares[0])], threshold=2)
    b'four'
    """
    places = _points(points)
    threshold = whole("threshold", threshold, 1, len(places))
    if not secret or len(secret) % 2:
        raise ValueError(f"secret has {len(secret)} bytes: must be an even number of them")
    if len(random) != (threshold - 1) * len(secret):
        raise ValueError(f"random has {len(random)} bytes: must be {(threshold - 1) * len(secret)}")
    coefficients = np.frombuffer(secret + random, dtype="<u2").reshape(threshold, -1)
    log, exp = _tables()
    step, values = log[places][:, None], np.zeros((len(places), coefficients.shape[1]), dtype=np.uint16)
    for row in coefficients[::-1]:
        values = exp[log[values] + step] ^ row
    return [row.tobytes() for row in values.astype("<u2")]


def join(shares: list[tuple[int, bytes]], threshold: int) -> bytes:
    """The secret from the first ``threshold`` of its shares, each with its point."""
    if len(shares) < threshold:
        raise ProtocolError(f"{len(shares)} shares of a secret: at least {threshold} are needed")
    shares = sorted(shares)[:threshold]
    if len({len(share) for _, share in shares}) != 1 or len(shares[0][1]) % 2:
        raise ProtocolError("shares of one secret differ in length")
    weights = _weights(tuple(point for point, _ in shares))
    log, exp = _tables()
    values = np.frombuffer(b"".join(share for _, share in shares), dtype="<u2").reshape(threshold, -1)
    products = exp[log[values] + weights[:, None]]
    return bytes(np.bitwise_xor.reduce(products, axis=0).astype("<u2").tobytes())


def _points(points: npt.ArrayLike) -> Points:
    places = np.asarray(points, dtype=np.int64)
    if places.ndim != 1 or not len(places) or places.min() < 1 or places.max() > ORDER:
        raise ValueError(f"points = {places}: must be at least one, from 1 to {ORDER}")
    if len(np.unique(places)) != len(places):
        raise ValueError(f"points = {places}: must be distinct")
    return places


@cache
def _tables() -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint16]]:
    """Logarithms to the base x, and powers; the logarithm of 0 is so large that every power with it is 0."""
    powers, value = np.zeros(ORDER, dtype=np.uint16), 1
    for place in range(ORDER):
        powers[place] = value
        value = value << 1 ^ (MODULUS if value >> 15 else 0)
    log = np.full(2**16, 2 * ORDER, dtype=np.int32)
    log[powers] = np.arange(ORDER, dtype=np.int32)
    return log, np.concatenate([powers, powers, np.zeros(2 * ORDER + 1, dtype=np.uint16)])


def _weights(points: tuple[int, ...]) -> Any:
    """Logarithms of Lagrange's weights for the value at 0."""
    log, _ = _tables()
    places = _points(points)
    differences = log[places[:, None] ^ places].astype(np.int64)
    np.fill_diagonal(differences, 0)
    own = log[places].astype(np.int64)
    return ((own.sum() - own - differences.sum(axis=1)) % ORDER).astype(np.int32)
