"""Keys and masks: X25519 and HKDF-SHA256 for the keys, AES-256 in counter mode for the masks.

A mask is one uniform integer modulo 2**b a coordinate. It is added in whole machine words of 8, 16 or 32 bits; what is
above the b bits falls off when the sum is packed, since 2**b divides the size of the word.
"""

import os
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hmac import HMAC
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from rqm.secagg.errors import ProtocolError

KEY, SECRET, ACK = 32, 32, 16
"""Bytes of a public key, of a secret that is shared, and of a tag between two clients."""
NONCE, PROMISE = 12, 16
"""Bytes of a nonce, and of what binds a client to a share that it deals."""
DEALT = 2 * PROMISE + NONCE + 2 * SECRET + 16
"""Bytes of shares of two secrets under authenticated encryption, after the promises of both."""
FIELD = 2**255 - 19
"""Public keys are numbers below this; X25519 would take others too, as second names of the same key."""
PIECE = 2**18
"""Bytes of a mask that are made and added at a time: they stay in the cache."""

Lanes = npt.NDArray[np.unsignedinteger]


def lane(bits: int) -> np.dtype[np.unsignedinteger]:
    """The smallest word that holds ``bits`` bits."""
    return np.dtype("u1" if bits <= 8 else "<u2" if bits <= 16 else "<u4")


def add_mask(total: Lanes, key: bytes, sign: int) -> None:
    """Add (or with ``sign`` −1 take away) the mask of a key, in place."""
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    zeros, room = memoryview(bytes(PIECE)), np.empty(PIECE + 16, dtype=np.uint8)
    operate = np.add if sign > 0 else np.subtract
    step = PIECE // total.itemsize
    for start in range(0, len(total), step):
        part = total[start : start + step]
        cipher.update_into(zeros[: part.nbytes], room.data)
        operate(part, room[: part.nbytes].view(total.dtype), out=part)


def fresh(identity: int) -> tuple[bytes, ...]:
    """A client's two private keys, the secret of its own mask, and so many bytes to make an identity of."""
    keys = (X25519PrivateKey.generate().private_bytes_raw() for _ in range(2))
    return *keys, os.urandom(SECRET), os.urandom(identity)


def public(private: X25519PrivateKey) -> bytes:
    """The public key, as it is sent."""
    return private.public_key().public_bytes_raw()


def derive(secret: bytes, salt: bytes, info: bytes, size: int) -> bytes:
    """A key for one use: HKDF-SHA256."""
    return HKDF(hashes.SHA256(), size, salt, info).derive(secret)


def agree(private: X25519PrivateKey, other: bytes, who: str) -> bytes:
    """The secret that two key pairs have in common."""
    if int.from_bytes(other, "little") >= FIELD:
        raise ProtocolError(f"{who} sent a public key that is written in a second way")
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise ProtocolError(f"{who} sent a public key that gives no secret") from None


def promise(share: bytes) -> bytes:
    """What binds to a share without telling it: shares are as random as keys."""
    return sha256(b"rqm share" + share).digest()[:PROMISE]


def deal(key: bytes, shares: bytes, context: bytes) -> bytes:
    """The shares of two secrets for one neighbour, and promises by which everybody will know them again."""
    return promise(shares[:SECRET]) + promise(shares[SECRET:]) + encrypt(key, shares, context)


def take(key: bytes, dealt: Any, context: bytes) -> bytes | None:
    """The shares that a neighbour has dealt; None if they cannot be opened, or are not those that it promised."""
    try:
        shares = decrypt(key, dealt[2 * PROMISE :], context)
    except InvalidTag:
        return None
    return shares if promise(shares[:SECRET]) + promise(shares[SECRET:]) == bytes(dealt[: 2 * PROMISE]) else None


def encrypt(key: bytes, text: bytes, context: bytes) -> bytes:
    """Authenticated encryption; the nonce comes first."""
    nonce = os.urandom(NONCE)
    return nonce + AESGCM(key).encrypt(nonce, text, context)


def decrypt(key: bytes, text: Any, context: bytes) -> bytes:
    """Undo ``encrypt``; raises InvalidTag if it was altered, or belongs to another key or context."""
    return AESGCM(key).decrypt(bytes(text[:NONCE]), bytes(text[NONCE:]), context)


def tag(key: bytes, context: bytes) -> bytes:
    """A short authentication of some context."""
    code = HMAC(key, hashes.SHA256())
    code.update(context)
    return code.finalize()[:ACK]
