"""Readers, each on a small file in the true format, on damaged ones, and on ones that would take much memory."""

import gzip
import io
import json
import struct
import sys
import tracemalloc
import zipfile

import h5py
import numpy as np
import pyarrow as pa
import pytest
from scipy.io import savemat

from rqm.data import readers
from rqm.data.readers import (
    SMALL_BYTES,
    check_unpacked,
    read_emnist_mat,
    read_idx,
    read_leaf,
    read_npz,
    read_parquet,
    read_tff,
)
from tests.data.files import (
    PICTURES,
    WRITERS,
    archive,
    idx,
    leaf,
    mat,
    png,
    save_leaf,
    save_mat,
    save_parquet,
    save_tff,
)


def refused(read, path, words):
    """The file is refused with these words, and named."""
    with pytest.raises(ValueError, match=words) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")


def check_examples(examples, images, labels, writers):
    assert (examples.images == images).all()
    assert examples.images.dtype == np.uint8
    assert examples.labels.dtype == np.int64
    assert examples.labels.tolist() == labels
    assert examples.writers.tolist() == writers


# -- NumPy archives -------------------------------------------------------------------------------


def test_npz(tmp_path):
    arrays = archive()
    np.savez(tmp_path / "a.npz", **arrays)
    is_test = arrays["is_test"]
    for examples, chosen in zip(read_npz(tmp_path / "a.npz"), (~is_test, is_test), strict=True):
        check_examples(
            examples, arrays["images"][chosen], arrays["labels"][chosen].tolist(), arrays["writers"][chosen].tolist()
        )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": np.zeros((60, 28, 28))}, "must be bytes"),
        ({"labels": np.full(60, 0.5)}, "whole numbers"),
        ({"writers": np.zeros(59)}, r"\(59,\) writers for 60 pictures"),
        ({"writers": np.zeros(60)}, "writers whole numbers or names"),
        ({"is_test": np.array(True)}, "is_test must be bool, one for each picture"),
        ({"is_test": np.ones(60, dtype=bool)}, "no pictures to train on"),
    ],
)
def test_npz_with_wrong_contents(changes, words, tmp_path):
    np.savez(tmp_path / "a.npz", **archive(**changes))
    refused(read_npz, tmp_path / "a.npz", words)


def test_npz_that_is_damaged(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, **archive())
    refused(lambda path: read_npz(path, "pseudo_writers"), path, "lacks the arrays pseudo_writers")
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:10], b"no archive at all"):
        path.write_bytes(damaged)
        refused(read_npz, path, "damaged or not a NumPy archive")


HEADER = "{{'descr': '{}', 'fortran_order': False, 'shape': {}}}"


@pytest.mark.parametrize(
    ("dtype", "shape", "method", "words"),
    [
        ("|u1", "(10**12, 28, 28)", zipfile.ZIP_STORED, "damaged or not a NumPy archive"),
        ("|u1", "(1000000000000, 28, 28)", zipfile.ZIP_STORED, "holds 10 bytes: shape"),
        ("|u1", "(-2, -5)", zipfile.ZIP_STORED, "damaged or not a NumPy archive"),
        ("|O", "(10,)", zipfile.ZIP_STORED, "holds 10 bytes: shape"),
        ("<U0", "(1000000000000,)", zipfile.ZIP_STORED, "holds 10 bytes: shape"),
        ("|u1", "(11,)", zipfile.ZIP_STORED, "holds 10 bytes: shape"),
        ("|u1", "(10,)", zipfile.ZIP_LZMA, "must be stored or deflated"),  # makes room for any dictionary
    ],
)
def test_npz_whose_header_and_directory_disagree(dtype, shape, method, words, tmp_path):
    good = io.BytesIO()
    np.save(good, np.zeros(2, np.uint8))
    header = HEADER.format(dtype, shape).encode().ljust(117) + b"\n"
    with zipfile.ZipFile(tmp_path / "x.npz", "w", method) as file:
        file.writestr("images.npy", b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + b"x" * 10)
        for name in ("labels", "is_test", "writers"):
            file.writestr(f"{name}.npy", good.getvalue())
    peak, error = peak_memory(read_npz, tmp_path / "x.npz")
    assert words in error
    assert peak < 2**20


