"""Two sources of random words: `SecureRandom` for deployment, `SeededRandom` for simulation.

They are separate types, so that a deployment cannot be given a seeded source.
"""

import os
from collections.abc import Callable, Iterable
from hashlib import blake2b
from threading import Lock
from typing import Any, final

import numpy as np
import numpy.typing as npt

from rqm._util.checks import whole

Array = npt.NDArray[Any]
Words = npt.NDArray[np.uint64]
KeyWords = npt.NDArray[np.uint32]

AES_KEY_BYTES = 32
"""Bytes of a key of AES-256."""
SEED_CHUNK = 1024
"""Words of a chunk. The first half of a chunk of seeded words has the first words of SEED_CHUNK / 2 consecutive
Threefry blocks, the second half their second words, so that the loop over blocks runs in vector registers."""
ZEROS = memoryview(bytes(2**18))
"""What the cipher encrypts at a time. Pieces of this size stay in the cache."""


def cipher_stream(key: bytes, nonce: bytes = bytes(12)) -> Callable[[Array], None]:
    """The keystream of AES-256 in counter mode, with a counter that starts at zero.

    The keystream is what Galois/counter mode encrypts zeros to. OpenSSL computes it 2.4 times as fast as plain counter
    mode, since it uses the wide AES instructions there only. GCM keeps the counters 0 and 1 for its tag, so the first
    32 bytes come from plain counter mode. One key gives at most 64 GiB, or the library raises an error.

    Args:
        key: 32 bytes. Use a key and a nonce for one stream only.
        nonce: 12 bytes.

    Returns:
        A function that overwrites contiguous arrays with the stream, one after the other.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes  # noqa: PLC0415 (lazy: 50 ms)

    aes = algorithms.AES(key)
    start = Cipher(aes, modes.CTR(nonce + bytes(4))).encryptor().update(ZEROS[:32])
    cipher = Cipher(aes, modes.GCM(nonce)).encryptor()

    def fill(array: Array) -> None:
        nonlocal start
        stream = array.reshape(-1).view(np.uint8).data
        used = min(len(start), len(stream))
        stream[:used], start = start[:used], start[used:]
        for position in range(used, len(stream), len(ZEROS)):
            chunk = stream[position : position + len(ZEROS)]
            cipher.update_into(ZEROS[: len(chunk)], chunk)

    return fill


def _fill_from_system(words: Words) -> None:
    """Overwrite an array with words of the operating system's generator, which is slower than AES."""
    words.view(np.uint8)[:] = np.frombuffer(os.urandom(words.nbytes), dtype=np.uint8)


@final
class SecureRandom:
    """Cryptographic randomness for deployment: AES-256 in counter mode, and ChaCha20 in the kernels of a GPU.

    It has no state: every call takes a new key and nonce from the operating system. So forks and threads reuse no
    keystream.

    >>> SecureRandom().words(3).shape
    (3,)
    """

    private = True

    def words(self, count: int) -> Words:
        """Return `count` unpredictable uniform 64-bit words."""
        words = np.empty(whole("count", count, 0), dtype=np.uint64)
        self.keystream()(words)
        return words

    def keystream(self) -> Callable[[Words], None]:
        """A function that overwrites arrays with unpredictable uniform 64-bit words."""
        try:
            return cipher_stream(os.urandom(AES_KEY_BYTES))
        except ModuleNotFoundError:  # a bare GPU machine
            return _fill_from_system

    def key(self) -> KeyWords:
        """A new key and nonce of ChaCha20 for one stream on a GPU: eight and two words of 32 bits."""
        return np.frombuffer(bytearray(os.urandom(40)), dtype=np.uint32)

    def __repr__(self) -> str:
        return "SecureRandom()"


def expanded(secret: bytes, size: int) -> Words:
    """Words that follow from a secret: the keystream of AES-256 in counter mode.

    They are as unpredictable as the secret. A party that is given the secret can draw them again.

    Args:
        secret: 32 bytes, used for one expansion only.
        size: Number of words.

    Returns:
        64-bit words. A shorter expansion is the beginning of a longer one.

    Raises:
        ValueError: If the secret has another length.

    >>> int(expanded(bytes(32), 2)[0]) == int(expanded(bytes(32), 3)[0])
    True
    """
    if len(secret) != AES_KEY_BYTES:
        raise ValueError(f"secret has {len(secret)} bytes: must be {AES_KEY_BYTES}")
    words = np.empty(size, dtype=np.uint64)
    cipher_stream(secret)(words)
    return words


