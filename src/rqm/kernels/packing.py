"""Packing of b-bit unsigned integers for the wire, b = 1..32, at the speed of memory.

A word has w = 8, 16 or 32 bits: the fewest that hold b. The n values are laid out as w rows of C = ⌈n/w⌉ columns (the
last rows may be short or empty). The w values of a column, of b bits each, fill b words, low bits first; word k of all
columns comes before word k + 1; words are little-endian. So every step of a pass shifts all columns alike, which vector
registers do for any b, and n values take b·C words.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit
from numba.extending import intrinsic

from rqm._util.checks import whole

Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]

TILE = 1024
"""Columns that are handled at a time: their words stay in the cache until all 32 rows are done."""

_U = np.uint32
compiled = njit(cache=True, nogil=True, error_model="numpy")


def packed_size(count: int, bits: int) -> int:
    """Bytes that ``count`` values of ``bits`` bits take.

    >>> packed_size(1_018_174, 4)
    509088
    """
    bits, count = _width(bits), whole("count", count, 0)
    size = _word(bits).itemsize
    return size * bits * -(-count // (8 * size))


def _width(bits: int) -> int:
    return whole("bits", bits, 1, 32)


def _word(bits: int) -> np.dtype[np.unsignedinteger]:
    return np.dtype("u1" if bits <= 8 else "<u2" if bits <= 16 else "<u4")


def pack(values: npt.ArrayLike, bits: int) -> Bytes:
    """Pack whole numbers from 0 to 2**bits − 1.

    >>> z = np.array([3, 0, 15, 7], dtype=np.uint8)
    >>> unpack(pack(z, 4), 4, count=4)
    array([ 3,  0, 15,  7], dtype=uint8)
    """
    bits, array = _width(bits), np.ascontiguousarray(values)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"values have dtype {array.dtype}: must be whole numbers")
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    words = np.zeros(packed_size(array.size, bits) // _word(bits).itemsize, dtype=_word(bits))
    if array.size:
        seen = int(_pack(array.reshape(-1), _U(bits), words))
        if seen < 0 or seen >> bits:
            bad = array[(array < 0) | (array > 2**bits - 1)].flat[0]
            raise ValueError(f"values contain {bad}: must lie in 0..{2**bits - 1} to fit {bits} bits")
    return words.view(np.uint8)


def unpack(data: Any, bits: int, count: int) -> npt.NDArray[np.unsignedinteger]:
    """Return the ``count`` values that ``pack`` laid out, in the smallest unsigned type that holds ``bits`` bits."""
    bits, count = _width(bits), whole("count", count, 0)
    size = packed_size(count, bits)
    raw = np.frombuffer(data, dtype=np.uint8)
    if raw.size != size:
        raise ValueError(f"data has {raw.size} bytes: {count} values of {bits} bits take {size}")
    out = np.empty(count, dtype=_word(bits))
    if count:
        words = raw.view(_word(bits))
        _unpack(words if words.flags.aligned else words.copy(), _U(bits), out)
    return out


def _native(method: str) -> Any:
    """An operation in the type of ``like``'s elements; the compiler's own is in 64 bits, at an eighth of the speed."""

    def operate(_typing: Any, a: Any, b: Any, like: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = signature.return_type
            operands = [context.cast(builder, args[i], signature.args[i], kind) for i in (0, 1)]
            return getattr(builder, method)(*operands)

        return like.dtype(a, b, like), generate

    return intrinsic(operate)


_left, _right, _or = _native("shl"), _native("lshr"), _native("or_")


@compiled
def _tile(row: int, left: int, columns: int, count: int, bits: np.uint32, width: int) -> Any:  # pragma: no cover
    """A piece of a row of values: where it begins, its size, and the words and the bit in them where it goes."""
    start = row * columns + left
    size = min(TILE, columns - left, count - start)
    return start, size, row * bits // width * columns + left, _U(row * bits % width)


@compiled
def _pack(values: Array, bits: np.uint32, words: Array) -> Any:  # pragma: no cover (compiled)
    """Fill ``words``, which are zero; return all values or-ed together."""
    width = words.itemsize * 8
    columns = (len(values) + width - 1) // width
    seen = values[0]
    for left in range(0, columns, TILE):
        for row in range(width):
            start, size, word, shift = _tile(row, left, columns, len(values), bits, width)
            if size <= 0:
                break
            source = values[start : start + size]
            low = words[word : word + size]
            for j in range(np.uint64(size)):
                seen = _or(seen, source[j], values)
                low[j] |= _left(source[j], shift, words)
            if shift + bits > width:
                high = words[word + columns : word + columns + size]
                for j in range(np.uint64(size)):
                    high[j] |= _right(source[j], width - shift, words)
    return seen


@compiled
def _unpack(words: Array, bits: np.uint32, values: Array) -> None:  # pragma: no cover (compiled)
    width = words.itemsize * 8
    columns = (len(values) + width - 1) // width
    mask = _U(0xFFFFFFFF) >> (_U(32) - bits)
    for left in range(0, columns, TILE):
        for row in range(width):
            start, size, word, shift = _tile(row, left, columns, len(values), bits, width)
            if size <= 0:
                break
            target = values[start : start + size]
            low = words[word : word + size]
            if shift + bits > width:
                high = words[word + columns : word + columns + size]
                for j in range(np.uint64(size)):
                    both = _right(low[j], shift, words) | _left(high[j], width - shift, words)
                    target[j] = both & mask
            else:
                for j in range(np.uint64(size)):
                    target[j] = _right(low[j], shift, words) & mask
