"""AES-256 in counter mode in the compiled loop: the standard's answers, and another library's stream, bit for bit."""

import os

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from rqm.kernels import aes
from rqm.secagg import masking

pytestmark = pytest.mark.skipif(not aes.WIDTH, reason="this processor enciphers one block at a time")

# NIST's known answers for AES-256 (AESAVS, KeySbox): the block of zeros, the first that is counted, under these keys.
KNOWN = {
    "c47b0294dbbbee0fec4757f22ffeee3587ca4730c3d33b691df38bab076bc558": "46f2fb342d6f0ab477476fc501242c5f",
    "28d46cffa158533194214a91e712fc2b45b518076675affd910edeca5f41ac64": "4bf3b0a69aeb6657794f2901b1440ad4",
    "c1cc358b449909a19436cfbb3f852ef8bcb5ed12ac7058325f56e6099aab1a1c": "352065272169abf9856843927d0674fd",
    "984ca75f4ee8d706f46c2d98c0bf4a45f5b00d791c2dfeb191b5ed8e420fd627": "4307456a9e67813b452e15fa8fffe398",
}


def library(key, size):
    """The same stream by the library."""
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(size))


@pytest.mark.parametrize(("key", "answer"), KNOWN.items())
def test_the_first_block_is_that_of_the_standard(key, answer):
    total = np.zeros(16, dtype=np.uint8)
    aes.add(total, bytes.fromhex(key), away=False)
    assert total.tobytes().hex() == answer


@pytest.mark.parametrize("kind", ["u1", "<u2", "<u4"])
@pytest.mark.parametrize("count", [0, 1, 255, aes.PIECE, 3 * aes.PIECE + 7, 2**20 + 5])
def test_the_stream_is_that_of_another_library(kind, count):
    key, before = os.urandom(32), np.arange(count).astype(kind)
    total = before.copy()
    aes.add(total, key, away=False)
    assert (total == before + np.frombuffer(library(key, total.nbytes), kind)).all()  # modulo the word
    aes.add(total, key, away=True)
    assert (total == before).all()


def test_the_counter_goes_on_beyond_16_bits_of_blocks():
    key, total = os.urandom(32), np.zeros(16 * (2**17 + 3), dtype=np.uint8)
    aes.add(total, key, away=False)
    assert total.tobytes() == library(key, len(total))


def test_narrower_registers_write_the_same(monkeypatch):
    key, widest = os.urandom(32), aes.WIDTH
    for features, width in (({"avx2": True}, 2), ({"avx2": True, "avx512f": True}, 4)):
        both = {"aes": True, "vaes": True, **features}
        monkeypatch.setattr(aes.binding, "get_host_cpu_features", lambda known=both: known)
        monkeypatch.setattr(aes, "WIDTH", aes._width())
        assert width == aes.WIDTH
        if width <= widest:
            found = np.empty(4096, dtype=np.uint8)
            aes.njit(aes._fill.py_func)(found, aes._keys(np.frombuffer(key, dtype=np.uint8)), 0, width * aes.BESIDE)
            assert found.tobytes() == library(key, 4096)


@pytest.mark.parametrize("features", [{}, {"aes": True, "avx512f": True}, {"vaes": True, "aes": True}])
def test_a_processor_without_the_instructions_has_the_library(monkeypatch, features):
    monkeypatch.setattr(aes.binding, "get_host_cpu_features", lambda: features)
    monkeypatch.setattr(aes, "WIDTH", aes._width())
    assert aes.WIDTH == 0
    monkeypatch.setattr(aes, "add", None)
    key, total = os.urandom(32), np.zeros(masking.MIN_COMPILED_BYTES, dtype=np.uint16)
    masking.add_mask(total, key, 1)
    assert total.tobytes() == library(key, total.nbytes)


def test_large_masks_are_made_here_and_small_ones_by_the_library(monkeypatch):
    asked = []
    monkeypatch.setattr(aes, "add", lambda total, _key, *, away: asked.append((total.nbytes, away)))
    for size in (masking.MIN_COMPILED_BYTES - 1, masking.MIN_COMPILED_BYTES):
        masking.add_mask(np.zeros(size, dtype=np.uint8), bytes(32), -1)
    assert asked == [(masking.MIN_COMPILED_BYTES, True)]
