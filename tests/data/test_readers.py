"""Readers, each on a small file written in the true format, and on damaged ones."""

import gzip
import json
import sys

import h5py
import numpy as np
import pyarrow as pa
import pytest

from rqm.data.readers import read_emnist_mat, read_idx, read_leaf, read_parquet, read_tff, upright
from tests.data.files import PICTURES, WRITERS, idx, leaf, mat, png, save_leaf, save_mat, save_parquet, save_tff


def refused(read, path, words):
    """The file is refused with these words, and named."""
    with pytest.raises(ValueError, match=words) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")


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
        (whole + b"x", "more than 5488 bytes"),
        (whole[:9], "truncated"),
        (b"", "must be an IDX file"),
        (b"\0\0\x0d" + whole[3:], "unsigned bytes"),
        (whole[:3] + b"\xff" + bytes(4 * 255), "one to three dimensions"),
    ):
        path.write_bytes(damaged)
        refused(read_idx, path, words)
    zipped, packed = tmp_path / "x.gz", gzip.compress(idx(np.zeros((7, 28, 28), dtype=np.uint8)))
    for damaged in (packed[:20], packed[:12] + b"\xff" * 8 + packed[20:], packed[:-8] + bytes(8), b"not gzip"):
        zipped.write_bytes(damaged)
        refused(read_idx, zipped, "damaged or not a gzip file")


def test_leaf(tmp_path):
    path = tmp_path / "all_data_0.json"
    save_leaf(path)
    images, labels, users, owner = read_leaf(path)
    assert (images == PICTURES).all()
    assert images.dtype == np.uint8
    assert labels.tolist() == [0, 1, 2, 3, 3, 40, 61]
    assert users == ["f0002_10", "f0001_41"]
    assert owner.tolist() == [0, 0, 0, 0, 1, 1, 1]


def test_leaf_that_is_damaged(tmp_path):
    path = tmp_path / "x.json"
    short, dark, narrow, half = leaf(), leaf(), leaf(), leaf()
    short["user_data"]["f0001_41"]["y"] = [1]
    dark["user_data"]["f0002_10"]["x"][0][5] = 7.0
    narrow["user_data"]["f0002_10"]["x"] = [[0.0] * 783] * 4
    half["user_data"]["f0002_10"]["y"] = [0.5] * 4
    for content, words in (
        (json.dumps(leaf())[:-40], "damaged or not a LEAF file"),
        ("\0", "damaged or not a LEAF file"),
        (json.dumps([1]), "damaged or not a LEAF file"),
        (json.dumps({"users": ["a"]}), "KeyError"),
        (json.dumps(leaf(users=["nobody"])), "nobody"),
        (json.dumps(short), "f0001_41 must have pictures of 784 numbers"),
        (json.dumps(dark), "f0002_10 must have"),
        (json.dumps(narrow), "f0002_10 must have"),
        (json.dumps(half), "float64: must be whole numbers"),
        (json.dumps(leaf(users=[])), "no pictures"),
    ):
        path.write_text(content)
        refused(read_leaf, path, words)
    path.write_bytes(b"\xff\xfe\xff")
    refused(read_leaf, path, "damaged or not a LEAF file")


@pytest.mark.parametrize("column", [False, True])
def test_tff(column, tmp_path):
    path = tmp_path / "fed_emnist_train.h5"
    shaped = {name: (x, np.array(y)[:, None] if column else y) for name, (x, y) in WRITERS.items()}
    save_tff(path, shaped)
    images, labels, names, owner = read_tff(path)
    assert (images == PICTURES[[4, 5, 6, 0, 1, 2, 3]]).all()
    assert images.dtype == np.uint8
    assert labels.dtype == np.int64
    assert labels.tolist() == [3, 40, 61, 0, 1, 2, 3]
    assert names == ["f0001_41", "f0002_10"]
    assert owner.tolist() == [0, 0, 0, 1, 1, 1, 1]


def test_tff_that_is_damaged(tmp_path):
    path = tmp_path / "x.h5"
    save_tff(path)
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:100] + bytes(600) + whole[700:], b"no HDF5", b""):
        path.write_bytes(damaged)
        refused(read_tff, path, "damaged or not an HDF5 file of TensorFlow Federated")


@pytest.mark.parametrize(
    ("dataset", "value", "words"),
    [
        ("pixels", np.ones((3, 28, 27), dtype=np.float32), "f0001_41 must have pictures of 28×28 numbers"),
        ("pixels", np.full((3, 28, 28), 1.01, dtype=np.float32), "f0001_41 must have"),
        ("pixels", np.full((3, 28, 28), np.nan, dtype=np.float32), "f0001_41 must have"),
        ("pixels", np.ones((2, 28, 28), dtype=np.float32), "f0001_41 must have"),
        ("pixels", None, "KeyError"),
        ("label", np.zeros((3, 2), dtype=np.int32), "f0001_41 must have"),
        ("label", np.zeros(3), "float64: must be whole numbers"),
        ("label", None, "KeyError"),
    ],
)
def test_tff_with_wrong_contents(dataset, value, words, tmp_path):
    path = tmp_path / "x.h5"
    save_tff(path)
    with h5py.File(path, "a") as file:
        part = file["examples/f0001_41"]
        del part[dataset]
        if value is not None:
            part[dataset] = value
    refused(read_tff, path, words)


