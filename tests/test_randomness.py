"""The two sources of random words."""

import numpy as np
import pytest

from rqm import SecureRandom, SeededRandom


def test_seeded_words_repeat_and_go_on():
    a, b = SeededRandom(3), SeededRandom(3)
    first = a.words(5)
    assert (first == b.words(5)).all()
    assert not (first == a.words(5)).any()
    assert not (SeededRandom(4).words(5) == first).any()


def test_streams_do_not_meet():
    root = SeededRandom(1)
    seen = [root.words(1000), *(root.stream(c, r).words(1000) for c in range(4) for r in range(4))]
    assert len(np.unique(np.concatenate(seen))) == 17 * 1000


def test_secure_words_never_repeat():
    source = SecureRandom()
    words = np.concatenate([source.words(1000) for _ in range(10)])
    assert len(np.unique(words)) == 10_000
    assert source.words(0).shape == (0,)


def test_each_source_says_what_it_is():
    assert SecureRandom().private
    assert not SeededRandom(0).private
    assert "not private" in repr(SeededRandom(0))


@pytest.mark.parametrize("seed", [-1, 1.5, "a"])
def test_seeds_are_whole_numbers(seed):
    with pytest.raises((ValueError, TypeError), match="seed"):
        SeededRandom(seed)
