"""Data files in all formats, damaged."""

import gzip
import io
import json
import struct
import zipfile
import zlib
from abc import abstractmethod
from collections.abc import Callable
from random import Random
from typing import Any, ClassVar

import numpy as np
from scipy.io import savemat

from rqm.data import load
from rqm.data.readers import read_emnist_mat, read_idx, read_leaf, read_parquet, read_tff
from tools.fuzz.mutate import changed, damaged, text_of
from tools.fuzz.target import Target

COUNT = 5
PICTURES = np.random.default_rng(0).integers(0, 256, size=(COUNT, 28, 28), dtype=np.uint8)
WORDS = (*range(19), 28, 784, 1 << 16, 0x0806, 0x00040001, 2**30, 2**31 - 1, 2**31, 2**32 - 1)
"""Numbers that mean something in the headers of a .mat file: types, classes, sizes."""


class File(Target):
    """A file that `read` reads."""

    file: ClassVar[str]
    read: ClassVar[Callable[..., Any]]

    @abstractmethod
    def valid(self) -> bytes:
        """The bytes of a valid file."""

    def prepare(self) -> None:
        """Check that the valid file is read."""
        self.path = self.folder / self.file
        self.bytes = self.valid()
        self.path.write_bytes(self.bytes)
        type(self).read(self.path)

    def mutant(self, rng: Random) -> bytes:
        """The bytes of a damaged file."""
        return damaged(self.bytes, rng, self.bytes)

    def attack(self, rng: Random) -> None:
        """Read a damaged file."""
        self.path.write_bytes(self.mutant(rng))
        type(self).read(self.path)


class Npz(File):
    """A NumPy archive, which `load` finds by name."""

    name, file = "data, npz", "mnist-writers.npz"

    @staticmethod
    def read(path: Any) -> Any:
        """Load the data set of the folder."""
        return load("mnist-writers", path.parent)

    def arrays(self) -> dict[str, Any]:
        """The arrays of a valid archive."""
        return {
            "images": PICTURES,
            "labels": np.arange(COUNT) % 10,
            "writers": np.arange(COUNT) // 2,
            "is_test": np.arange(COUNT) == 0,
        }

    def valid(self) -> bytes:
        """A compressed archive."""
        file = io.BytesIO()
        np.savez_compressed(file, **self.arrays())
        return file.getvalue()

    def mutant(self, rng: Random) -> bytes:
        """Damage the archive; or an array inside, with correct checksums."""
        if rng.random() < 0.4:
            return super().mutant(rng)
        file = io.BytesIO()
        target = rng.choice(list(self.arrays()))
        with zipfile.ZipFile(file, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
            for name, array in self.arrays().items():
                if name == target and rng.random() < 0.5:
                    array = array.astype(rng.choice(("u1", "i8", "f8", "U3", "S2", "?", "c16", "M8[s]")))  # noqa: PLW2901
                entry = io.BytesIO()
                np.save(entry, array)
                data = entry.getvalue()
                archive.writestr(f"{name}.npy", damaged(data[:200], rng) + data[200:] if name == target else data)
        return file.getvalue()


class Idx(File):
    """An IDX file."""

    name, file, read = "data, idx", "images", staticmethod(read_idx)

    def valid(self) -> bytes:
        """A file of pictures."""
        return b"\0\0\x08\3" + struct.pack(">3I", *PICTURES.shape) + PICTURES.tobytes()


class Gzipped(Idx):
    """A gzipped IDX file."""

    name, file = "data, idx.gz", "images.gz"

    def valid(self) -> bytes:
        """A file of pictures."""
        return gzip.compress(super().valid(), mtime=0)

    def mutant(self, rng: Random) -> bytes:
        """Damage the file, or what is packed."""
        if rng.random() < 0.4:
            return super().mutant(rng)
        return gzip.compress(damaged(Idx.valid(self), rng), 1, mtime=0)


class Leaf(File):
    """A LEAF file."""

    name, file, read = "data, LEAF", "x.json", staticmethod(read_leaf)
    part = 0.5

    def content(self) -> dict[str, Any]:
        """Two writers."""
        writer = {"x": np.round(PICTURES[:2].reshape(2, -1) / 255, 1).tolist(), "y": [1, 2]}
        return {"users": ["a", "b"], "num_samples": [2, 2], "user_data": {"a": writer, "b": writer}}

    def valid(self) -> bytes:
        """A JSON file."""
        self.values = self.content()
        return json.dumps(self.values).encode()

    def mutant(self, rng: Random) -> bytes:
        """Change values, or damage the text."""
        return text_of(changed(self.values, rng)) if rng.random() < 0.6 else super().mutant(rng)


class Tff(File):
    """An HDF5 file of TensorFlow Federated."""

    name, file, read = "data, HDF5", "x.h5", staticmethod(read_tff)
    part = 0.5

    def valid(self) -> bytes:
        """A file of two writers."""
        import h5py  # noqa: PLC0415

        content = io.BytesIO()
        with h5py.File(content, "w") as file:
            for name in "ab":
                file.create_dataset(f"examples/{name}/pixels", data=PICTURES[:1] / np.float32(255), compression="gzip")
                file[f"examples/{name}/label"] = np.array([1], dtype=np.int32)
        return content.getvalue()


class Parquet(File):
    """A Parquet file of pictures."""

    name, file, read = "data, Parquet", "x.parquet", staticmethod(read_parquet)
    part = 0.5

    def valid(self) -> bytes:
        """A file of two rows."""
        import pyarrow as pa  # noqa: PLC0415
        from PIL import Image  # noqa: PLC0415
        from pyarrow import parquet  # noqa: PLC0415

        images = []
        for picture in PICTURES[:2]:
            png = io.BytesIO()
            Image.fromarray(picture).save(png, "PNG")
            images.append({"bytes": png.getvalue(), "path": "x"})
        content = io.BytesIO()
        parquet.write_table(pa.table({"image": images, "writer_id": ["a", "b"], "character": [1, 2]}), content)
        return content.getvalue()


class Matlab(File):
    """EMNIST's .mat file."""

    name, file, read = "data, .mat", "x.mat", staticmethod(read_emnist_mat)

    def valid(self) -> bytes:
        """A file of two parts."""
        numbers = np.arange(COUNT)[:, None]
        part = {"images": PICTURES.reshape(COUNT, -1), "labels": numbers, "writers": numbers.astype(float)}
        savemat(self.path, {"dataset": {"train": part, "test": part}})
        return self.path.read_bytes()

    def mutant(self, rng: Random) -> bytes:
        """Damage headers of arrays rather than pictures: any bytes, or numbers of four bytes."""
        data = bytearray(self.bytes)
        start = rng.choice((0, 0, 0, 1500, len(data) // 2))
        if rng.random() < 0.5:
            data[start : start + 600] = damaged(bytes(data[start : start + 600]), rng)
        else:
            for _ in range(rng.choice((1, 1, 2, 3))):
                struct.pack_into("<I", data, 128 + 4 * rng.randrange(160), rng.choice(WORDS))
        return bytes(data)


class PackedMatlab(Matlab):
    """EMNIST's .mat file, packed."""

    name, file = "data, packed .mat", "y.mat"

    def mutant(self, rng: Random) -> bytes:
        """Damage what is packed, or the packed bytes."""
        data = super().mutant(rng)
        packed = zlib.compress(data[128:])
        packed = damaged(packed, rng) if rng.random() < 0.2 else packed
        return data[:128] + struct.pack("<II", 15, len(packed)) + packed


TARGETS = (Npz, Idx, Gzipped, Leaf, Tff, Parquet, Matlab, PackedMatlab)
