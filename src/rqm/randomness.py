"""The two sources of random words. They are separate types, so that one is never taken for the other."""

import os
from typing import Protocol, final

import numpy as np
import numpy.typing as npt

from rqm._checks import whole

Words = npt.NDArray[np.uint64]


class Randomness(Protocol):
    """Whatever yields independent uniform 64-bit words."""

    @property
    def private(self) -> bool:
        """Whether a guarantee may rest on these words."""
        ...

    def words(self, count: int) -> Words:
        """Return the next ``count`` uniform 64-bit words."""
        ...


@final
class SecureRandom:
    """Cryptographic randomness for deployment: AES-256-CTR, keyed afresh by the operating system.

    Every call takes a new key and nonce, so no keystream is ever reused, whatever forks or threads do.

    >>> SecureRandom().words(3).shape
    (3,)
    """

    private = True

    def words(self, count: int) -> Words:
        """Return ``count`` uniform 64-bit words that nobody can predict or repeat."""
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes  # noqa: PLC0415 (lazy: 50 ms)

        count = whole("count", count, 0)
        cipher = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(os.urandom(16))).encryptor()
        return np.frombuffer(cipher.update(bytes(8 * count)), dtype=np.uint64)

    def __repr__(self) -> str:
        return "SecureRandom()"


@final
class SeededRandom:
    """Reproducible randomness for simulation and tests: **not private**, anyone with the seed can repeat it.

    The generator is the counter-based Philox; ``stream`` names independent sequences.

    >>> bool((SeededRandom(7).words(4) == SeededRandom(7).words(4)).all())
    True
    >>> bool((SeededRandom(7).stream(1).words(4) == SeededRandom(7).stream(2).words(4)).any())
    False
    """

    private = False

    def __init__(self, seed: int, *path: int) -> None:
        self._key = (whole("seed", seed, 0), *(whole("stream", part, 0) for part in path))
        self._philox = np.random.Philox(np.random.SeedSequence(self._key[0], spawn_key=self._key[1:]))

    def stream(self, *path: int) -> "SeededRandom":
        """Return the independent sequence that ``path`` names (a client and a round, say)."""
        return SeededRandom(*self._key, *path)

    def words(self, count: int) -> Words:
        """Return the next ``count`` words of this sequence."""
        return np.asarray(self._philox.random_raw(whole("count", count, 0)), dtype=np.uint64)

    def __repr__(self) -> str:
        return f"SeededRandom{self._key!r} [not private]"


def require(rng: object) -> Randomness:
    """Return ``rng`` if it is one of the two sources, or raise a TypeError that names both."""
    if isinstance(rng, (SecureRandom, SeededRandom)):
        return rng
    raise TypeError(
        f"rng is a {type(rng).__name__}: pass rqm.SecureRandom() to deploy, or rqm.SeededRandom(seed) to "
        "simulate (not private)"
    )
