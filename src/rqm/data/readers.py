"""Readers of the file formats in which handwriting data sets are distributed.

Every reader returns bytes with ink 255 on background 0, upright, whatever the file's own convention.
A file that is damaged, or that would unpack to much more than its size, is refused with a
`DataFileError`, and memory for it is not allocated.
"""

import gzip
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.lib.format as npy
import numpy.typing as npt

from rqm._util.checks import shown
from rqm.config.model_sizes import IMAGE_SIDE

MAX_UNPACKED_BYTES = 2**32
"""No file may unpack to more. The largest known, of TensorFlow Federated, takes 2.1 GB as floats."""
MAX_UNPACKED_RATIO = 100
"""A file may unpack to at most this multiple of its size. Handwriting is packed 5 to 10 times smaller."""
SMALL_BYTES = 2**26
"""What any file may unpack to, however small it is."""

Array = npt.NDArray[Any]
Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


class Examples(NamedTuple):
    """Pictures (n, 28, 28), their labels, and the name or number of each picture's writer."""

    images: Images
    labels: Labels
    writers: Array

    def select(self, mask: Array) -> "Examples":
        """The examples where the mask is true."""
        return Examples(self.images[mask], self.labels[mask], self.writers[mask])


class DataFileError(ValueError):
    """A data file that cannot be used. The message begins with its path."""


@contextmanager
def _open(path: Path, format_name: str) -> Iterator[BinaryIO]:
    """Open a file, and turn whatever its damage raises into a `DataFileError`."""
    if path.exists() and not path.is_file():
        raise DataFileError(f"{path}: must be a file, and no folder, device or pipe")
    with path.open("rb") as file:
        try:
            yield file
        except DataFileError:
            raise
        except Exception as error:
            reason = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
            raise DataFileError(f"{path}: is damaged or not {format_name} ({reason})") from None


# -- checks ---------------------------------------------------------------------------------------


def check_unpacked(path: Path, size: int) -> None:
    """Raise a `DataFileError` for a file whose contents take too many bytes in memory.

    Args:
        path: The file.
        size: Bytes that its contents take.
    """
    file_size = path.stat().st_size
    allowed = min(MAX_UNPACKED_BYTES, max(SMALL_BYTES, MAX_UNPACKED_RATIO * file_size))
    if size > allowed:
        raise DataFileError(f"{path}: has {file_size:,} bytes and unpacks to {size:,}: must be at most {allowed:,}")


def check_labels(path: Path, labels: Array, classes: int) -> None:
    """Raise a `DataFileError` for a label that is not one of the classes.

    Args:
        path: The file.
        labels: Its labels.
        classes: Number of classes; labels are 0, 1, … below it.
    """
    outside = labels[(labels < 0) | (labels >= classes)]
    if len(outside):
        raise DataFileError(f"{path}: holds the label {outside[0]}: must lie in 0..{classes - 1}")


def _integers(values: Array) -> Labels:
    """Whole numbers of 64 bits, from integers or from floats without fractions, as of MATLAB."""
    is_whole = values.dtype.kind in "iuf" and (np.abs(values) < 2**53).all() and (values == np.rint(values)).all()
    if not is_whole:
        raise ValueError(f"its labels or writers are of type {values.dtype}: must be whole numbers")
    return values.astype(np.int64)


def _examples(images: Array, labels: Array, writers: Array) -> Examples:
    """Examples of arrays that fit together."""
    if images.dtype != np.uint8 or images.ndim != 3 or not len(images):
        raise ValueError(f"its pictures are {images.dtype} of shape {images.shape}: must be bytes (n, rows, columns)")
    if not labels.shape == writers.shape == images.shape[:1]:
        raise ValueError(f"it has {labels.shape} labels and {writers.shape} writers for {len(images)} pictures")
    return Examples(images, _integers(labels), writers)


# -- NumPy archives -------------------------------------------------------------------------------


