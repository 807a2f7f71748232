"""Who may be in a federation: everybody's public key, in a file that each node has for itself, and its own secret."""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Self, final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from rqm._util.checks import shown
from rqm._util.files import write_atomically
from rqm.secagg.errors import ProtocolError

IDENTITY, SIGNATURE = 32, 64
"""Bytes of a node's public key, and of a signature by it."""
LARGEST = 2**26
"""Bytes that the file of a roster has at most."""


@final
@dataclass(frozen=True)
class Roster:
    """The public keys (Ed25519) of all nodes that may take part. Its ``hash`` is in what every client signs.

    >>> Roster.of([bytes(32)]).hash.hex()[:16]
    '505556234cb7e2e6'
    """

    keys: frozenset[bytes]

    @classmethod
    def of(cls, keys: Iterable[bytes]) -> Self:
        """The roster of these keys, each 32 bytes."""
        found = list(keys)
        for key in found:
            if not isinstance(key, bytes) or len(key) != IDENTITY:
                raise ValueError(f"a key of the roster is {shown(key)}: must be {IDENTITY} bytes")
        if not found:
            raise ValueError("the roster has no keys: must have one at least")
        if len(set(found)) < len(found):
            raise ValueError(f"the roster has {len(found)} keys, {len(set(found))} different: must be different ones")
        return cls(frozenset(found))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a roster: a key in hexadecimal on each line, and after it what anybody wants to note."""
        try:
            return cls.parse(path.read_text(encoding="utf-8") if path.stat().st_size <= LARGEST else "too large")
        except ValueError as error:
            raise ValueError(f"{path}: is no roster ({error})") from None

    @classmethod
    def parse(cls, text: str) -> Self:
        """The roster that a file's text is."""
        lines = [line.split("#", 1)[0].strip() for line in text.splitlines()]
        return cls.of(public(line) for line in lines if line)

    @cached_property
    def hash(self) -> bytes:
        """What tells this roster from all others."""
        return sha256(b"rqm roster" + b"".join(sorted(self.keys))).digest()

    def verify(self, body: Any, text: bytes, who: str) -> bytes:
        """Refuse what is not signed by somebody in the roster; return whose key it is (``body``: key, signature)."""
        if bytes(body[:IDENTITY]) not in self.keys:
            raise ProtocolError(f"{who} is not in the roster")
        return signer(body, text, who)


def signer(body: Any, text: bytes, who: str) -> bytes:
    """Refuse what is not signed; return whose key it is (``body``: key, signature)."""
    key = bytes(body[:IDENTITY])
    if not signed(key, bytes(body[IDENTITY:]), text):
        raise ProtocolError(f"the keys of {who} are not signed by {who}")
    return key


@lru_cache(maxsize=2**14)
def signed(key: bytes, signature: bytes, text: bytes) -> bool:
    """Whether a signature is by the owner of a public key. All parties of a simulation ask the same; once is enough."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


@final
class Identity:
    """A node's own secret key, in a file that only its owner reads."""

    def __init__(self, secret: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(secret)
        self.public = self._key.public_key().public_bytes_raw()

    @classmethod
    def new(cls, path: Path) -> Self:
        """Make one, in a new file."""
        secret = os.urandom(IDENTITY)
        try:
            write_atomically(path, (secret.hex() + "\n").encode(), new=True, private=True)
        except FileExistsError:
            raise ValueError(f"{path}: is there already, and is not overwritten: rotate it, or give another") from None
        return cls(secret)

    @classmethod
    def read(cls, path: Path) -> Self:
        """The one in a file."""
        try:
            return cls(public(path.read_text().strip()))
        except ValueError:
            raise ValueError(f"{path}: must hold {IDENTITY} bytes in hexadecimal, and holds something else") from None

    def sign(self, text: bytes) -> bytes:
        """The public key, and its signature."""
        return self.public + self._key.sign(text)


def public(text: str) -> bytes:
    """A key from its 64 hexadecimal digits."""
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise ValueError(f"{shown(text)}: must be {2 * IDENTITY} hexadecimal digits")
    return bytes.fromhex(text)
