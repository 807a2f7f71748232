"""Masks: the cipher's words and nothing else, uniform, and from keys with all their entropy."""

import random

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from rqm.secagg import masking
from rqm.secagg.client import Client
from rqm.secagg.errors import ProtocolError
from rqm.secagg.protocol import Masks, Params
from tests.goodness import p_value

LEVEL = 1e-6

MASKS = Masks()


@pytest.mark.parametrize("bits", [1, 8, 9, 16, 17, 32])
@pytest.mark.parametrize("count", [1, 5, 2**18 + 3])
def test_a_mask_is_the_keystream_word_by_word(bits, count):
    key = bytes(range(32))
    total = np.arange(count).astype(masking.lane(bits))
    before = total.copy()
    masking.add_mask(total, key, 1)
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    words = np.frombuffer(cipher.update(bytes(total.nbytes)), total.dtype)
    assert (total == before + words).all()  # modulo the word
    masking.add_mask(total, key, -1)
    assert (total == before).all()


def masked_values(bits, size, draw):
    """What a server sees of clients whose values are all zero: their masks modulo 2**bits."""
    return np.concatenate([draw(bits) for _ in range(size)])


def ours(bits):
    params = Params(clients=3, count=1000, levels=2, round=b"1", bits=bits)
    total = np.zeros(1000, masking.lane(bits))
    masking.add_mask(total, MASKS.own_key(params, Client(params, 0)._seed, 0), 1)
    return total & (2**bits - 1)


def never_the_top(bits):
    """As in a known library: a 32-bit seed for a Mersenne Twister, whose range leaves out the largest value."""
    return np.random.RandomState(random.getrandbits(32)).randint(0, 2**bits - 1, 1000)


@pytest.mark.statistical
def test_masks_are_uniform():
    for bits in (6, 10):
        law = np.full(2**bits, 2.0**-bits)
        assert p_value(np.bincount(masked_values(bits, 300, ours), minlength=2**bits), law) > LEVEL
    law = np.full(64, 1 / 64)  # the top value is missing: 4,700 times of 300,000
    assert p_value(np.bincount(masked_values(6, 300, never_the_top), minlength=64), law) < LEVEL


def repeats(masks):
    return len(masks) - len(set(masks))


@pytest.mark.slow
@pytest.mark.statistical
def test_keys_have_more_than_32_bits_of_entropy():
    """The birthday test: of 120,000 seeds of 32 bits two should repeat; of ours, and of our keys, none."""
    params = Params(clients=3, count=4, levels=2, round=b"1", bits=32)
    clients = (Client(params, 0) for _ in range(120_000))
    found = [(client._seed[:8], masking.public(client._pairs)[:8]) for client in clients]
    for part in zip(*found, strict=True):
        assert repeats(part) == 0
    weak = random.Random(5)
    assert repeats([np.random.RandomState(weak.getrandbits(32)).bytes(8) for _ in range(120_000)]) > 0


def test_two_clients_agree_on_a_key_that_depends_on_everything():
    one, other = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    secret = masking.agree(one, masking.public(other), "x")
    assert secret == masking.agree(other, masking.public(one), "y")
    params = Params(clients=5, count=4, levels=2, round=b"1")
    other_round = Params(clients=5, count=4, levels=2, round=b"2")
    keys = {
        MASKS.pair_key(params, secret, 1, 2),
        MASKS.pair_key(params, secret, 1, 3),
        MASKS.own_key(params, secret, 1),
        MASKS.pair_key(other_round, secret, 1, 2),
        MASKS.pair_key(params, bytes(32), 1, 2),
    }
    assert len(keys) == 5
    assert MASKS.pair_key(params, secret, 2, 1) == MASKS.pair_key(params, secret, 1, 2)


@pytest.mark.parametrize("key", [bytes(32), b"\x01" + bytes(31)])
def test_keys_of_low_order_are_refused(key):
    with pytest.raises(ProtocolError, match="client 7 sent a public key that gives no secret"):
        masking.agree(X25519PrivateKey.generate(), key, "client 7")
