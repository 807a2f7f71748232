"""Masks: the cipher's words and nothing else, uniform, and from keys with all their entropy."""

import random

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from rqm.kernels.packing import word_type
from rqm.secagg import ProtocolError, masking
from rqm.secagg.client import Client
from tests.goodness import p_value
from tests.secagg.rounds import PARAMS

LEVEL = 1e-6


@pytest.mark.parametrize("bits", [1, 8, 9, 16, 17, 32])
@pytest.mark.parametrize("count", [1, 5, 2**18 + 3])
def test_a_mask_is_the_keystream_word_by_word(bits, count):
    key = bytes(range(32))
    total = np.arange(count).astype(word_type(bits))
    original = total.copy()
    masking.add_mask(total, key, 1)
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    words = np.frombuffer(cipher.update(bytes(total.nbytes)), total.dtype)
    assert (total == original + words).all()  # modulo the word
    masking.add_mask(total, key, -1)
    assert (total == original).all()


def masks(bits):
    """A client's own mask, modulo 2**bits."""
    total = np.zeros(1000, word_type(bits))
    masking.add_mask(total, masking.own_mask_key(PARAMS.digest, Client(PARAMS, 0)._seed, 0), 1)
    return total & (2**bits - 1)


def never_the_top(bits):
    """As in a known library: a 32-bit seed for a Mersenne Twister, whose range leaves out the largest value."""
    return np.random.RandomState(random.getrandbits(32)).randint(0, 2**bits - 1, 1000)


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("draw", "bits", "is_uniform"), [(masks, 6, True), (masks, 10, True), (never_the_top, 6, False)]
)
def test_masks_are_uniform(draw, bits, is_uniform):
    values = np.concatenate([draw(bits) for _ in range(300)])
    p = p_value(np.bincount(values, minlength=2**bits), np.full(2**bits, 2.0**-bits))
    assert (p > LEVEL) == is_uniform


def repeats(drawn):
    return len(drawn) - len(set(drawn))


@pytest.mark.slow
@pytest.mark.statistical
def test_keys_have_more_than_32_bits_of_entropy():
    """The birthday test: of 120,000 seeds of 32 bits two should repeat; of ours, and of our keys, none."""
    clients = (Client(PARAMS, 0) for _ in range(120_000))
    drawn = [(client._seed[:8], masking.public(client._mask_key)[:8]) for client in clients]
    for values in zip(*drawn, strict=True):
        assert repeats(values) == 0
    weak = random.Random(5)
    assert repeats([np.random.RandomState(weak.getrandbits(32)).bytes(8) for _ in range(120_000)]) > 0


def test_two_clients_agree_on_a_key_that_depends_on_everything():
    first, second = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    secret = masking.agree(first, masking.public(second), 2)
    assert secret == masking.agree(second, masking.public(first), 1)
    digest = PARAMS.digest
    assert masking.derive(secret, digest, b"use") == masking.expand(masking.extract(secret, digest), b"use")
    keys = {
        masking.pair_mask_key(digest, secret, 1, 2),
        masking.pair_mask_key(digest, secret, 1, 3),
        masking.own_mask_key(digest, secret, 1),
        masking.pair_mask_key(bytes(32), secret, 1, 2),
        masking.pair_mask_key(digest, bytes(32), 1, 2),
    }
    assert len(keys) == 5
    assert masking.pair_mask_key(digest, secret, 2, 1) == masking.pair_mask_key(digest, secret, 1, 2)


@pytest.mark.parametrize("key", [bytes(32), b"\x01" + bytes(31)])
def test_keys_of_low_order_are_refused(key):
    with pytest.raises(ProtocolError, match="client 7 sent a public key that gives no secret"):
        masking.agree(X25519PrivateKey.generate(), key, 7)


@pytest.mark.parametrize("count", [1, 2])
def test_sealed_shares_are_opened_if_nothing_was_altered(count):
    shares, key = bytes(range(32 * count)), bytes(32)
    sealed = masking.seal(shares, key, b"context")
    assert len(sealed) == masking.sealed_bytes(count)
    assert masking.unseal(sealed, count, key, b"context") == shares
    assert masking.unseal(sealed, count, key, b"other") == masking.unseal(sealed, count, bytes(31) + b"x", b"") == b""
    for index in range(len(sealed)):  # also the commitments
        altered = sealed[:index] + bytes([sealed[index] ^ 1]) + sealed[index + 1 :]
        assert masking.unseal(altered, count, key, b"context") == b""