def read_npz(path: Path, id_array: str = "writers") -> tuple[Examples, Examples]:
    """Read a NumPy archive of arrays `images` (uint8, n×28×28), `labels`, `is_test` and the clients' ids.

    Args:
        path: The file.
        id_array: Name of the array of ids.

    Returns:
        Examples to train on, and of the test set.
    """
    names = ("images", "labels", "is_test", id_array)
    with _open(path, "a NumPy archive") as file, zipfile.ZipFile(file) as archive:
        missing = [name for name in names if f"{name}.npy" not in archive.namelist()]
        if missing:
            raise DataFileError(f"{path}: lacks the arrays {', '.join(missing)}")
        entries = [archive.getinfo(f"{name}.npy") for name in names]
        check_unpacked(path, sum(entry.file_size for entry in entries))
        images, labels, is_test, ids = (_read_npy(archive, entry) for entry in entries)
        examples = _examples(images, labels, ids)
        if is_test.shape != labels.shape or is_test.dtype != np.bool_ or ids.dtype.kind not in "iuUS":
            raise ValueError(f"is_test must be bool, one for each picture, and {id_array} whole numbers or names")
        if is_test.all():
            raise ValueError("it holds no pictures to train on: is_test must be false for some")
    return examples.select(~is_test), examples.select(is_test)


def _read_npy(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Array:
    """An array of an archive, if its header agrees with the archive's directory on its size."""
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{entry.filename} is packed by method {entry.compress_type}: must be stored or deflated")
    with archive.open(entry) as file:
        is_version_1 = npy.read_magic(file) == (1, 0)
        shape, _, dtype = (npy.read_array_header_1_0 if is_version_1 else npy.read_array_header_2_0)(file)
        size = prod(shape) * dtype.itemsize
        available = entry.file_size - file.tell()
        if size != available:
            raise ValueError(f"{entry.filename} holds {available} bytes: shape {shape} of {dtype} takes {size}")
        file.seek(0)
        return npy.read_array(file, allow_pickle=False)


# -- IDX files ------------------------------------------------------------------------------------


def read_idx(path: Path) -> Images:
    """Read an array of bytes in the IDX format of MNIST and EMNIST, plain or gzipped.

    EMNIST's pictures are transposed there, and the labels of its set `letters` begin with 1.
    """
    is_gzipped = path.suffix == ".gz"
    with _open(path, "a gzip file" if is_gzipped else "an IDX file") as file:
        stream: Any = gzip.GzipFile(fileobj=file, mode="rb") if is_gzipped else file
        magic = stream.read(4)
        if len(magic) < 4 or magic[:3] != b"\0\0\x08" or not 1 <= magic[3] <= 3:
            raise ValueError("it must be an IDX file of unsigned bytes in one to three dimensions")
        shape = struct.unpack(f">{magic[3]}I", stream.read(4 * magic[3]))
        size = prod(shape)
        filled = 0
        check_unpacked(path, size)
        array = np.empty(size, dtype=np.uint8)
        while chunk := stream.read(min(2**20, size - filled)):
            array[filled : filled + len(chunk)] = np.frombuffer(chunk, dtype=np.uint8)
            filled += len(chunk)
        if filled < size or stream.read(1):
            amount = "only" if filled < size else "more than"
            raise ValueError(f"it holds {amount} {filled} bytes after its header, which says {size}")
        return array.reshape(shape)


# -- files with the examples of each writer -------------------------------------------------------


def read_leaf(path: Path) -> Examples:
    """Read a LEAF file of FEMNIST, whose pictures are 784 floats each, from 0 (ink) to 1 (background)."""
    with _open(path, "a LEAF file") as file:
        check_unpacked(path, 8 * path.stat().st_size)  # about what a JSON file of numbers takes when it is parsed
        content = json.load(file)
        parts = []
        for user in dict.fromkeys(content["users"]):
            data = content["user_data"][user]
            parts.append(
                _writer_examples(user, np.asarray(data["x"]), np.asarray(data["y"]), (IMAGE_SIDE * IMAGE_SIDE,))
            )
        return concatenate(parts)


def read_tff(path: Path) -> Examples:
    """Read an HDF5 file of TensorFlow Federated's EMNIST, such as `fed_emnist_train.h5`; FedML distributes the same.

    Its group `examples` holds a group for each writer, with `pixels` (n×28×28 floats from 0, ink, to
    1, background) and `label` (n, or n×1). Writers are in the order of their names.
    """
    try:
        import h5py  # noqa: PLC0415 (an extra)
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"{path}: is read with h5py: pip install 'rqm[data]'") from None

    def member(group: Any, name: str) -> Any:
        if not isinstance(group.get(name, getlink=True), h5py.HardLink | None):
            raise ValueError(f"{name} is a link: must be in the file itself")
        array = group[name]
        if isinstance(array, h5py.Dataset) and (array.dtype.kind not in "fiu" or array.is_virtual or array.external):
            raise ValueError(f"{name} is of type {array.dtype}: must be numbers, in the file itself")
        return array

    with _open(path, "an HDF5 file of TensorFlow Federated"), h5py.File(path) as file:
        examples = member(file, "examples")
        size = 0
        parts = []
        for name in sorted(examples):
            group = member(examples, name)
            pixels = member(group, "pixels")
            labels = member(group, "label")
            for array in (pixels, labels):
                size += array.dtype.itemsize * max(array.size, prod(array.chunks or ()))
            check_unpacked(path, size)
            parts.append(_writer_examples(name, pixels, labels[()].reshape(-1), (IMAGE_SIDE, IMAGE_SIDE)))
        return concatenate(parts)