# -- IDX files ------------------------------------------------------------------------------------


def test_idx_plain_and_gzipped(tmp_path):
    plain, packed = tmp_path / "images-idx3-ubyte", tmp_path / "labels-idx1-ubyte.gz"
    plain.write_bytes(idx(PICTURES))
    packed.write_bytes(gzip.compress(idx(np.arange(7, dtype=np.uint8))))
    assert (read_idx(plain) == PICTURES).all()
    assert read_idx(packed).tolist() == list(range(7))


def test_idx_that_is_damaged(tmp_path):
    path, whole = tmp_path / "x", idx(PICTURES)
    for damaged, words in (
        (whole[:-1], "only 5487 bytes after its header"),
        (whole + b"x", "more than 5488 bytes"),
        (whole[:9], "damaged or not an IDX file"),
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


# -- LEAF files -----------------------------------------------------------------------------------


def test_leaf(tmp_path):
    save_leaf(tmp_path / "x.json")
    check_examples(
        read_leaf(tmp_path / "x.json"), PICTURES, [0, 1, 2, 3, 3, 40, 61], ["f0002_10"] * 4 + ["f0001_41"] * 3
    )


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


# -- HDF5 files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_column", [False, True])
def test_tff(is_column, tmp_path):
    path = tmp_path / "fed_emnist_train.h5"
    save_tff(path, {name: (x, np.array(y)[:, None] if is_column else y) for name, (x, y) in WRITERS.items()})
    check_examples(
        read_tff(path), PICTURES[[4, 5, 6, 0, 1, 2, 3]], [3, 40, 61, 0, 1, 2, 3], ["f0001_41"] * 3 + ["f0002_10"] * 4
    )


def test_tff_that_is_damaged(tmp_path):
    path = tmp_path / "x.h5"
    save_tff(path)
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:100] + bytes(600) + whole[700:], b"no HDF5", b""):
        path.write_bytes(damaged)
        refused(read_tff, path, "damaged or not an HDF5 file of TensorFlow Federated")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("pixels", np.ones((3, 28, 27), dtype=np.float32), "f0001_41 must have pictures of 28×28 numbers"),
        ("pixels", np.full((3, 28, 28), 1.01, dtype=np.float32), "f0001_41 must have"),
        ("pixels", np.full((3, 28, 28), np.nan, dtype=np.float32), "f0001_41 must have"),
        ("pixels", np.ones((2, 28, 28), dtype=np.float32), "f0001_41 must have"),
        ("pixels", None, "KeyError"),
        ("label", np.zeros((3, 2), dtype=np.int32), "f0001_41 must have"),
        ("label", np.full(3, 0.5), "float64: must be whole numbers"),
        ("label", None, "KeyError"),
    ],
)
def test_tff_with_wrong_contents(name, value, words, tmp_path):
    path = tmp_path / "x.h5"
    save_tff(path)
    with h5py.File(path, "a") as file:
        group = file["examples/f0001_41"]
        del group[name]
        if value is not None:
            group[name] = value
    refused(read_tff, path, words)


def test_tff_without_writers(tmp_path):
    path = tmp_path / "x.h5"
    for group, words in (("examples", "no pictures"), ("others", "KeyError")):
        with h5py.File(path, "w") as file:
            file.create_group(group)
        refused(read_tff, path, words)


def test_an_hdf5_file_does_not_lead_to_other_files(tmp_path):
    save_tff(tmp_path / "other.h5")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["examples"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "examples")
    refused(read_tff, tmp_path / "x.h5", "examples is a link: must be in the file itself")
    save_tff(tmp_path / "x.h5")
    (tmp_path / "raw").write_bytes(bytes(7 * 784 * 4))
    with h5py.File(tmp_path / "x.h5", "a") as file:
        del file["examples/f0001_41/pixels"]
        raw = [(str(tmp_path / "raw"), 0, h5py.h5f.UNLIMITED)]
        file["examples/f0001_41"].create_dataset("pixels", (3, 28, 28), "f4", external=raw)
    refused(read_tff, tmp_path / "x.h5", "must be numbers, in the file itself")


# -- Parquet files --------------------------------------------------------------------------------

ROWS = [(picture, name, 10 + i) for i, (picture, name) in enumerate(zip(PICTURES, "bbacabb", strict=True))]


