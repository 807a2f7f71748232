"""Arrays of float32 and texts about them in one file: the format of safetensors, with a checksum over all of it.

It is written and read here in a few lines, so that training needs nothing but torch, NumPy and SciPy.
"""

import json
import struct
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from rqm._util.checks import shown, whole
from rqm._util.files import parse_table

Arrays = dict[str, npt.NDArray[np.float32]]

CHECKSUM = "sha256"
"""The text that holds the hash of the file as it is with zeros in place of the hash."""
BLANK = b"0" * 64
ENTRY = {"dtype", "shape", "data_offsets"}


def dump(arrays: Arrays, texts: dict[str, str]) -> bytes:
    """Arrays of float32 and texts about them as a safetensors file."""
    header: dict[str, object] = {"__metadata__": {CHECKSUM: BLANK.decode(), **texts}}
    end = 0
    for name, array in arrays.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [end, end + 4 * array.size]}
        end += 4 * array.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    parts = [struct.pack("<Q", len(text)), text, *(array.astype("<f4").tobytes() for array in arrays.values())]
    data = b"".join(parts)
    return data.replace(BLANK, sha256(data).hexdigest().encode(), 1)


def parse(data: bytes) -> tuple[Arrays, dict[str, str]]:
    """The arrays and texts that ``dump`` wrote; a ValueError if anything is not as it was."""
    if len(data) < 8:
        raise ValueError(f"it has {len(data)} bytes: must be at least 8")
    length = struct.unpack_from("<Q", data)[0]
    if length > len(data) - 8:
        raise ValueError(f"it has {len(data)} bytes: its header alone takes {length}")
    header, body = parse_table(data[8 : 8 + length]), memoryview(data)[8 + length :]
    texts = header.pop("__metadata__", None)
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise ValueError(f"its metadata are {shown(texts)}: must be texts by name")
    told = texts.pop(CHECKSUM, None)
    if told is None:
        raise ValueError("it has no checksum; it may be of an older version: use the rqm that wrote it")
    if sha256(data.replace(told.encode(), BLANK, 1)).hexdigest() != told:
        raise ValueError(f"its checksum is not {shown(told)}, which it was written with")
    arrays, end = {}, 0
    for name, entry in header.items():
        arrays[name] = _array(name, entry, body, end)
        end += arrays[name].nbytes
    if len(body) != end:
        raise ValueError(f"it holds {len(body)} bytes of tensors: must be {end}, as its header says")
    return arrays, texts


def _array(name: str, entry: Any, body: memoryview, start: int) -> npt.NDArray[np.float32]:
    """One array, which must begin where the last one ended."""
    if not isinstance(entry, dict) or entry.keys() != ENTRY or entry["dtype"] != "F32":
        raise ValueError(f"{name} is {shown(entry)}: must have a dtype (F32), a shape and data_offsets")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not isinstance(shape, list) or not isinstance(offsets, list):
        raise ValueError(f"{name} is {shown(entry)}: shape and data_offsets must be lists")
    try:
        size = 4
        for count in shape:
            size *= whole(f"{name}.shape", count, 0, len(body))
    except TypeError as error:
        raise ValueError(str(error)) from None
    if offsets != [start, start + size] or start + size > len(body):
        raise ValueError(
            f"{name} is said to lie in {shown(offsets)} of {len(body)} bytes: must be in {[start, start + size]}"
        )
    return np.frombuffer(body[start : start + size], dtype="<f4").reshape(shape).astype(np.float32)
