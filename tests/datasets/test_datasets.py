"""Data sets: the generated one, and files that users bring."""

import numpy as np
import pytest
import torch

from rqm.datasets import folders, load
from rqm.datasets.glyphs import CHARACTERS, FONTS, glyphs, sizes, templates, write
from rqm.datasets.readers import read_npz


def test_glyphs_follow_from_their_seed():
    one, same, other = (write(seed, 5, 40) for seed in (0, 0, 1))
    assert (one[0] == same[0]).all()
    assert (one[1] == same[1]).all()
    assert (one[0] != other[0]).any()
    assert one[0].shape == (40, 28, 28)
    assert one[0].dtype == np.uint8


def test_every_font_draws_every_character():
    for font in range(len(FONTS)):
        drawn = templates(font)
        assert drawn.shape == (62, 1, 64, 64)
        assert (drawn.amax(dim=(1, 2, 3)) > 0.5).all(), FONTS[font]
        distinct = {bytes((picture > 0.5).numpy()) for picture in drawn}
        assert len(distinct) >= 60  # O and 0, or l and I, may look alike


def test_sizes_imitate_federated_emnist():
    count = sizes(0, 3400)
    assert 215 < count.mean() < 237
    assert 80 < count.std() < 98
    assert count.min() >= 20
    assert count.max() <= 500


def test_writers_are_made_when_asked_for_and_differ_from_the_test_writers():
    data = glyphs(seed=3, writers=10, test_writers=4)
    assert len(data.train) == 10
    assert data.classes == len(CHARACTERS) == 62
    assert int(data.train.inputs.max()) == 0  # nothing made yet
    images, labels = data.train[2]
    assert int(images.amax()) > 200
    assert labels.max() < 62
    assert torch.equal(images, torch.from_numpy(write(3, 2, len(labels))[0]))
    assert int(data.train.inputs[: data.train.offsets[2]].max()) == 0
    assert len(data.test_labels) == 4 * 30


def arrays(**changes):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(60, 28, 28), dtype=np.uint8)
    base = {
        "images": images,
        "labels": np.arange(60) % 10,
        "writers": np.arange(60) // 6,
        "is_test": np.arange(60) > 40,
    }
    return {**base, **changes}


def test_an_archive_is_read(tmp_path):
    np.savez(tmp_path / "a.npz", **arrays())
    data = read_npz(tmp_path / "a.npz", "a", "writers", 10)
    assert len(data.train) == 7
    assert data.train.sizes.tolist() == [6] * 6 + [5]
    assert len(data.test_labels) == 19
    assert data.test_inputs.dtype == torch.uint8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"labels": np.full(60, 10)}, "label 10"),
        ({"images": np.zeros((60, 28, 28))}, "must be uint8"),
        ({"writers": np.zeros(59)}, "with n labels"),
    ],
)
def test_an_archive_with_wrong_contents_is_refused(changes, words, tmp_path):
    np.savez(tmp_path / "a.npz", **arrays(**changes))
    with pytest.raises(ValueError, match=words):
        read_npz(tmp_path / "a.npz", "a", "writers", 10)


def test_a_damaged_archive_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", **arrays())
    with pytest.raises(ValueError, match="lacks the arrays pseudo_writers"):
        read_npz(tmp_path / "a.npz", "a", "pseudo_writers", 10)
    whole = (tmp_path / "a.npz").read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:10], b"no archive at all"):
        (tmp_path / "a.npz").write_bytes(damaged)
        with pytest.raises(ValueError, match="damaged or not a NumPy archive"):
            read_npz(tmp_path / "a.npz", "a", "writers", 10)


def test_where_data_are_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("RQM_DATA", str(tmp_path / "named"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert folders(tmp_path / "given") == [tmp_path / "given", tmp_path / "named", tmp_path / "cache" / "rqm"]
    with pytest.raises(ValueError, match="among glyphs"):
        load("cifar")
    with pytest.raises(FileNotFoundError, match=r"EMNIST.*--data DIR"):
        load("emnist-byclass-test")
