"""ChaCha20 in the compiled loop: the standard's answers, and another library's stream, bit for bit."""

import os

import numpy as np
import pytest

from rqm import SecureRandom
from rqm.kernels import chacha, cpu
from rqm.randomness import CHUNK

# RFC 8439, block function: key, nonce, counter and the 64 bytes (section 2.3.2, and appendix A.1, vectors 1 to 5).
COUNTING = bytes(range(32))
KNOWN = [
    (
        COUNTING,
        "000000090000004a00000000",
        1,
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
    ),
    (
        bytes(32),
        "00" * 12,
        0,
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    (
        bytes(32),
        "00" * 12,
        1,
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    (
        bytes(31) + b"\1",
        "00" * 12,
        1,
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    ),
    (
        b"\0\xff" + bytes(30),
        "00" * 12,
        2,
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
    (
        bytes(32),
        "00" * 11 + "02",
        0,
        "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
        "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d",
    ),
]


def blocks(key, chunk):
    """The 64 bytes of every block of a chunk."""
    words = np.empty(CHUNK, dtype=np.uint64)
    chacha.fill(words, key, np.uint64(chunk))
    return np.ascontiguousarray(words.view(np.uint32).reshape(16, chacha.BLOCKS).T)


@pytest.mark.parametrize(("key", "nonce", "counter", "answer"), KNOWN)
def test_blocks_are_those_of_the_standard(key, nonce, counter, answer):
    first, *rest = np.frombuffer(bytes.fromhex(nonce), dtype="<u4")
    number = int(first) << 32 | counter  # our counter is the standard's and the first part of its nonce
    words = np.concatenate([np.frombuffer(key, dtype="<u4"), rest]).astype(np.uint32)
    found = blocks(words, number // chacha.BLOCKS)[number % chacha.BLOCKS]
    assert found.astype("<u4").tobytes().hex() == answer


@pytest.mark.parametrize("chunk", [0, 1, 2**25 - 1, 2**25, 2**40 + 3])
def test_the_stream_is_that_of_another_library(chunk):
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    key = SecureRandom().key()
    counter = (chunk * chacha.BLOCKS).to_bytes(8, "little") + key[8:].astype("<u4").tobytes()
    cipher = Cipher(algorithms.ChaCha20(key[:8].astype("<u4").tobytes(), counter), mode=None).encryptor()
    assert blocks(key, chunk).astype("<u4").tobytes() == cipher.update(bytes(64 * chacha.BLOCKS))


def test_narrower_registers_write_the_same(monkeypatch):
    key = SecureRandom().key()
    expected = blocks(key, 5)
    for features in ({}, {"avx2": True}, {"avx512f": True}):
        monkeypatch.setattr(chacha.binding, "get_host_cpu_features", lambda known=features: known)
        monkeypatch.setattr(chacha, "LANES", chacha._lanes())
        monkeypatch.setattr(chacha, "_VECTOR", chacha.ir.VectorType(chacha._WORD, chacha.LANES))
        again = chacha.njit(chacha.fill.py_func)
        words = np.empty(CHUNK, dtype=np.uint64)
        again(words, key, np.uint64(5))
        assert (expected == words.view(np.uint32).reshape(16, -1).T).all()


def test_a_row_of_inputs_draws_from_a_stream_of_its_own(monkeypatch):
    """Every row and every block of a call asks for its own key, whatever threads there are."""
    asked = []

    def key(self):
        asked.append(os.urandom(40))
        return np.frombuffer(asked[-1], dtype=np.uint32)

    monkeypatch.setattr(SecureRandom, "key", key)
    from rqm import RQM

    RQM().encode_sum(np.zeros((3, 2 * cpu.GRAIN)), SecureRandom(), threads=2)
    assert len(asked) == len(set(asked)) == 6


def test_secure_draws_are_those_of_the_words_of_their_key():
    """The words go where the proof says, in both kinds of recipe: an oracle draws the same from the same stream."""
    from rqm import PBM, RQM
    from tests.kernels.test_cpu import from_words

    x = np.random.default_rng(0).uniform(-1.2, 1.2, 3 * CHUNK).astype(np.float32)
    for mech in (RQM(), PBM(levels=20)):
        key = SecureRandom().key()
        out = np.empty(len(x), dtype=mech.recipe.dtype)
        assert not cpu.draw_secure(x, out, cpu.law_of(mech.recipe), False, key)
        stream = np.concatenate([blocks(key, chunk).T.reshape(-1) for chunk in range(3 * mech.recipe.words)])
        assert (out == from_words(mech.recipe, x, np.ascontiguousarray(stream).view(np.uint64))).all()