def test_parquet(tmp_path):
    path = tmp_path / "train-00000-of-00001.parquet"
    save_parquet(path, ROWS)
    check_examples(read_parquet(path), PICTURES, [10, 11, 12, 13, 14, 15, 16], list("bbacabb"))


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
        ({"image": pictures(png(PICTURES[0][:, :27]))}, r"row 0 is \(27, 28\) L: must be 28×28 gray"),
        ({"image": pictures(png(np.stack([PICTURES[0]] * 3, axis=-1)))}, "RGB: must be 28×28 gray"),
        ({"image": pa.array([b"raw"] * 7)}, "image"),
        ({"image": None}, "image"),
        ({"writer_id": None}, "writer_id"),
        ({"writer_id": pa.array([None, *"bacabb"])}, "row 0 must have a writer_id"),
        ({"writer_id": pa.array(["b" * 81, *"bacabb"])}, "a name must have at most 80 characters"),
        ({"character": pa.array([None] * 6 + [1])}, "and a character"),
        ({"character": pa.array([0.5] * 7)}, "float64: must be whole numbers"),
    ],
)
def test_parquet_with_wrong_contents(changes, words, tmp_path):
    save_parquet(tmp_path / "x.parquet", ROWS, **changes)
    refused(read_parquet, tmp_path / "x.parquet", words)


def test_parquet_without_rows(tmp_path):
    save_parquet(tmp_path / "x.parquet", [])
    refused(read_parquet, tmp_path / "x.parquet", "no pictures")


def test_values_that_a_parquet_file_repeats_take_memory_once(tmp_path):
    save_parquet(tmp_path / "x.parquet", ROWS * 9, writer_id=pa.array(["b" * 2**20] * 63))
    default = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(default)
    pa.set_memory_pool(pool)
    refused(read_parquet, tmp_path / "x.parquet", "a name must have at most 80 characters")
    pa.set_memory_pool(default)
    assert pool.max_memory() < 2**24


# -- MATLAB files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("is_packed", [False, True])
def test_emnist_mat(is_packed, tmp_path):
    path = tmp_path / "emnist-byclass.mat"
    train = mat(PICTURES[:5], np.arange(5.0), [9, 9, 4, 4, 4])
    dataset = {"train": train, "test": mat(PICTURES[5:], [0, 1], [7, 7]), "mapping": np.ones((62, 2))}
    savemat(path, {"other": "text", "dataset": dataset}, do_compression=is_packed)
    for examples, expected in zip(
        read_emnist_mat(path),
        ((PICTURES[:5], [0, 1, 2, 3, 4], [9, 9, 4, 4, 4]), (PICTURES[5:], [0, 1], [7, 7])),
        strict=True,
    ):
        check_examples(examples, *expected)
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:-1] if is_packed else whole[:200], b"no matlab", b""):
        path.write_bytes(damaged)
        refused(read_emnist_mat, path, "damaged or not EMNIST")


GOOD_PART = mat(PICTURES[:5], range(5), range(5))


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"train": mat(PICTURES[:5], range(5), [1, 2])}, r"\(2,\) writers for 5 pictures"),
        ({"train": mat(PICTURES[:5, :27], range(5), range(5))}, "cannot reshape"),
        ({"train": GOOD_PART}, "KeyError: 'test'"),
        ({"train": GOOD_PART | {"labels": np.full((5, 1), np.nan)}, "test": GOOD_PART}, "must be whole numbers"),
        ({"train": GOOD_PART | {"images": np.ones((5, 784))}, "test": GOOD_PART}, "must be bytes"),
        ({"train": GOOD_PART | {"labels": np.full((5, 1), 1j)}, "test": GOOD_PART}, "something else than matrices"),
        ({"train": GOOD_PART | {"labels": np.array([1, "a"], object)}, "test": GOOD_PART}, "damaged or not"),
        ({"train": {f"a{i}": 1 for i in range(1000)}, "test": GOOD_PART}, "more than 1000 elements"),
    ],
)
def test_emnist_mat_with_wrong_contents(parts, words, tmp_path):
    save_mat(tmp_path / "x.mat", **parts)
    refused(read_emnist_mat, tmp_path / "x.mat", words)


