"""Arrays of float32 and texts about them in one file of the safetensors format, with a checksum.

It is written and read here, so that training needs only torch, NumPy and SciPy, and a file is the
same on every machine. The checksum covers every byte; the safetensors library would not notice a
changed number.
"""

import json
from hashlib import sha256
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from rqm._util.checks import shown
from rqm._util.files import parse_table

Arrays = dict[str, npt.NDArray[np.float32]]

_BLANK = "0" * 64  # takes the place of the checksum while it is computed


def dump(arrays: Arrays, texts: dict[str, str]) -> bytes:
    """The content of a safetensors file.

    Args:
        arrays: Arrays of float32 by name.
        texts: Texts by name, other than "sha256".

    Returns:
        The bytes. The text "sha256" has their hash, with zeros in place of the hash.
    """
    header: dict[str, object] = {"__metadata__": {"sha256": _BLANK, **texts}}
    end = 0
    for name, array in arrays.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [end, end + 4 * array.size]}
        end += 4 * array.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    values = [array.astype("<f4").tobytes() for array in arrays.values()]
    data = b"".join([len(text).to_bytes(8, "little"), text, *values])
    return data.replace(_BLANK.encode(), sha256(data).hexdigest().encode(), 1)


def parse(data: bytes) -> tuple[Arrays, dict[str, str]]:
    """Read the content of a file that `dump` wrote.

    Args:
        data: The bytes.

    Returns:
        The arrays and the texts.

    Raises:
        ValueError: If a byte was changed, or if it is another file.
    """
    start = 8 + int.from_bytes(data[:8], "little")
    if not 8 < start <= len(data):
        raise ValueError(f"it has {len(data)} bytes: its header alone has {start}")
    header = parse_table(data[8:start])
    body = memoryview(data)[start:]
    texts = header.pop("__metadata__", None)
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise ValueError(f"its metadata are {shown(texts)}: must be texts by name")
    checksum = texts.pop("sha256", None)
    if checksum is None:
        raise ValueError("it has no checksum; it may be of an older version: use the rqm that wrote it")
    if sha256(data.replace(checksum.encode(), _BLANK.encode(), 1)).hexdigest() != checksum:
        raise ValueError(f"its checksum is not {shown(checksum)}, which it was written with")
    arrays: Arrays = {}
    end = 0
    for name, entry in header.items():
        arrays[name] = _array(name, entry, body[end:], end)
        end += arrays[name].nbytes
    if len(body) != end:
        raise ValueError(f"it holds {len(body)} bytes of tensors: must be {end}, as its header says")
    return arrays, texts


def _array(name: str, entry: Any, body: memoryview, start: int) -> npt.NDArray[np.float32]:
    """The array that an entry of the header describes, at the beginning of `body`."""
    try:
        stop = start + 4 * int(prod(entry["shape"]))
        if entry["dtype"] != "F32" or entry["data_offsets"] != [start, stop]:
            raise ValueError("must be F32, after the tensor before it")
        return np.frombuffer(body[: stop - start], dtype="<f4").reshape(entry["shape"]).astype(np.float32)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} is {shown(entry)}: not a tensor that can be read ({error})") from None
