"""Keys, masks, sealed shares and tags: X25519, HKDF-SHA256, AES-256 and HMAC-SHA256.

A mask is one uniform integer modulo 2**b for each coordinate: the keystream of AES-256 in counter
mode. It is added in whole machine words of 8, 16 or 32 bits. The bits above b are dropped when the
sum is packed, since 2**b divides the size of the word.
"""

import hmac
import os
from functools import lru_cache
from hashlib import sha256

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from rqm.randomness import ZEROS, cipher_stream
from rqm.secagg.errors import ProtocolError
from rqm.secagg.wire import number

KEY_BYTES, SECRET_BYTES = 32, 32
"""Size of a public key, and of a secret that is shared."""
TAG_BYTES, COMMITMENT_BYTES = 16, 16
"""Size of a tag between two clients, and of a commitment to a share."""
NONCE_BYTES = 12
"""Size of the nonce before a ciphertext of AES-GCM; after it comes a tag of 16 bytes."""

Lanes = npt.NDArray[np.unsignedinteger]


# -- masks ----------------------------------------------------------------------------------------


def add_mask(total: Lanes, key: bytes, sign: int) -> None:
    """Add the mask of a key, or subtract it.

    Args:
        total: Where it is added, in place.
        key: 32 bytes.
        sign: 1 or −1.
    """
    fill, operate = cipher_stream(key), np.add if sign > 0 else np.subtract
    mask = np.empty(len(ZEROS) // total.itemsize, dtype=total.dtype)
    for start in range(0, len(total), len(mask)):
        chunk = total[start : start + len(mask)]
        fill(mask[: len(chunk)])
        operate(chunk, mask[: len(chunk)], out=chunk)


def own_mask_key(digest: bytes, seed: bytes, client: int) -> bytes:
    """The key of a client's own mask.

    Args:
        digest: The digest of the round's parameters.
        seed: The client's secret seed, which is shared among its neighbors.
        client: The client's number.

    Returns:
        32 bytes.
    """
    return derive(seed, digest, b"self" + number(client))


def pair_mask_key(digest: bytes, secret: bytes, client: int, peer: int) -> bytes:
    """The key of the mask that two clients have in common.

    Args:
        digest: The digest of the round's parameters.
        secret: What `agree` returned for the two.
        client: The number of one of them.
        peer: The number of the other one.

    Returns:
        32 bytes, the same for both.
    """
    return derive(secret, digest, b"pair" + number(min(client, peer)) + number(max(client, peer)))


# -- keys -----------------------------------------------------------------------------------------


def public(private: X25519PrivateKey) -> bytes:
    """The public key, as it is sent."""
    return private.public_key().public_bytes_raw()


def derive(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """Derive a key for one use by HKDF-SHA256.

    Args:
        secret: The secret.
        salt: The digest of the round's parameters.
        info: The use.

    Returns:
        32 bytes.
    """
    return HKDF(hashes.SHA256(), 32, salt, info).derive(secret)


def extract(secret: bytes, salt: bytes) -> bytes:
    """The first step of `derive`: a key from which `expand` derives keys for several uses."""
    return hmac.digest(salt, secret, "sha256")


def expand(key: bytes, info: bytes) -> bytes:
    """The second step of `derive`: 32 bytes for one use."""
    return HKDFExpand(hashes.SHA256(), 32, info).derive(key)


@lru_cache(maxsize=2**14)
def parse_key(key: bytes) -> X25519PublicKey:
    """A public key from its bytes. Results are kept, since all clients in a process read the same ones."""
    return X25519PublicKey.from_public_bytes(key)


def agree(private: X25519PrivateKey, key: bytes, client: int) -> bytes:
    """The secret that a private key and another's public key have in common.

    Args:
        private: One's own key.
        key: The public key.
        client: The number of the client that sent it, for the error.

    Returns:
        The secret, 32 bytes.

    Raises:
        ProtocolError: If the key is of low order, or not below 2²⁵⁵ − 19. X25519 would accept the
            latter as a second encoding of the same key.
    """
    if int.from_bytes(key, "little") >= 2**255 - 19:
        raise ProtocolError(f"client {client} sent a public key that is not in its canonical encoding")
    try:
        return private.exchange(parse_key(key))
    except ValueError:
        raise ProtocolError(f"client {client} sent a public key that gives no secret") from None


# -- shares and tags ------------------------------------------------------------------------------


def commitments(shares: bytes) -> bytes:
    """A commitment to each share. It reveals nothing: shares are as random as keys."""
    starts = range(0, len(shares), SECRET_BYTES)
    digests = [sha256(b"rqm share" + shares[start : start + SECRET_BYTES]).digest() for start in starts]
    return b"".join([digest[:COMMITMENT_BYTES] for digest in digests])


def sealed_bytes(shares: int) -> int:
    """Size of that many sealed shares for one client."""
    return shares * (COMMITMENT_BYTES + SECRET_BYTES) + NONCE_BYTES + 16


def seal(shares: bytes, key: bytes, context: bytes) -> bytes:
    """Encrypt shares for one client, after commitments by which everybody recognizes them.

    Args:
        shares: One or more shares of 32 bytes.
        key: The key of this message.
        context: What the ciphertext is bound to.

    Returns:
        The commitments and the ciphertext.
    """
    nonce = os.urandom(NONCE_BYTES)
    return commitments(shares) + nonce + AESGCM(key).encrypt(nonce, shares, context)


def unseal(sealed: bytes, shares: int, key: bytes, context: bytes) -> bytes:
    """Undo `seal`.

    Args:
        sealed: What it returned.
        shares: How many shares there are.
        key: The key of this message.
        context: What the ciphertext is bound to.

    Returns:
        The shares; empty if they cannot be decrypted, or do not fit the commitments.
    """
    start = shares * COMMITMENT_BYTES
    nonce, ciphertext = sealed[start : start + NONCE_BYTES], sealed[start + NONCE_BYTES :]
    try:
        opened = AESGCM(key).decrypt(nonce, ciphertext, context)
    except InvalidTag:
        return b""
    return opened if commitments(opened) == sealed[:start] else b""


def tag(key: bytes, context: bytes) -> bytes:
    """A short authentication of some context."""
    return hmac.digest(key, context, "sha256")[:TAG_BYTES]