def element(kind, body):
    return struct.pack("<II", kind, len(body)) + body + b"\0" * (-len(body) % 8)


def dataset(matrix_class, rows, *elements):
    """A file of one matrix, with one column."""
    flags, shape = struct.pack("<II", matrix_class, 0), struct.pack("<ii", rows, 1)
    matrix = element(6, flags) + element(5, shape) + element(1, b"dataset") + b"".join(elements)
    return b"MATLAB 5.0".ljust(124) + b"\0\1IM" + element(14, matrix)


NAMES = element(5, struct.pack("<i", 6)) + element(1, b"train\0")
ONE_BYTE_NAMES = element(5, struct.pack("<i", 1)) + element(1, b"a" * 10**6)
ALLOCATING = {
    "text": (dataset(4, 2**30, struct.pack("<II", 4, 0)), "cannot reshape"),
    "cells": (dataset(1, 2**30), "damaged or not"),
    "structures": (dataset(2, 2**30, NAMES), "cannot reshape"),
    "names": (dataset(2, 1, ONE_BYTE_NAMES), "damaged or not"),
    "numbers": (dataset(6, 2**30, element(9, bytes(8))), "cannot reshape"),
    "bytes": (dataset(6, 1, struct.pack("<II", 9, 2**32 - 1)), "must be numbers, and not be truncated"),
    "another type": (dataset(6, 1, element(1000, bytes(8))), "type 1000 has 8 bytes: must be numbers"),
}


@pytest.mark.parametrize("name", ALLOCATING)
def test_a_mat_file_allocates_nothing_that_it_does_not_hold(name, tmp_path):
    content, words = ALLOCATING[name]
    (tmp_path / "x.mat").write_bytes(content)
    peak, error = peak_memory(read_emnist_mat, tmp_path / "x.mat")
    assert words in error
    assert peak < 2**24


def test_a_mat_file_that_is_nested_a_hundred_thousand_deep_is_refused(tmp_path):
    """SciPy's reader takes the process down with it."""
    level, size, outer = dataset(2, 1, NAMES)[136:], 0, []
    for _ in range(100_000):
        size += len(level)
        outer.append(struct.pack("<II", 14, size) + level)
        size += 8
    (tmp_path / "x.mat").write_bytes(dataset(2, 1)[:128] + b"".join(reversed(outer)))
    refused(read_emnist_mat, tmp_path / "x.mat", "more than 1000 elements")


# -- all formats ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "module"), [(read_tff, "h5py"), (read_parquet, "pyarrow.parquet"), (read_parquet, "PIL")]
)
def test_a_missing_extra_is_named(read, module, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'rqm\[data\]'"):
        read(tmp_path / "x")


@pytest.mark.parametrize("read", [read_npz, read_idx, read_leaf, read_tff, read_parquet, read_emnist_mat])
def test_a_file_that_is_not_there_is_not_called_damaged(read, tmp_path):
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "x.mat")


def peak_memory(read, path):
    """The most bytes that are allocated while a file is read, and the error."""
    tracemalloc.start()
    try:
        read(path)
        error = None
    except ValueError as caught:
        error = str(caught)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak, error


COUNT = SMALL_BYTES // 784 + 1
"""Pictures that take just more than a small file may unpack to."""


def pack_npz(path):
    zeros = np.zeros(COUNT, np.uint8)
    images = np.zeros((COUNT, 28, 28), np.uint8)
    np.savez_compressed(path, images=images, labels=zeros, is_test=np.arange(COUNT) < 1, writers=zeros)


def pack_idx(path):
    path.write_bytes(gzip.compress(idx(np.zeros((COUNT, 28, 28), np.uint8)), 1))


