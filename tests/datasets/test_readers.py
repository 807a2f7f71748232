"""Readers, each on a small file written in the true format, and on damaged ones."""

import gzip
import json
import struct

import numpy as np
import pytest
from scipy.io import savemat

from rqm.datasets.readers import read_emnist_mat, read_idx, read_leaf, upright

PICTURES = np.random.default_rng(0).integers(0, 256, size=(7, 28, 28), dtype=np.uint8)


def idx(array):
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def test_idx_plain_and_gzipped(tmp_path):
    plain, packed = tmp_path / "images-idx3-ubyte", tmp_path / "labels-idx1-ubyte.gz"
    plain.write_bytes(idx(PICTURES))
    packed.write_bytes(gzip.compress(idx(np.arange(7, dtype=np.uint8))))
    assert (read_idx(plain) == PICTURES).all()
    assert read_idx(packed).tolist() == list(range(7))
    assert (upright(PICTURES)[3] == PICTURES[3].T).all()


def test_idx_that_is_damaged(tmp_path):
    path, whole = tmp_path / "x", idx(PICTURES)
    for damaged, words in (
        (whole[:-1], "5487 bytes after its header"),
        (whole + b"x", "5489 bytes"),
        (whole[:9], "truncated"),
        (b"", "must be an IDX file"),
        (b"\0\0\x0d" + whole[3:], "unsigned bytes"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=words):
            read_idx(path)
    zipped = tmp_path / "x.gz"
    for damaged in (gzip.compress(whole)[:50], b"not gzip"):
        zipped.write_bytes(damaged)
        with pytest.raises(ValueError, match="damaged"):
            read_idx(zipped)


def leaf(**changes):
    data = {
        "f0001_41": {"x": (1 - PICTURES[:3].reshape(3, -1) / 255).tolist(), "y": [3, 40, 61]},
        "f0002_10": {"x": (1 - PICTURES[3:].reshape(4, -1) / 255).tolist(), "y": [0, 1, 2, 3]},
    }
    return {"users": list(data), "num_samples": [3, 4], "user_data": data, **changes}


def test_leaf(tmp_path):
    path = tmp_path / "all_data_0.json"
    path.write_text(json.dumps(leaf()))
    images, labels, users, owner = read_leaf(path)
    assert (images == PICTURES).all()
    assert labels.tolist() == [3, 40, 61, 0, 1, 2, 3]
    assert users == ["f0001_41", "f0002_10"]
    assert owner.tolist() == [0, 0, 0, 1, 1, 1, 1]


def test_leaf_that_is_damaged(tmp_path):
    path = tmp_path / "x.json"
    short = leaf()
    short["user_data"]["f0001_41"]["y"] = [1]
    dark = leaf()
    dark["user_data"]["f0002_10"]["x"][0][5] = 7.0
    for content, words in (
        (json.dumps(leaf())[:-40], "damaged or not a LEAF file"),
        (json.dumps({"users": ["a"]}), "KeyError"),
        (json.dumps(leaf(users=["nobody"])), "nobody"),
        (json.dumps(short), "f0001_41 must have"),
        (json.dumps(dark), "f0002_10 must have"),
        (json.dumps(leaf(users=[])), "no users"),
    ):
        path.write_text(content)
        with pytest.raises(ValueError, match=words):
            read_leaf(path)


def part(pictures, writers):
    columns = pictures.transpose(0, 2, 1).reshape(len(pictures), -1)
    return {"images": columns, "labels": np.arange(len(pictures))[:, None], "writers": np.array(writers)[:, None]}


def test_emnist_mat(tmp_path):
    path = tmp_path / "emnist-byclass.mat"
    savemat(path, {"dataset": {"train": part(PICTURES[:5], [9, 9, 4, 4, 4]), "test": part(PICTURES[5:], [7, 7])}})
    found = read_emnist_mat(path)
    images, labels, writers = found["train"]
    assert (images == PICTURES[:5]).all()
    assert labels.tolist() == [0, 1, 2, 3, 4]
    assert writers.tolist() == [9, 9, 4, 4, 4]
    assert (found["test"][0] == PICTURES[5:]).all()
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"no matlab", b""):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="damaged or not EMNIST"):
            read_emnist_mat(path)
    savemat(path, {"dataset": {"train": part(PICTURES[:5], [1, 2])}})
    with pytest.raises(ValueError, match="damaged or not EMNIST"):
        read_emnist_mat(path)