def test_tff_without_writers(tmp_path):
    path = tmp_path / "x.h5"
    for group, words in (("examples", "no pictures"), ("others", "KeyError")):
        with h5py.File(path, "w") as file:
            file.create_group(group)
        refused(read_tff, path, words)


ROWS = [(picture, name, 10 + i) for i, (picture, name) in enumerate(zip(PICTURES, "bbacabb", strict=True))]


def test_parquet(tmp_path):
    path = tmp_path / "train-00000-of-00001.parquet"
    save_parquet(path, ROWS)
    images, labels, names, owner = read_parquet(path)
    assert (images == PICTURES).all()
    assert images.dtype == np.uint8
    assert labels.tolist() == [10, 11, 12, 13, 14, 15, 16]
    assert names == ["a", "b", "c"]
    assert owner.tolist() == [1, 1, 0, 2, 0, 1, 1]


def test_parquet_that_is_damaged(tmp_path):
    path = tmp_path / "x.parquet"
    save_parquet(path, ROWS)
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:500] + b"x" * 500 + whole[1000:], b"no Parquet", b""):
        path.write_bytes(damaged)
        refused(read_parquet, path, "damaged or not a Parquet file of flwrlabs/femnist")


def pictures(first):
    """A column of pictures whose first is this file."""
    return pa.array([{"bytes": first}, *({"bytes": png(picture)} for picture in PICTURES[1:])])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image": pictures(png(PICTURES[0])[:200])}, "damaged or not"),
        ({"image": pictures(b"no PNG")}, "UnidentifiedImageError"),
        ({"image": pictures(None)}, "UnidentifiedImageError"),
        ({"image": pictures(png(PICTURES[0][:, :27]))}, r"row 0 is \(27, 28\) L: must be 28×28 grey"),
        ({"image": pictures(png(np.stack([PICTURES[0]] * 3, axis=-1)))}, "RGB: must be 28×28 grey"),
        ({"image": pa.array([b"raw"] * 7)}, "image"),
        ({"image": None}, "image"),
        ({"writer_id": None}, "writer_id"),
        ({"writer_id": pa.array([None, *"bacabb"])}, "each with a writer_id"),
        ({"character": pa.array([None] * 6 + [1])}, "and a character"),
        ({"character": pa.array([0.5] * 7)}, "float64: must be whole numbers"),
    ],
)
def test_parquet_with_wrong_contents(changes, words, tmp_path):
    path = tmp_path / "x.parquet"
    save_parquet(path, ROWS, **changes)
    refused(read_parquet, path, words)


def test_parquet_without_rows(tmp_path):
    save_parquet(tmp_path / "x.parquet", [])
    refused(read_parquet, tmp_path / "x.parquet", "must have rows")


@pytest.mark.parametrize(
    ("read", "module"), [(read_tff, "h5py"), (read_parquet, "pyarrow.parquet"), (read_parquet, "PIL")]
)
def test_a_missing_extra_is_named(read, module, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'rqm\[data\]'"):
        read(tmp_path / "x")


@pytest.mark.parametrize("read", [read_idx, read_leaf, read_tff, read_parquet, read_emnist_mat])
def test_a_file_that_is_not_there_is_not_called_damaged(read, tmp_path):
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "x.mat")


def test_emnist_mat(tmp_path):
    path = tmp_path / "emnist-byclass.mat"
    save_mat(path, train=mat(PICTURES[:5], range(5), [9, 9, 4, 4, 4]), test=mat(PICTURES[5:], [0, 1], [7, 7]))
    found = read_emnist_mat(path)
    images, labels, writers = found["train"]
    assert (images == PICTURES[:5]).all()
    assert labels.tolist() == [0, 1, 2, 3, 4]
    assert writers.tolist() == [9, 9, 4, 4, 4]
    assert (found["test"][0] == PICTURES[5:]).all()
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"no matlab", b""):
        path.write_bytes(damaged)
        refused(read_emnist_mat, path, "damaged or not EMNIST")
    right, wrong = mat(PICTURES[:5], range(5), range(5)), mat(PICTURES[:5, :27], range(5), range(5))
    for parts, words in (
        ({"train": mat(PICTURES[:5], range(5), [1, 2])}, "train must have"),
        ({"train": wrong}, "train must have"),
        ({"train": right}, "KeyError: 'test'"),
    ):
        save_mat(path, **parts)
        refused(read_emnist_mat, path, words)
