"""Packs unsigned integers of b bits for the wire, b = 1 to 32, at the speed of memory.

A word has w = 8, 16 or 32 bits, the fewest that hold b. The n values are laid out as w rows of C = ⌈n/w⌉ columns; the
last rows may be short or empty. The w values of a column, of b bits each, fill b words, low bits first. Word k of all
columns comes before word k + 1. Words are little-endian. So each step shifts all columns by the same number of bits,
which vector registers do for every b, and n values take b·C words.
"""

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

_U = np.uint32
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
    array = np.ascontiguousarray(values)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"values have dtype {array.dtype}: must be integers")
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    words = np.zeros(packed_size(array.size, bits) // word_type(bits).itemsize, dtype=word_type(bits))
    if array.size:
        all_bits = int(_pack(array.reshape(-1), _U(bits), words))
        if all_bits < 0 or all_bits >> bits:
            misfit = array[(array < 0) | (array > 2**bits - 1)].flat[0]
            raise ValueError(f"values contain {misfit}: must lie in 0..{2**bits - 1} to fit {bits} bits")
    return words.view(np.uint8)


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
    out = np.empty(count, dtype=word_type(bits))
    if count:
        words = raw.view(word_type(bits))
        _unpack(words if words.flags.aligned else words.copy(), _U(bits), out)
    return out


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
_or = _narrow_operation("or_")


@compiled
def _tile(row: int, column: int, columns: int, count: int, bits: np.uint32, width: int) -> Any:  # pragma: no cover
    """Part of a row of values: its start and size, the first of its words, and the first bit in the words."""
    start = row * columns + column
    size = min(TILE_COLUMNS, columns - column, count - start)
    return start, size, row * bits // width * columns + column, _U(row * bits % width)


@compiled
def _pack(values: Array, bits: np.uint32, words: Array) -> Any:  # pragma: no cover (compiled)
    """Fill words that are zero; return the bitwise or of all values."""
    width = words.itemsize * 8
    columns = (len(values) + width - 1) // width
    all_bits = values[0]
    for column in range(0, columns, TILE_COLUMNS):
        for row in range(width):
            start, size, word, shift = _tile(row, column, columns, len(values), bits, width)
            if size <= 0:
                break
            source = values[start : start + size]
            low = words[word : word + size]
            for j in range(np.uint64(size)):
                all_bits = _or(all_bits, source[j], values)
                low[j] |= _shift_left(source[j], shift, words)
            if shift + bits > width:
                high = words[word + columns : word + columns + size]
                for j in range(np.uint64(size)):
                    high[j] |= _shift_right(source[j], width - shift, words)
    return all_bits


@compiled
def _unpack(words: Array, bits: np.uint32, values: Array) -> None:  # pragma: no cover (compiled)
    width = words.itemsize * 8
    columns = (len(values) + width - 1) // width
    mask = _U(0xFFFFFFFF) >> (_U(32) - bits)
    for column in range(0, columns, TILE_COLUMNS):
        for row in range(width):
            start, size, word, shift = _tile(row, column, columns, len(values), bits, width)
            if size <= 0:
                break
            target = values[start : start + size]
            low = words[word : word + size]
            if shift + bits > width:
                high = words[word + columns : word + columns + size]
                for j in range(np.uint64(size)):
                    value = _shift_right(low[j], shift, words) | _shift_left(high[j], width - shift, words)
                    target[j] = value & mask
            else:
                for j in range(np.uint64(size)):
                    target[j] = _shift_right(low[j], shift, words) & mask