def pack_tff(path):
    with h5py.File(path, "w") as file:
        shape = (COUNT // 4 + 1, 28, 28)
        file.create_dataset("examples/a/pixels", shape, "f4", chunks=(64, 28, 28), compression="gzip")
        file.create_dataset("examples/a/label", shape[:1], "i4")


def pack_parquet(path):
    """One picture many times, which a dictionary packs to a few bytes."""
    columns = {"image": [{"bytes": png(PICTURES[0])}] * COUNT, "writer_id": ["a"] * COUNT, "character": [1] * COUNT}
    pa.parquet.write_table(pa.table(columns), path)


def pack_mat(path):
    zeros = np.zeros(COUNT, np.uint8)
    part = {"images": np.zeros((COUNT, 784), np.uint8), "labels": zeros, "writers": zeros}
    savemat(path, {"dataset": {"train": part, "test": part}}, do_compression=True)


@pytest.mark.parametrize(
    ("name", "pack", "read"),
    [
        ("x.npz", pack_npz, read_npz),
        ("x.gz", pack_idx, read_idx),
        ("x.h5", pack_tff, read_tff),
        ("x.parquet", pack_parquet, read_parquet),
        ("x.mat", pack_mat, read_emnist_mat),
    ],
)
def test_a_small_file_that_unpacks_to_a_large_one_is_refused_before_it_is(name, pack, read, tmp_path):
    path = tmp_path / name
    pack(path)
    size = path.stat().st_size
    assert size < SMALL_BYTES / readers.MAX_UNPACKED_RATIO
    peak, error = peak_memory(read, path)
    assert error is not None
    assert error.startswith(f"{path}: has {size:,} bytes and unpacks to ")
    assert f"must be at most {SMALL_BYTES:,}" in error
    assert peak < (1.3 * SMALL_BYTES if name == "x.mat" else 8 * 2**20)  # no header tells how much zlib unpacks to


@pytest.mark.parametrize(
    ("size", "allowed"),
    [
        (0, SMALL_BYTES),
        (SMALL_BYTES // 100, SMALL_BYTES),
        (2 * SMALL_BYTES // 100, 2 * SMALL_BYTES // 100 * 100),
        (2**30, 2**32),
    ],
)
def test_what_is_allowed_grows_with_the_file_up_to_four_gigabytes(size, allowed, tmp_path):
    with (tmp_path / "x").open("wb") as file:
        file.truncate(size)
    check_unpacked(tmp_path / "x", allowed)
    with pytest.raises(ValueError, match=f"must be at most {allowed:,}"):
        check_unpacked(tmp_path / "x", allowed + 1)


def test_a_json_file_counts_for_what_it_takes_when_it_is_parsed(tmp_path, monkeypatch):
    (tmp_path / "x.json").write_text(" " * 10_000)
    monkeypatch.setattr(readers, "SMALL_BYTES", 1000)
    monkeypatch.setattr(readers, "MAX_UNPACKED_BYTES", 79_999)
    refused(read_leaf, tmp_path / "x.json", "unpacks to 80,000")


@pytest.mark.parametrize(("count", "size", "packed"), [(814_255, 784, 5), (671_585, 4 * 784, 10)])
def test_real_sets_are_allowed(count, size, packed):
    """EMNIST ByClass, as bytes; TensorFlow Federated's training set, as floats, packed ten times smaller."""
    assert count * size < min(readers.MAX_UNPACKED_BYTES, readers.MAX_UNPACKED_RATIO * count * size / packed)


@pytest.mark.parametrize("name", ["x", "x.gz"])
def test_reading_takes_no_more_than_the_array(name, tmp_path):
    path, data = tmp_path / name, np.random.default_rng(0).integers(0, 4, size=(30_000, 28, 28), dtype=np.uint8)
    path.write_bytes(gzip.compress(idx(data), 1) if name == "x.gz" else idx(data))
    peak, error = peak_memory(read_idx, path)
    assert error is None
    assert peak < data.nbytes + 4 * 2**20


@pytest.mark.parametrize("shape", [(2**32 - 1, 2**32 - 1, 2**32 - 1), (2**32 - 1,), (60_000, 28, 28)])
def test_no_memory_is_allocated_for_what_only_a_header_says(shape, tmp_path):
    header = b"\0\0\x08" + bytes([len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
    (tmp_path / "x").write_bytes(header + b"x" * 100)
    peak, error = peak_memory(read_idx, tmp_path / "x")
    assert error is not None
    assert peak < SMALL_BYTES


@pytest.mark.parametrize("read", [read_idx, read_leaf, read_tff, read_npz, read_emnist_mat])
def test_a_file_without_an_end_is_not_read(read, tmp_path):
    (tmp_path / "x").symlink_to("/dev/zero")
    with pytest.raises(readers.DataFileError, match="x: must be a file, and no folder, device or pipe"):
        read(tmp_path / "x")
