"""Who may take part: identities (Ed25519), and the roster of a federation's public keys.

A node has its secret key and the roster in files of its own.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Self, final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from rqm._util.checks import shown
from rqm._util.files import read_bytes, write_atomically
from rqm.secagg.errors import ProtocolError
from rqm.secagg.masking import KEY_BYTES

IDENTITY_BYTES, SIGNATURE_BYTES = 32, 64
"""Size of a node's public key, and of a signature by it."""


@final
@dataclass(frozen=True)
class Roster:
    """The public keys of all nodes that may take part.

    >>> Roster.of([bytes(32)]).hash.hex()[:16]
    '505556234cb7e2e6'
    """

    keys: frozenset[bytes]

    @classmethod
    def of(cls, keys: Iterable[bytes]) -> Self:
        """The roster of these keys, each 32 bytes."""
        members = list(keys)
        for key in members:
            if not isinstance(key, bytes) or len(key) != IDENTITY_BYTES:
                raise ValueError(f"a key of the roster is {shown(key)}: must be {IDENTITY_BYTES} bytes")
        if not members or len(set(members)) < len(members):
            raise ValueError(f"the roster has {len(members)} keys: must have at least one, and none twice")
        return cls(frozenset(members))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a roster: one key in hexadecimal on each line; comments begin with #."""
        try:
            return cls.parse(read_bytes(path, 2**26).decode())
        except ValueError as error:
            raise ValueError(f"{path}: is no roster ({error})") from None

    @classmethod
    def parse(cls, text: str) -> Self:
        """The roster in a file's text."""
        lines = [line.split("#", 1)[0].strip() for line in text.splitlines()]
        return cls.of(public(line) for line in lines if line)

    @cached_property
    def hash(self) -> bytes:
        """The hash that clients sign to name this roster."""
        return sha256(b"rqm roster" + b"".join(sorted(self.keys))).digest()


@final
class Identity:
    """A node's secret key, in a file that only its owner can read."""

    def __init__(self, secret: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(secret)
        self.public = self._key.public_key().public_bytes_raw()

    @classmethod
    def new(cls, path: Path) -> Self:
        """Create one, in a new file."""
        secret = os.urandom(IDENTITY_BYTES)
        try:
            write_atomically(path, (secret.hex() + "\n").encode(), new=True, private=True)
        except FileExistsError:
            raise ValueError(f"{path}: exists, and is not overwritten: rotate it, or give another") from None
        return cls(secret)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read one from its file."""
        try:
            return cls(public(read_bytes(path).decode().strip()))
        except ValueError:
            raise ValueError(
                f"{path}: must hold {IDENTITY_BYTES} bytes in hexadecimal, and holds something else"
            ) from None

    def sign(self, text: bytes) -> bytes:
        """The public key, and its signature."""
        return self.public + self._key.sign(text)


@final
class KeyRegistry:
    """The keys and identities in a round: each occurs once, and identities are in the roster if there is one."""

    def __init__(self, roster: Roster | None) -> None:
        self._roster, self._used = roster, set[bytes]()

    def add(self, client: int, advertised: bytes) -> None:
        """Add a client.

        Args:
            client: Its number.
            advertised: Its two public keys; after them its identity and signature in signed rounds.

        Raises:
            ProtocolError: If it has another client's key or identity, or is not in the roster.
        """
        identity = identity_in(advertised)
        if self._roster is not None and identity not in self._roster.keys:
            raise ProtocolError(f"client {client} is not in the roster")
        keys = {advertised[:KEY_BYTES], advertised[KEY_BYTES : 2 * KEY_BYTES]}
        names = {*keys, b"identity" + identity} if identity else keys
        if len(keys) < 2 or not self._used.isdisjoint(names):
            raise ProtocolError(f"client {client} has a key or an identity that is in use (reflected or duplicated)")
        self._used |= names


def identity_in(advertised: bytes) -> bytes:
    """The identity in what a client advertises; empty in rounds without signatures."""
    return advertised[2 * KEY_BYTES : 2 * KEY_BYTES + IDENTITY_BYTES]


@lru_cache(maxsize=2**14)
def is_signed(key: bytes, signature: bytes, text: bytes) -> bool:
    """Whether a signature is by the owner of a public key. Results are kept, since all clients check the same ones.

    Args:
        key: The Ed25519 public key, 32 bytes.
        signature: The signature, 64 bytes.
        text: What was signed.

    Returns:
        False also for malformed keys and signatures.
    """
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


def public(text: str) -> bytes:
    """A key from its 64 hexadecimal digits."""
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise ValueError(f"{shown(text)}: must be {2 * IDENTITY_BYTES} hexadecimal digits")
    return bytes.fromhex(text)
