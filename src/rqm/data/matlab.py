"""MATLAB's files of version 5, as far as EMNIST's need them: structures of arrays of numbers.

SciPy's reader follows structures as deep as a file nests them, until the process dies; this one goes a few levels down.
"""

import struct
import zlib
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from rqm.data.limits import check_unpacked

TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
MATRIX, PACKED = 14, 15
"""Elements of a file: an array of any class, and one that is packed."""
STRUCT, NUMBERS = 2, range(6, 16)
"""Classes of arrays."""
DEEPEST = 8
PIECE = 2**20
"""Bytes that are unpacked at a time."""


def read_mat(path: Path, file: BinaryIO) -> dict[str, Any]:
    """The variables of a file: arrays of numbers, tables for structures, None for everything else."""
    header = file.read(128)
    if len(header) < 128 or header[124:] not in (b"\0\1IM", b"\1\0MI"):
        raise ValueError("it has no header of a .mat file of version 5")
    order = "<" if header[126:] == b"IM" else ">"
    return dict(_array(body, order, 0) for body in _variables(path, file, order))


def _variables(path: Path, file: BinaryIO, order: str) -> Iterator[memoryview]:
    """The bodies of all variables, unpacked one after the other; together no more than is allowed."""
    left, total = path.stat().st_size - 128, 0
    while tag := file.read(8):
        kind, size = struct.unpack(f"{order}II", tag) if len(tag) == 8 else (0, 0)
        left -= 8 + size
        if kind not in (MATRIX, PACKED) or left < 0:
            raise ValueError("a variable of it is cut short, or no variable")
        if kind == MATRIX:
            total += size
            check_unpacked(path, total)
            yield memoryview(file.read(size))
            continue
        data, unpack = bytearray(), zlib.decompressobj()
        while size and not unpack.eof:
            piece = file.read(min(PIECE, size))
            size -= len(piece)
            while piece and not unpack.eof:
                data += unpack.decompress(piece, PIECE)
                check_unpacked(path, total + len(data))
                piece = unpack.unconsumed_tail
        if size or not unpack.eof:
            raise ValueError("a variable of it is cut short")
        total += len(data)
        kind, body, _ = _element(memoryview(data), order)
        if kind != MATRIX:
            raise ValueError(f"a variable of it is of type {kind}: must be {MATRIX}")
        yield body


def _element(data: memoryview, order: str) -> tuple[int, memoryview, memoryview]:
    """The type and the body of the element that data begin with, and what comes after it."""
    if len(data) < 8:
        raise ValueError("an element of it is cut short")
    kind, size = struct.unpack(f"{order}II", data[:8])
    if kind >> 16:  # a small one: type, size and body in eight bytes
        size, kind = kind >> 16, kind & 0xFFFF
        if size > 4:
            raise ValueError(f"a small element of it has {size} bytes: must be at most 4")
        return kind, data[4 : 4 + size], data[8:]
    if size > len(data) - 8:
        raise ValueError("an element of it is cut short")
    return kind, data[8 : 8 + size], data[8 + size + -size % 8 :]


def _numbers(data: memoryview, order: str) -> tuple[Any, memoryview]:
    """The numbers of the next element, and what comes after it."""
    kind, body, rest = _element(data, order)
    if kind not in TYPES:
        raise ValueError(f"an element of it is of type {kind}: must be numbers")
    return np.frombuffer(body, dtype=np.dtype(order + TYPES[kind])), rest


def _array(data: memoryview, order: str, depth: int) -> tuple[str, Any]:
    """The name and the value of an array, of any class."""
    if depth == DEEPEST:
        raise ValueError(f"it is nested deeper than {DEEPEST}")
    flags, rest = _numbers(data, order)
    dims, rest = _numbers(rest, order)
    name, rest = _numbers(rest, order)
    kind, shape = int(flags[0]) & 0xFF if len(flags) else 0, [int(one) for one in dims]
    value: Any = None
    if kind == STRUCT:
        if prod(shape) != 1:
            raise ValueError(f"a structure of it has shape {shape}: must be one")
        value = _fields(rest, order, depth)
    elif kind in NUMBERS:
        value, _ = _numbers(rest, order)
        if min(shape, default=0) < 0 or prod(shape) != len(value):
            raise ValueError(f"an array of it has {len(value)} numbers: shape {shape} takes {prod(shape)}")
        value = value.reshape(shape, order="F")
    return bytes(name).decode("latin-1"), value


def _fields(rest: memoryview, order: str, depth: int) -> dict[str, Any]:
    """The fields of a structure, by name."""
    length, rest = _numbers(rest, order)
    names, rest = _numbers(rest, order)
    step = int(length[0]) if len(length) else 0
    if step < 1:
        raise ValueError(f"names of fields have {step} bytes: must be at least 1")
    found = {}
    for start in range(0, len(names), step):
        kind, body, rest = _element(rest, order)
        if kind != MATRIX:
            raise ValueError(f"a field of it is of type {kind}: must be {MATRIX}")
        name = bytes(names[start : start + step]).split(b"\0")[0].decode("latin-1")
        found[name] = _array(body, order, depth + 1)[1] if len(body) else None
    return found
