"""The two sources of random words."""

import sys

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from rqm import SecureRandom, SeededRandom
from rqm.kernels import cpu
from rqm.randomness import SEED_CHUNK, cipher_stream, require_secure, threefry

# Random123's published answers (kat_vectors): counter, key, output of Threefry-2×64 with 13 rounds.
KNOWN = [
    ((0, 0), (0, 0), (0xF167B032C3B480BD, 0xE91F9FEE4B7A6FB5)),
    ((2**64 - 1, 2**64 - 1), (2**64 - 1, 2**64 - 1), (0xCCDEC5C917A874B1, 0x4DF53ABCA26CEB01)),
    (
        (0x243F6A8885A308D3, 0x13198A2E03707344),
        (0xA4093822299F31D0, 0x082EFA98EC4E6C89),
        (0xC3AAC71561042993, 0x3FE7AE8801AFF316),
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_threefry_gives_the_known_answers(counter, key, answer):
    words = threefry(*(np.array([number], dtype=np.uint64) for number in (*counter, *key)))
    assert tuple(int(word[0]) for word in words) == answer


def test_compiled_words_are_those_of_numpy():
    rng, again = SeededRandom(5, 1, 2), SeededRandom(5, 1, 2)
    words = rng.words(3 * SEED_CHUNK - 7)
    (k0, k1), first = again.reserve(3)
    compiled = np.empty(3 * SEED_CHUNK, dtype=np.uint64)
    cpu.fill_seeded(compiled, k0, k1, np.uint64(first))
    assert (compiled[: len(words)] == words).all()


def test_seeded_words_repeat_and_go_on():
    a, b = SeededRandom(3), SeededRandom(3)
    first = a.words(5)
    assert (first == b.words(5)).all()
    assert not (first == a.words(5)).any()
    assert not (SeededRandom(4).words(5) == first).any()


def test_streams_do_not_meet():
    root = SeededRandom(1)
    sequences = [root.words(1000), *(root.stream(c, r).words(1000) for c in range(4) for r in range(4))]
    sequences += [SeededRandom(11).words(1000), SeededRandom(1, 1).stream(1).words(1000), SeededRandom(0).words(1000)]
    assert len(np.unique(np.concatenate(sequences))) == 19 * 1000  # (1, 1, 1) is stream (1, 1) of 1 once more
    assert (SeededRandom(1, 1).stream(1).words(9) == root.stream(1, 1).words(9)).all()


def test_calls_of_other_generators_never_share_key_and_counter():
    sources = [SeededRandom(1), SeededRandom(2), SeededRandom(1).stream(0)]
    calls = {source.reserve_call() for source in sources for _ in range(1000)}
    assert len(calls) == 3000
    late = SeededRandom(1)
    late._call = 2**32  # the 32-bit counter has run out: another key
    assert late.reserve_call()[:2] != SeededRandom(1).reserve_call()[:2]
    assert all(0 <= number < 2**32 for call in calls for number in call)


def test_secure_words_never_repeat():
    source = SecureRandom()
    words = np.concatenate([source.words(1000) for _ in range(10)])
    assert len(np.unique(words)) == 10_000
    assert source.words(0).shape == (0,)


def test_counts_may_be_numpys_and_must_fit():
    for count in (np.uint8(32), np.int16(8192)):
        words = SecureRandom().words(count)
        assert len(words) == count
        assert len(np.unique(words)) == count


def test_keys_never_repeat_and_fill_all_their_words():
    keys = np.stack([SecureRandom().key() for _ in range(1000)])
    assert keys.shape == (1000, 10)
    assert keys.dtype == np.uint32
    assert len(np.unique(keys)) > 9_990  # of ten thousand numbers of 32 bits, a hundredth of a pair meets by chance


def test_without_the_cipher_the_operating_systems_words_are_taken(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    words = np.concatenate([SecureRandom().words(1000), SecureRandom().words(1000)])
    assert len(np.unique(words)) == 2000
    assert SecureRandom().words(3).shape == (3,)


@pytest.mark.statistical
def test_words_have_fair_and_independent_bits():
    for words in (SeededRandom(8).words(1_000_000), SecureRandom().words(1_000_000)):
        bits = np.unpackbits(words.view(np.uint8)).reshape(-1, 64)
        limit = 6.5 / 2 * np.sqrt(len(bits))  # 2 · 64² comparisons at once: about 1e-6 together
        assert abs(bits.sum(axis=0, dtype=int) - len(bits) / 2).max() < limit
        together = bits[:20_000].astype(np.int32)
        product = together.T @ together
        off = product[~np.eye(64, dtype=bool)]
        assert abs(off - len(together) / 4).max() < 6.5 * np.sqrt(len(together) * 3 / 16)
    biased = bits[:, 0] | (bits[:, 1] & bits[:, 2] & (np.arange(len(bits)) % 25 == 0))
    assert abs(int(biased.sum()) - len(bits) / 2) > limit  # half a per cent is found


def test_each_source_says_what_it_is():
    assert SecureRandom().private
    assert not SeededRandom(0).private
    assert "not private" in repr(SeededRandom(0))


def test_a_deployment_takes_secure_randomness_only():
    source = SecureRandom()
    assert require_secure(source) is source
    with pytest.raises(TypeError, match=r"not private.*SecureRandom\(\) only"):
        require_secure(SeededRandom(1))
    with pytest.raises(TypeError, match="SecureRandom"):
        require_secure(np.random.default_rng(1))


@pytest.mark.parametrize("seed", [-1, 1.5, "a"])
def test_seeds_are_whole_numbers(seed):
    with pytest.raises((ValueError, TypeError), match="seed"):
        SeededRandom(seed)


@pytest.mark.parametrize("sizes", [[5], [32], [33, 1, 7], [3, 40, 100_000, 17], [1, 1, 2**20 + 3]])
def test_the_stream_is_aes_in_counter_mode_in_pieces_of_any_size(sizes):
    key, nonce = bytes(range(32)), bytes(range(12))
    fill, pieces = cipher_stream(key, nonce), [np.empty(size, dtype=np.uint8) for size in sizes]
    for piece in pieces:
        fill(piece)
    expected = Cipher(algorithms.AES(key), modes.CTR(nonce + bytes(4))).encryptor().update(bytes(sum(sizes)))
    assert b"".join(piece.tobytes() for piece in pieces) == expected
