"""Files of data, in all formats."""

import gzip
import io
import json
import struct
import zipfile
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


class File(Target):
    """A file that is read by ``read``; ``good`` makes its bytes."""

    file: ClassVar[str]
    read: ClassVar[Callable[..., Any]]

    @abstractmethod
    def good(self) -> bytes:
        """A good file."""

    def prepare(self) -> None:
        """Write it, and see that it is read."""
        self.path = self.folder / self.file
        self.bytes = self.good()
        self.path.write_bytes(self.bytes)
        type(self).read(self.path)

    def mutant(self, rng: Random) -> bytes:
        """A bad one."""
        return damaged(self.bytes, rng, self.bytes)

    def attack(self, rng: Random) -> None:
        """Read a bad one."""
        self.path.write_bytes(self.mutant(rng))
        type(self).read(self.path)


class Npz(File):
    """A NumPy archive, by name as ``load`` finds it."""

    name, file = "data, npz", "mnist-writers.npz"

    @staticmethod
    def read(path: Any) -> Any:
        """As a user does."""
        return load("mnist-writers", path.parent)

    def arrays(self) -> dict[str, Any]:
        """What it holds."""
        return {
            "images": PICTURES,
            "labels": np.arange(COUNT) % 10,
            "writers": np.arange(COUNT) // 2,
            "is_test": np.arange(COUNT) == 0,
        }

    def good(self) -> bytes:
        """Packed."""
        out = io.BytesIO()
        np.savez_compressed(out, **self.arrays())
        return out.getvalue()

    def mutant(self, rng: Random) -> bytes:
        """Bytes of the archive; or of an array inside, with checksums that are right."""
        if rng.random() < 0.4:
            return super().mutant(rng)
        out = io.BytesIO()
        hit = rng.choice(list(self.arrays()))
        with zipfile.ZipFile(out, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as file:
            for name, array in self.arrays().items():
                one = io.BytesIO()
                np.save(
                    one,
                    array.astype(rng.choice(("u1", "i8", "f8", "U3", "S2", "?", "c16", "M8[s]")))
                    if name == hit and rng.random() < 0.5
                    else array,
                )
                data = one.getvalue()
                file.writestr(f"{name}.npy", damaged(data[:200], rng) + data[200:] if name == hit else data)
        return out.getvalue()


class Idx(File):
    """An IDX file."""

    name, file, read = "data, idx", "images", staticmethod(read_idx)

    def good(self) -> bytes:
        """Pictures."""
        return b"\0\0\x08\3" + struct.pack(">3I", *PICTURES.shape) + PICTURES.tobytes()


class Gzipped(Idx):
    """The same, gzipped."""

    name, file = "data, idx.gz", "images.gz"

    def good(self) -> bytes:
        """Packed."""
        return gzip.compress(super().good(), mtime=0)

    def mutant(self, rng: Random) -> bytes:
        """Bytes of the file; or of what is packed."""
        if rng.random() < 0.4:
            return super().mutant(rng)
        return gzip.compress(damaged(Idx.good(self), rng), 1, mtime=0)


class Leaf(File):
    """A LEAF file."""

    name, file, read = "data, LEAF", "x.json", staticmethod(read_leaf)
    part = 0.5

    def content(self) -> dict[str, Any]:
        """Two writers."""
        part = {"x": np.round(PICTURES[:2].reshape(2, -1) / 255, 1).tolist(), "y": [1, 2]}
        return {"users": ["a", "b"], "num_samples": [2, 2], "user_data": {"a": part, "b": part}}

    def good(self) -> bytes:
        """As JSON."""
        self.values = self.content()
        return json.dumps(self.values).encode()

    def mutant(self, rng: Random) -> bytes:
        """Values, or bytes."""
        return text_of(changed(self.values, rng)) if rng.random() < 0.6 else super().mutant(rng)


class Tff(File):
    """An HDF5 file of TensorFlow Federated."""

    name, file, read = "data, HDF5", "x.h5", staticmethod(read_tff)
    part = 0.5

    def good(self) -> bytes:
        """Two writers."""
        import h5py  # noqa: PLC0415

        out = io.BytesIO()
        with h5py.File(out, "w") as file:
            for name in "ab":
                file.create_dataset(f"examples/{name}/pixels", data=PICTURES[:1] / np.float32(255), compression="gzip")
                file[f"examples/{name}/label"] = np.array([1], dtype=np.int32)
        return out.getvalue()


class Parquet(File):
    """A Parquet file of pictures."""

    name, file, read = "data, Parquet", "x.parquet", staticmethod(read_parquet)
    part = 0.5

    def good(self) -> bytes:
        """A few rows."""
        import pyarrow as pa  # noqa: PLC0415
        from PIL import Image  # noqa: PLC0415
        from pyarrow import parquet  # noqa: PLC0415

        images = []
        for picture in PICTURES[:2]:
            one = io.BytesIO()
            Image.fromarray(picture).save(one, "PNG")
            images.append({"bytes": one.getvalue(), "path": "x"})
        columns = {"image": images, "writer_id": ["a", "b"], "character": [1, 2]}
        out = io.BytesIO()
        parquet.write_table(pa.table(columns), out)
        return out.getvalue()


class Matlab(File):
    """EMNIST's .mat file."""

    name, file, read = "data, .mat", "x.mat", staticmethod(read_emnist_mat)
    packed: ClassVar[bool] = False

    def good(self) -> bytes:
        """Two parts."""
        numbers = np.arange(COUNT)[:, None]
        part = {"images": PICTURES.reshape(COUNT, -1), "labels": numbers, "writers": numbers.astype(float)}
        savemat(self.path, {"dataset": {"train": part, "test": part}}, do_compression=self.packed)
        return self.path.read_bytes()

    def mutant(self, rng: Random) -> bytes:
        """Mostly in the headers of arrays, not in pictures."""
        start = rng.choice((0, 0, 0, 1500, len(self.bytes) // 2))
        return self.bytes[:start] + damaged(self.bytes[start : start + 600], rng) + self.bytes[start + 600 :]


class PackedMatlab(Matlab):
    """The same, packed."""

    name, file = "data, packed .mat", "y.mat"
    packed = True


TARGETS = (Npz, Idx, Gzipped, Leaf, Tff, Parquet, Matlab, PackedMatlab)