def _writer_examples(name: str, pixels: Any, labels: Array, shape: tuple[int, ...]) -> Examples:
    """The examples of a writer, from pictures (an array, or a data set of a file) with ink 0 on background 1."""
    sides = "×".join(map(str, shape))
    error = ValueError(f"writer {_short(name)} must have pictures of {sides} numbers from 0 to 1, each with a label")
    if pixels.shape != (labels.size, *shape) or labels.ndim != 1:
        raise error
    images = np.empty((labels.size, IMAGE_SIDE, IMAGE_SIDE), dtype=np.uint8)
    size = 2**12  # pictures that are converted at a time
    for start in range(0, labels.size, size):
        chunk = pixels[start : start + size]
        if not ((chunk >= 0) & (chunk <= 1)).all():
            raise error
        images[start : start + size] = np.rint(255 * (1 - chunk)).reshape(-1, IMAGE_SIDE, IMAGE_SIDE)
    return Examples(images, _integers(labels), np.full(labels.size, name))


def _short(name: str) -> str:
    """A writer's name, which must be short: in an array each name takes as much memory as the longest."""
    if len(name) > 80:
        raise ValueError(f"writer {shown(name)}: a name must have at most 80 characters")
    return name


def concatenate(parts: Iterable[Examples]) -> Examples:
    """Concatenate examples, as of one writer after another.

    Raises:
        ValueError: If there are none.
    """
    nonempty = [examples for examples in parts if len(examples.labels)]
    if not nonempty:
        raise ValueError("it holds no pictures")
    return Examples(*(np.concatenate(arrays) for arrays in zip(*nonempty, strict=True)))


# -- Parquet files --------------------------------------------------------------------------------


def read_parquet(path: Path) -> Examples:
    """Read a Parquet file of Hugging Face's `flwrlabs/femnist`.

    Its rows have an `image` (PNG, 28×28 gray, black on white), a `writer_id` and a `character`
    (0..61). Pictures are in the order of the rows.
    """
    try:
        from PIL import Image  # noqa: PLC0415 (an extra)
        from pyarrow.parquet import ParquetFile  # noqa: PLC0415 (an extra)
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"{path}: is read with pyarrow and Pillow: pip install 'rqm[data]'") from None
    names = ["image.bytes", "writer_id", "character"]
    with (
        _open(path, "a Parquet file of flwrlabs/femnist"),
        ParquetFile(path, read_dictionary=names[:2]) as file,  # values that are repeated take memory once
    ):
        metadata = file.metadata
        size = sum(abs(metadata.row_group(index).total_byte_size) for index in range(metadata.num_row_groups))
        check_unpacked(path, max(size, IMAGE_SIDE * IMAGE_SIDE * metadata.num_rows))
        rows: list[tuple[Images, int, str]] = []
        for batch in file.iter_batches(batch_size=1024, columns=names):
            for values in zip(batch["image"], batch["writer_id"], batch["character"], strict=True):
                image, writer, label = (value.as_py() for value in values)
                if writer is None or label is None:
                    raise ValueError(f"row {len(rows)} must have a writer_id and a character")
                rows.append((_decode_png(Image, image["bytes"], len(rows)), label, _short(str(writer))))
        if not rows:
            raise ValueError("it holds no pictures")
        images, labels, writers = zip(*rows, strict=True)
        return Examples(np.stack(images), _integers(np.array(labels)), np.array(writers))


def _decode_png(pillow: Any, content: bytes, row: int) -> Images:
    """A picture of 28×28 gray pixels, black on white. Larger ones are refused before they are unpacked."""
    with pillow.open(io.BytesIO(content), formats=["PNG"]) as picture:
        if picture.size != (IMAGE_SIDE, IMAGE_SIDE) or picture.mode not in ("L", "1"):
            raise ValueError(f"the picture in row {row} is {picture.size} {picture.mode}: must be 28×28 gray")
        return 255 - np.asarray(picture.convert("L"))