@final
class SeededRandom:
    """Reproducible randomness for simulation and tests. It is **not private**: anyone with the seed can repeat it.

    The generator is counter-based (Threefry-2×64-13, Salmon et al. 2011), so a thread can start anywhere in a
    sequence. `stream` returns independent sequences, each with its own 128-bit key.

    >>> bool((SeededRandom(7).words(4) == SeededRandom(7).words(4)).all())
    True
    >>> bool((SeededRandom(7).stream(1).words(4) == SeededRandom(7).stream(2).words(4)).any())
    False
    """

    private = False

    def __init__(self, seed: int, *path: int) -> None:
        self._path = (whole("seed", seed, 0), *(whole("stream", index, 0) for index in path))
        self._key = self._digest("words", 16)
        self._chunk = 0
        self._call = 0
        self._lock = Lock()

    def _digest(self, purpose: str, size: int) -> Words:
        """A key for one purpose. Only equal paths have equal keys."""
        text = f"{purpose}:{':'.join(map(str, self._path))}"
        return np.frombuffer(blake2b(text.encode(), digest_size=size).digest(), dtype="<u8").astype(np.uint64)

    def stream(self, *path: int) -> "SeededRandom":
        """Return the independent sequence of a path, such as (client, round), from its beginning."""
        return SeededRandom(*self._path, *path)

    def words(self, count: int) -> Words:
        """Return the next `count` words of this sequence. The remainder of the last chunk is skipped."""
        count = whole("count", count, 0)
        chunks = -(-count // SEED_CHUNK)
        key, first = self.reserve(chunks)
        half = SEED_CHUNK // 2
        blocks = np.arange(first * half, (first + chunks) * half, dtype=np.uint64).reshape(chunks, half)
        zero = np.zeros(1, dtype=np.uint64)
        return np.stack(threefry(blocks, zero, key[:1], key[1:]), axis=1).reshape(-1)[:count]

    def reserve(self, chunks: int) -> tuple[Words, int]:
        """Reserve the next chunks. Return the key of this sequence and the number of the first chunk."""
        with self._lock:
            first, self._chunk = self._chunk, self._chunk + chunks
        return self._key, first

    def reserve_call(self) -> tuple[int, int, int]:
        """Reserve one call of a generator with its own counter.

        Return three 32-bit words: a 64-bit key, and the start of a counter. No other call has the same ones, and
        `words` does not use them.
        """
        with self._lock:
            call, self._call = self._call, self._call + 1
        key, start = self._digest(f"calls {call >> 32}", 16).tolist()
        return key & 0xFFFFFFFF, key >> 32, (start + call) & 0xFFFFFFFF

    def __repr__(self) -> str:
        return f"SeededRandom{self._path!r} [not private]"


@final
class OneEach:
    """A seeded source for every row of a sum. The draws of a row do not depend on the other rows.

    >>> len(OneEach([SeededRandom(7, client) for client in range(3)]).sources)
    3
    """

    private = False

    def __init__(self, sources: Iterable[SeededRandom]) -> None:
        self.sources = tuple(sources)


def threefry(low: Any, high: Any, k0: Any, k1: Any) -> Any:
    """Threefry-2×64 with 13 rounds (Salmon et al. 2011).

    It has no loops or calls, so that it can be compiled for single numbers.

    Args:
        low: The low word of the counter. All arguments are unsigned 64-bit numbers or NumPy arrays.
        high: The high word of the counter.
        k0: The low word of the key.
        k1: The high word of the key.

    Returns:
        Two 64-bit words.
    """
    k2 = k0 ^ k1 ^ np.uint64(0x1BD11BDAA9FC1A22)
    x0 = low + k0
    x1 = high + k1
    x0 = x0 + x1
    x1 = ((x1 << np.uint64(16)) | (x1 >> np.uint64(48))) ^ x0
    x0 = x0 + x1
    x1 = ((x1 << np.uint64(42)) | (x1 >> np.uint64(22))) ^ x0
    x0 = x0 + x1
    x1 = ((x1 << np.uint64(12)) | (x1 >> np.uint64(52))) ^ x0
    x0 = x0 + x1
    x1 = ((x1 << np.uint64(31)) | (x1 >> np.uint64(33))) ^ x0
    x0 = x0 + k1
    x1 = x1 + (k2 + np.uint64(1))
    x0 = x0 + x1
    x1 = ((x1 << np.uint64(16)) | (x1 >> np.uint64(48))) ^ x0
    x0 = x0 + x1
    x1 = ((x1 << np.uint64(32)) | (x1 >> np.uint64(32))) ^ x0
    x0 = x0 + x1
    x1 = ((x1 << np.uint64(24)) | (x1 >> np.uint64(40))) ^ x0
    x0 = x0 + x1
    x1 = ((x1 << np.uint64(21)) | (x1 >> np.uint64(43))) ^ x0
    x0 = x0 + k2
    x1 = x1 + (k0 + np.uint64(2))
    x0 = x0 + x1
    x1 = ((x1 << np.uint64(16)) | (x1 >> np.uint64(48))) ^ x0
    x0 = x0 + x1
    x1 = ((x1 << np.uint64(42)) | (x1 >> np.uint64(22))) ^ x0
    x0 = x0 + x1
    x1 = ((x1 << np.uint64(12)) | (x1 >> np.uint64(52))) ^ x0
    x0 = x0 + x1
    x1 = ((x1 << np.uint64(31)) | (x1 >> np.uint64(33))) ^ x0
    x0 = x0 + k0
    x1 = x1 + (k1 + np.uint64(3))
    x0 = x0 + x1
    x1 = ((x1 << np.uint64(16)) | (x1 >> np.uint64(48))) ^ x0
    return x0, x1


def require(rng: object) -> "SecureRandom | SeededRandom":
    """Return a source of randomness, or raise a TypeError."""
    if isinstance(rng, (SecureRandom, SeededRandom)):
        return rng
    raise TypeError(
        f"rng is a {type(rng).__name__}: pass rqm.SecureRandom() to deploy, or rqm.SeededRandom(seed) to "
        "simulate (not private)"
    )


def require_secure(rng: object) -> SecureRandom:
    """Return a `SecureRandom`, or raise a TypeError. Every path that deploys calls this."""
    if isinstance(require(rng), SeededRandom):
        raise TypeError(f"rng is {rng!r}: a deployment takes rqm.SecureRandom() only")
    assert isinstance(rng, SecureRandom)
    return rng
