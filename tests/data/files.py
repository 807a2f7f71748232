"""Small files in the true formats, from writers' pictures with ink 255 on background 0."""

import io
import json
import struct

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
from PIL import Image
from scipy.io import savemat

PICTURES = np.random.default_rng(0).integers(0, 256, size=(7, 28, 28), dtype=np.uint8)
WRITERS = {"f0002_10": (PICTURES[:4], [0, 1, 2, 3]), "f0001_41": (PICTURES[4:], [3, 40, 61])}
"""Each writer's pictures and labels, not in the order of the names."""


def archive(**changes):
    """Arrays of 60 pictures by ten writers, the last 19 of them to test."""
    return {
        "images": np.random.default_rng(0).integers(0, 256, size=(60, 28, 28), dtype=np.uint8),
        "labels": np.arange(60) % 10,
        "writers": np.arange(60) // 6,
        "is_test": np.arange(60) > 40,
        **changes,
    }


def idx(array):
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def leaf(writers=WRITERS, **changes):
    data = {
        name: {"x": (1 - pictures.reshape(len(pictures), -1) / 255).tolist(), "y": list(labels)}
        for name, (pictures, labels) in writers.items()
    }
    return {
        "users": list(data),
        "num_samples": [len(part["y"]) for part in data.values()],
        "user_data": data,
        **changes,
    }


def save_leaf(path, writers=WRITERS):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(leaf(writers)))


def save_tff(path, writers=WRITERS):
    with h5py.File(path, "w") as file:
        for name, (pictures, labels) in writers.items():
            file[f"examples/{name}/pixels"] = (1 - pictures / 255).astype(np.float32)
            file[f"examples/{name}/label"] = np.array(labels, dtype=np.int32)


def png(picture):
    file = io.BytesIO()
    Image.fromarray(255 - picture).save(file, "PNG")
    return file.getvalue()


def save_parquet(path, rows, **changes):
    """Rows are (picture, writer, label)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures, writers, labels = zip(*rows, strict=True) if rows else ((), (), ())
    columns = {
        "image": pa.array(
            [{"bytes": png(picture), "path": "x.png"} for picture in pictures],
            pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
        ),
        "writer_id": pa.array(writers, pa.string()),
        "hsf_id": pa.array([0] * len(rows), pa.int64()),
        "character": pa.array(labels, pa.int64()),
        **changes,
    }
    pa.parquet.write_table(pa.table({name: column for name, column in columns.items() if column is not None}), path)


def mat(pictures, labels, writers):
    columns = pictures.transpose(0, 2, 1).reshape(len(pictures), -1)
    return {"images": columns, "labels": np.array(labels)[:, None], "writers": np.array(writers)[:, None]}


def save_mat(path, **parts):
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {"dataset": parts})