# -- MATLAB files ---------------------------------------------------------------------------------

MAT_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8", 16: "u1"}
"""Types of elements that hold numbers, or text."""
MAT_MATRIX, MAT_COMPRESSED = 14, 15
"""Types of elements that hold others."""


def read_emnist_mat(path: Path) -> tuple[Examples, Examples]:
    """Read EMNIST's official `.mat` file (version 5), whose pictures are 784 bytes each, column by column.

    `scipy.io.loadmat` is not used. On damaged files it crashes the process, recurses without limit,
    and allocates arrays of whatever shape a header says.

    Returns:
        Examples to train on, and of the test set.
    """
    with _open(path, "EMNIST's .mat file") as file:
        header = file.read(128)
        if header[124:] not in (b"\0\1IM", b"\1\0MI"):
            raise ValueError("it has no header of a .mat file of version 5")
        byte_order = "<" if header[126:] == b"IM" else ">"
        elements = _mat_elements(_unpack_mat(path, file, byte_order), byte_order)
        variables: dict[str, Any] = {}
        while "dataset" not in variables:
            name, variables[name] = _read_matrix(elements)
        dataset = variables["dataset"]
        return _mat_examples(dataset["train"]), _mat_examples(dataset["test"])


def _mat_examples(record: dict[str, Array]) -> Examples:
    """The examples of the structure `train` or `test`."""
    images = np.ascontiguousarray(record["images"].T.reshape(IMAGE_SIDE, IMAGE_SIDE, -1).transpose(2, 1, 0))
    return _examples(images, record["labels"].reshape(-1), _integers(record["writers"].reshape(-1)))


def _unpack_mat(path: Path, file: BinaryIO, byte_order: str) -> memoryview:
    """The variables of a file, one after another, unpacked."""
    unpacked = io.BytesIO()
    while tag := file.read(8):
        kind, size = struct.unpack(f"{byte_order}II", tag)
        decompressor = zlib.decompressobj() if kind == MAT_COMPRESSED else None
        unpacked.write(b"" if decompressor else tag)
        while size and (chunk := file.read(min(4096, size))):  # zlib unpacks to at most 1,032 times as much
            unpacked.write(decompressor.decompress(chunk) if decompressor else chunk)
            check_unpacked(path, unpacked.tell())
            size -= len(chunk)
        if size or (decompressor and not decompressor.eof):
            raise ValueError("a variable of it is truncated")
    return unpacked.getbuffer()


def _mat_elements(data: memoryview, byte_order: str) -> Iterator[Array | None]:
    """All elements: None for a matrix, whose elements follow, and arrays for the others."""
    position = 0
    for _ in range(1000):  # EMNIST's file has fewer than 100; this bounds how deep matrices are nested, too
        kind, size = struct.unpack_from(f"{byte_order}II", data, position)
        position += 8
        if kind == MAT_MATRIX:
            yield None
            continue
        if kind >> 16:  # type, size and values take eight bytes together
            size = kind >> 16
            kind &= 0xFFFF
            position -= 4
        if kind not in MAT_TYPES or size > len(data) - position:
            raise ValueError(f"an element of type {kind} has {size} bytes: must be numbers, and not be truncated")
        yield np.frombuffer(data[position : position + size], dtype=byte_order + MAT_TYPES[kind])
        position += size + -(position + size) % 8
    raise ValueError("it holds more than 1000 elements: EMNIST's file has fewer than 100")


def _read_matrix(elements: Iterator[Any]) -> tuple[str, Any]:
    """The name and the value of a matrix: an array, or a dictionary for a structure of one record."""
    tag, flags, shape, name = (next(elements) for _ in range(4))
    if tag is not None:
        raise ValueError("it holds something else than matrices of real numbers, and structures")
    value = next(elements)
    if flags[0] & 0xFF == 2 and shape.tolist() == [1, 1]:  # a structure
        names = next(elements).reshape(-1, value[0])
        value = {field.tobytes().rstrip(b"\0").decode("latin-1"): _read_matrix(elements)[1] for field in names}
    else:
        value = value.reshape(shape, order="F")
    return name.tobytes().decode("latin-1"), value
