"""Files that unpack to more than memory holds are refused before they are unpacked; no more is taken than they need."""

import gzip
import io
import struct
import tracemalloc
import zipfile

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from scipy.io import savemat

from rqm.data import limits
from rqm.data.limits import SMALL, check_unpacked
from rqm.data.readers import read_emnist_mat, read_idx, read_leaf, read_npz, read_parquet, read_tff
from tests.data.files import PICTURES, idx, mat, png, save_mat, save_parquet, save_tff

MANY = SMALL // 784 + 1
"""Pictures that take just more than a small file may unpack to."""


def zeros(count=MANY):
    return np.zeros((count, 28, 28), dtype=np.uint8)


def peak(read, path):
    """The most bytes that were held while a file was read, and the error."""
    tracemalloc.start()
    try:
        read(path)
        error = None
    except ValueError as caught:
        error = str(caught)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most, error


def archive(path):
    return read_npz(path, "mine", "writers", 62)


def pack_npz(path):
    count = MANY
    rest = {"labels": np.zeros(count, np.uint8), "is_test": np.arange(count) < 1, "writers": np.zeros(count, np.uint8)}
    np.savez_compressed(path, images=zeros(), **rest)


def pack_tff(path):
    with h5py.File(path, "w") as file:
        shape = (SMALL // 4 // 784 + 1, 28, 28)
        file.create_dataset("examples/a/pixels", shape, "f4", chunks=(64, 28, 28), compression="gzip")
        file.create_dataset("examples/a/label", shape[:1], "i4")


def pack_parquet(path):
    """One picture, so many times: by a dictionary they take a few bytes."""
    image = pa.array([{"bytes": png(PICTURES[0])}] * MANY)
    columns = {"image": image, "writer_id": pa.array(["a"] * MANY), "character": pa.array([1] * MANY)}
    pa.parquet.write_table(pa.table(columns), path)


def pack_mat(path):
    part = {"images": zeros().reshape(MANY, 784), "labels": np.zeros(MANY, np.uint8), "writers": np.zeros(MANY, "u1")}
    savemat(path, {"dataset": {"train": part, "test": part}}, do_compression=True)


@pytest.mark.parametrize(
    ("name", "pack", "read"),
    [
        ("x.npz", pack_npz, archive),
        ("x.gz", lambda path: path.write_bytes(gzip.compress(idx(zeros()), 1)), read_idx),
        ("x.h5", pack_tff, read_tff),
        ("x.parquet", pack_parquet, read_parquet),
        ("x.mat", pack_mat, read_emnist_mat),
    ],
)
def test_a_small_file_that_unpacks_to_a_large_one_is_refused_before_it_is(name, pack, read, tmp_path):
    path = tmp_path / name
    pack(path)
    assert path.stat().st_size < SMALL / limits.RATIO
    most, error = peak(read, path)
    assert error is not None
    assert error.startswith(f"{path}: has {path.stat().st_size:,} bytes and unpacks to ")
    assert f"must be at most {SMALL:,}" in error
    assert most < (1.3 * SMALL if name == "x.mat" else 8 * 2**20)  # the size of packed variables nobody writes down


def test_what_is_allowed_grows_with_the_file_up_to_four_gigabytes(tmp_path, monkeypatch):
    path = tmp_path / "x"
    for held, allowed in (
        (0, SMALL),
        (SMALL // 100, SMALL),
        (2 * SMALL // 100, 2 * SMALL // 100 * 100),
        (2**30, 2**32),
    ):
        with path.open("wb") as file:
            file.truncate(held)
        check_unpacked(path, allowed)
        with pytest.raises(ValueError, match=f"must be at most {allowed:,}"):
            check_unpacked(path, allowed + 1)


def test_a_text_of_numbers_counts_for_what_it_takes_when_it_is_parsed(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    path.write_text(" " * 10_000)
    monkeypatch.setattr(limits, "SMALL", 1000)
    monkeypatch.setattr(limits, "LARGEST", 79_999)
    with pytest.raises(ValueError, match="takes about 80,000 bytes"):
        read_leaf(path)


def test_real_sets_are_allowed():
    """EMNIST ByClass, as bytes; TensorFlow Federated's training set, as floats, packed ten times smaller."""
    for count, size, packed in ((814_255, 784, 5), (671_585, 4 * 784, 10)):
        assert count * size < min(limits.LARGEST, limits.RATIO * count * size / packed)


@pytest.mark.parametrize("name", ["x", "x.gz"])
def test_reading_takes_no_more_than_the_array(name, tmp_path):
    path, data = tmp_path / name, np.random.default_rng(0).integers(0, 4, size=(30_000, 28, 28), dtype=np.uint8)
    path.write_bytes(gzip.compress(idx(data), 1) if name == "x.gz" else idx(data))
    most, error = peak(read_idx, path)
    assert error is None
    assert most < data.nbytes + 4 * 2**20


def test_no_room_is_made_for_what_only_a_header_says(tmp_path):
    path = tmp_path / "x"
    for shape in ((2**32 - 1, 2**32 - 1, 2**32 - 1), (2**32 - 1,), (60_000, 28, 28)):
        path.write_bytes(b"\0\0\x08" + bytes([len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + b"x" * 100)
        most, error = peak(read_idx, path)
        assert error is not None
        assert most < SMALL


def broken_npz(path, header, body, method=zipfile.ZIP_STORED):
    """An archive whose images have this header."""
    good = io.BytesIO()
    np.save(good, np.zeros(2, np.uint8))
    text = header.encode() + b" " * (117 - len(header)) + b"\n"
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("images.npy", b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + body)
        for name in ("labels", "is_test", "writers"):
            file.writestr(f"{name}.npy", good.getvalue())


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("{'descr': '|u1', 'fortran_order': False, 'shape': (10**12, 28, 28)}", "damaged or not a NumPy archive"),
        ("{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000, 28, 28)}", "holds 10 bytes: shape"),
        ("{'descr': '|u1', 'fortran_order': False, 'shape': (-2, -5)}", "holds 10 bytes: shape"),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (10,)}", "must be numbers or texts"),
        ("{'descr': '<U0', 'fortran_order': False, 'shape': (1000000000000,)}", "must be numbers or texts"),
        ("{'descr': '|u1', 'fortran_order': False, 'shape': (11,)}", "holds 10 bytes: shape"),
    ],
)
def test_an_archive_whose_header_and_directory_disagree_is_refused(header, words, tmp_path):
    broken_npz(tmp_path / "x.npz", header, b"x" * 10)
    most, error = peak(archive, tmp_path / "x.npz")
    assert words in error
    assert most < 2**20


def test_an_archive_that_is_packed_otherwise_is_refused(tmp_path):
    """LZMA makes room for a dictionary as large as the file says."""
    header = "{'descr': '|u1', 'fortran_order': False, 'shape': (10,)}"
    broken_npz(tmp_path / "x.npz", header, b"x" * 10, zipfile.ZIP_LZMA)
    with pytest.raises(ValueError, match="must be stored or deflated"):
        archive(tmp_path / "x.npz")


def test_an_hdf5_file_does_not_lead_to_other_files(tmp_path):
    save_tff(tmp_path / "other.h5")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["examples"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "examples")
    with pytest.raises(ValueError, match="examples is a link: must be in the file itself"):
        read_tff(tmp_path / "x.h5")
    save_tff(tmp_path / "x.h5")
    (tmp_path / "raw").write_bytes(bytes(7 * 784 * 4))
    with h5py.File(tmp_path / "x.h5", "a") as file:
        del file["examples/f0001_41/pixels"]
        raw = [(str(tmp_path / "raw"), 0, h5py.h5f.UNLIMITED)]
        file["examples/f0001_41"].create_dataset("pixels", (3, 28, 28), "f4", external=raw)
    with pytest.raises(ValueError, match="must be numbers, in the file itself"):
        read_tff(tmp_path / "x.h5")


def test_a_long_name_of_a_writer_is_refused(tmp_path):
    """An array of names takes as much room for each as for the longest."""
    save_parquet(tmp_path / "x.parquet", [(PICTURES[0], "a", 1), (PICTURES[1], "b" * 81, 1)])
    with pytest.raises(ValueError, match="a name must have at most 80 characters"):
        read_parquet(tmp_path / "x.parquet")


def element(kind, body):
    return struct.pack("<II", kind, len(body)) + body + b"\0" * (-len(body) % 8)


def test_a_mat_file_that_is_nested_ten_thousands_deep_is_refused(tmp_path):
    """SciPy's reader takes the process down with it."""
    flags = element(6, struct.pack("<II", 2, 0)) + element(5, struct.pack("<ii", 1, 1))
    start = flags + element(1, b"dataset") + element(5, struct.pack("<i", 6)) + element(1, b"train\0")
    size, outer = 0, []
    for _ in range(100_000):
        size += len(start)
        outer.append(struct.pack("<II", 14, size) + start)
        size += 8
    (tmp_path / "x.mat").write_bytes(b"MATLAB 5.0".ljust(124) + b"\0\1IM" + b"".join(reversed(outer)))
    with pytest.raises(ValueError, match="nested deeper than 8"):
        read_emnist_mat(tmp_path / "x.mat")


@pytest.mark.parametrize("packed", [False, True])
def test_a_mat_file_is_read_as_scipy_writes_it(packed, tmp_path):
    part = mat(PICTURES[:5], np.arange(5.0), [9, 9, 4, 4, 4])
    savemat(tmp_path / "x.mat", {"other": "text", "dataset": {"train": part, "test": part}}, do_compression=packed)
    images, labels, writers = read_emnist_mat(tmp_path / "x.mat")["train"]
    assert (images == PICTURES[:5]).all()
    assert labels.tolist() == [0, 1, 2, 3, 4]
    assert writers.tolist() == [9, 9, 4, 4, 4]
    save_mat(tmp_path / "x.mat", train=part | {"labels": np.full((5, 1), np.nan)}, test=part)
    with pytest.raises(ValueError, match="float64: must be whole numbers"):
        read_emnist_mat(tmp_path / "x.mat")
