"""Packs unsigned integers of b bits for the wire, b = 1 to 32, at the speed of memory.

A word has w = 8, 16 or 32 bits, the fewest that hold b. The n values are laid out as w rows of C = ⌈n/w⌉ columns; the
last rows may be short or empty. The w values of a column, of b bits each, fill b words, low bits first. Word k of all
columns comes before word k + 1. Words are little-endian. So each step shifts all columns by the same number of bits,
which vector registers do for every b, and n values take b·C words.
"""

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit
from numba.extending import intrinsic

from rqm._util.checks import whole
from rqm.kernels import word_type

Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]

TILE_COLUMNS = 1024
"""Columns that are handled at a time. Their words stay in the cache until all rows are done."""

compiled = njit(cache=True, nogil=True, error_model="numpy")


def packed_size(count: int, bits: int) -> int:
    """Bytes that packed values take.

    Args:
        count: Number of values.
        bits: Bits of a value, 1 to 32.

    Returns:
        The number of bytes.

    >>> packed_size(1_018_174, 4)
    509088
    """
    bits = _check_bits(bits)
    count = whole("count", count, 0)
    word_bytes = word_type(bits).itemsize
    return word_bytes * bits * -(-count // (8 * word_bytes))


def _check_bits(bits: int) -> int:
    return whole("bits", bits, 1, 32)


def pack(values: npt.ArrayLike, bits: int) -> Bytes:
    """Pack integers.

    Args:
        values: Integers from 0 to 2**bits − 1, packed in C order.
        bits: Bits of a value, 1 to 32.

    Returns:
        The bytes.

    Raises:
        ValueError: If a value does not fit.
        TypeError: If the values are not integers.

    >>> z = np.array([3, 0, 15, 7], dtype=np.uint8)
    >>> unpack(pack(z, 4), 4, count=4)
    array([ 3,  0, 15,  7], dtype=uint8)
    """
    bits = _check_bits(bits)
    words = to_words(values, 2**bits, bits)
    packed = np.zeros(packed_size(words.size, bits) // words.itemsize, dtype=words.dtype)
    _move(words, packed, _moves(bits)[0], len(packed) // bits, np.uint32(0xFFFFFFFF))
    return packed.view(np.uint8)


def unpack(data: Any, bits: int, count: int) -> npt.NDArray[np.unsignedinteger]:
    """Undo `pack`.

    Args:
        data: The bytes, in any buffer.
        bits: Bits of a value, 1 to 32.
        count: Number of values.

    Returns:
        The values, in the smallest unsigned type that holds `bits` bits.

    Raises:
        ValueError: If the number of bytes is wrong.
    """
    bits = _check_bits(bits)
    count = whole("count", count, 0)
    size = packed_size(count, bits)
    raw = np.frombuffer(data, dtype=np.uint8)
    if raw.size != size:
        raise ValueError(f"data has {raw.size} bytes: {count} values of {bits} bits take {size}")
    values = np.zeros(count, dtype=word_type(bits))
    packed = raw.view(values.dtype)
    packed = packed if packed.flags.aligned else packed.copy()
    _move(packed, values, _moves(bits)[1], len(packed) // bits, np.uint32(2**bits - 1))
    return values


def to_words(values: npt.ArrayLike, levels: int, bits: int) -> npt.NDArray[np.unsignedinteger]:
    """Check integers, and convert them to words.

    Args:
        values: Integers from 0 to `levels` − 1.
        levels: At most 2**bits.
        bits: Bits that a word must hold, 1 to 32.

    Returns:
        The values in C order, in the smallest unsigned type that holds `bits` bits. If `values` have that type, the
        memory is the same.

    Raises:
        ValueError: If a value is out of range.
        TypeError: If the values are not integers.
    """
    array = np.ascontiguousarray(values).reshape(-1)
    words = np.empty(array.size, dtype=word_type(bits))
    if not array.size:
        return words
    if array.dtype.kind not in "iu":
        raise TypeError(f"values have dtype {array.dtype}: must be integers")
    if array.dtype == words.dtype:
        words, largest = array, array.max()
    else:
        largest = _convert(array.astype(array.dtype.newbyteorder("="), copy=False), words)
    if largest >= levels:
        outside = array[(array < 0) | (array >= levels)][0]
        raise ValueError(f"values contain {outside}: must lie in 0..{levels - 1}")
    return words


@cache
def _moves(bits: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """How `pack` moves bits, and how `unpack` does: from which row, to which row, and how far to the left.

    A row of values that is split between two rows of words has two entries. Shifts to the right are negative.
    """
    width, moves = 8 * word_type(bits).itemsize, list[tuple[int, int, int]]()
    for row in range(width):
        word, shift = divmod(row * bits, width)
        moves.append((row, word, shift))
        if shift + bits > width:
            moves.append((row, word + 1, shift - width))
    packing = np.array(moves)
    return packing, packing.take([1, 0, 2], axis=1) * [1, 1, -1]


def _narrow_operation(method: str) -> Any:
    """An operation in the element type of an array. In 64 bits, as numba does it, packing bytes takes twice as long."""

    def _operate(_typing: Any, a: Any, b: Any, array: Any) -> Any:
        def _generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            result_type = signature.return_type
            operands = [context.cast(builder, args[i], signature.args[i], result_type) for i in (0, 1)]
            return getattr(builder, method)(*operands)

        return array.dtype(a, b, array), _generate

    return intrinsic(_operate)


_shift_left = _narrow_operation("shl")
_shift_right = _narrow_operation("lshr")


@compiled
def _convert(values: Array, words: Array) -> Any:  # pragma: no cover (compiled)
    """Copy values into words; return the largest. A negative value counts as 2⁶⁴ more."""
    largest = np.uint64(0)
    for j in range(np.uint64(len(values))):
        words[j] = values[j]
        largest = max(largest, np.uint64(values[j]))
    return largest


@compiled
def _move(source: Array, target: Array, moves: Array, columns: int, mask: np.uint32) -> None:  # pragma: no cover
    """Put rows of one array, shifted and masked, into the rows of another, which is zero."""
    for column in range(0, columns, TILE_COLUMNS):
        for from_row, to_row, shift in moves:
            start, end = from_row * columns + column, to_row * columns + column
            size = min(TILE_COLUMNS, columns - column, len(source) - start, len(target) - end)
            if size <= 0:
                continue
            row, sums = source[start : start + size], target[end : end + size]
            if shift >= 0:
                for j in range(np.uint64(size)):
                    sums[j] |= _shift_left(row[j], shift, target) & mask
            else:
                for j in range(np.uint64(size)):
                    sums[j] |= _shift_right(row[j], -shift, target) & mask
