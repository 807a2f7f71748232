"""Shamir's secret sharing (1979) over GF(2¹⁶), for all the bytes of a secret at once.

A secret of 2w bytes is w elements of the field. Each is the value at 0 of a random polynomial of
degree t − 1, and a share is the values of the polynomials at another point. Any t shares give the
secret; fewer reveal nothing about it.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from rqm._util.checks import whole
from rqm.secagg.errors import ProtocolError, require

MODULUS = 0x1100B
"""x¹⁶ + x¹² + x³ + x + 1, of which x is a primitive root."""
MAX_SHARES = 2**16 - 1
"""Order of the field's multiplicative group: points are from 1 to this."""


def split(secret: bytes, points: Sequence[int], threshold: int, random: bytes) -> list[bytes]:
    """Shares of a secret.

    Args:
        secret: An even number of bytes.
        points: One distinct number from 1 to 65535 for each share.
        threshold: How many shares give the secret.
        random: (threshold − 1) · len(secret) secret random bytes.

    Returns:
        One share for each point, as long as the secret.

    >>> import os
    >>> shares = split(b"four", [1, 2, 3], threshold=2, random=os.urandom(4))
    >>> join([(3, shares[2]), (1, shares[0])], threshold=2)
    b'four'
    """
    if len(set(points)) < len(points) or not all(1 <= point <= MAX_SHARES for point in points):
        raise ValueError(f"points = {points}: must be distinct, from 1 to {MAX_SHARES}")
    threshold = whole("threshold", threshold, 1, len(points))
    if not secret or len(secret) % 2:
        raise ValueError(f"secret has {len(secret)} bytes: must be an even number of them")
    if len(random) != (threshold - 1) * len(secret):
        raise ValueError(f"random has {len(random)} bytes: must be {(threshold - 1) * len(secret)}")
    coefficients = np.frombuffer(secret + random, dtype="<u2").reshape(threshold, -1)
    log, _ = _tables()
    shares: list[bytes] = []
    for start in range(0, len(points), 16):  # a few points at a time take little memory
        powers = log[list(points[start : start + 16]), None] * np.arange(threshold) % MAX_SHARES
        shares += [row.tobytes() for row in _combine(powers, coefficients)]
    return shares


def join(shares: list[tuple[int, bytes]], threshold: int) -> bytes:
    """Recover a secret.

    Args:
        shares: Shares, each with its point. The first `threshold` points are used.
        threshold: As in `split`.

    Returns:
        The secret. It is wrong if a share is.

    Raises:
        ProtocolError: If there are too few shares, or if they differ in length.
    """
    require(len(shares), threshold, "shares of a secret")
    points, data = zip(*sorted(shares)[:threshold], strict=True)
    if len({len(share) for share in data}) != 1 or len(data[0]) % 2:
        raise ProtocolError("shares of one secret differ in length")
    values = np.frombuffer(b"".join(data), dtype="<u2").reshape(threshold, -1)
    return _combine(_weights(points), values).tobytes()


@cache
def _tables() -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint16]]:
    """Logarithms to the base x, and powers; the logarithm of 0 is so large that every power with it is 0."""
    powers, value = np.zeros(MAX_SHARES, dtype=np.uint16), 1
    for exponent in range(MAX_SHARES):
        powers[exponent] = value
        value = value << 1 ^ (MODULUS if value >> 15 else 0)
    log = np.full(2**16, 2 * MAX_SHARES, dtype=np.int32)
    log[powers] = np.arange(MAX_SHARES, dtype=np.int32)
    return log, np.concatenate([powers, powers, np.zeros(2 * MAX_SHARES + 1, dtype=np.uint16)])


def _combine(log_weights: Any, rows: Any) -> npt.NDArray[np.uint16]:
    """The weighted sum of rows, in the field; for each row of weights if there are several."""
    log, exp = _tables()
    sums: npt.NDArray[np.uint16] = np.bitwise_xor.reduce(exp[log[rows] + log_weights[..., None]], axis=-2)
    return sums.astype("<u2")


def _weights(points: tuple[int, ...]) -> Any:
    """Logarithms of the Lagrange weights for the value at 0."""
    log, _ = _tables()
    x = np.array(points)
    differences = log[x[:, None] ^ x]
    np.fill_diagonal(differences, 0)
    return (log[x].sum() - log[x] - differences.sum(axis=1)) % MAX_SHARES
