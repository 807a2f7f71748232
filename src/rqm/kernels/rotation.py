"""The randomized Hadamard rotation on the CPU: a few passes over memory, whatever the length.

A transform of 2**b numbers has b levels of sums and differences of numbers that lie 1, 2, 4, … apart. The first 18
levels are taken in one pass over memory, in blocks that stay in the cache, while signs and scale are multiplied
in; the others by three in a pass. The levels are always taken in the same order, so the result is the same to the last
bit on any processor and any number of threads.
"""

from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from rqm.kernels.cpu import in_blocks
from rqm.kernels.recipe import SHIFT, Recipe
from rqm.randomness import Words

Array = npt.NDArray[Any]

BLOCK_BITS = 18
"""Levels that are taken in one block: two megabytes stay in the processor's cache."""
NEAR_BITS = 11
"""Levels that are taken in a part of a block: it stays in the nearest cache."""
FAR_BITS = 3
"""Levels that a further pass over memory takes: as many as there are registers for."""
COLUMNS = 1024
"""Neighbouring numbers that it handles at a time."""
GRAIN = 2**16
"""A thread is given at least this many numbers."""
PART = 2**15
"""Numbers whose squares are summed up at a time, in an order that does not depend on threads."""
VECTOR = 64
"""Bytes that are handled at once."""
NO_SIGNS: Words = np.empty(0, dtype=np.uint64)

_U = np.uint64
compiled = njit(cache=True, nogil=True, error_model="numpy")


# -- sums and differences in vector registers -------------------------------------------------------


def _places(context: Any, builder: Any, kind: Any, array: Any, first: Any, apart: Any, count: int) -> list[Any]:
    """So many vectors of an array, the first at an index and the others that far apart."""
    data = context.make_array(kind)(context, builder, array).data
    vector = ir.VectorType(context.get_value_type(kind.dtype), VECTOR // (kind.dtype.bitwidth // 8))
    found, place = [], first
    for _ in range(count):
        found.append(builder.bitcast(builder.gep(data, [place]), vector.as_pointer()))
        place = builder.add(place, apart)
    return found


def _apart(bits: int) -> Any:
    """An intrinsic that takes ``bits`` levels at once: ``f(x, i, s)``, of vectors from x[i] on, s numbers apart."""

    def butterfly(_typing: Any, x: Any, i: Any, s: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind, size = signature.args[0], signature.args[0].dtype.bitwidth // 8
            places = _places(context, builder, kind, args[0], args[1], args[2], 1 << bits)
            values = [builder.load(place, align=size) for place in places]
            for level in range(bits):
                for one in range(1 << bits):
                    if not one >> level & 1:
                        a, b = values[one], values[one | 1 << level]
                        values[one], values[one | 1 << level] = builder.fadd(a, b), builder.fsub(a, b)
            for place, value in zip(places, values, strict=True):
                builder.store(value, place, align=size)
            return context.get_dummy_value()

        return types.void(x, i, s), generate

    return intrinsic(butterfly)


def _within(_typing: Any, x: Any, index: Any) -> Any:
    """All levels within one vector, from x[i] on."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (place,) = _places(context, builder, signature.args[0], args[0], args[1], args[1], 1)
        vector, size = place.type.pointee, signature.args[0].dtype.bitwidth // 8
        value, lanes, apart = builder.load(place, align=size), range(vector.count), 1
        while apart < vector.count:
            turned = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [lane ^ apart for lane in lanes])
            other = builder.shuffle_vector(value, value, turned)
            minus = ir.Constant(vector, [-1.0 if lane & apart else 1.0 for lane in lanes])
            value, apart = builder.fadd(builder.fmul(value, minus), other), 2 * apart
        builder.store(value, place, align=size)
        return context.get_dummy_value()

    return types.void(x, index), generate


_inside: Any = intrinsic(_within)
_two, _four, _eight = _apart(1), _apart(2), _apart(3)


# -- the compiled loops --------------------------------------------------------------------------------


@compiled
def _columns(x: Array, start: int, count: int, apart: int, bits: int) -> None:  # pragma: no cover (compiled)
    """Take up to three levels of neighbouring columns of numbers that lie ``apart``."""
    lanes = VECTOR // x.itemsize
    if bits == 3:
        for i in range(start, start + count, lanes):
            _eight(x, i, apart)
    elif bits == 2:
        for i in range(start, start + count, lanes):
            _four(x, i, apart)
    else:
        for i in range(start, start + count, lanes):
            _two(x, i, apart)


@compiled
def _levels(x: Array, low: int, high: int) -> None:  # pragma: no cover (compiled)
    """Take the levels from ``low`` to ``high``; the first ones, of short vectors, number by number."""
    lanes = VECTOR // x.itemsize
    while low < high and (1 << low) < lanes:
        if low == 0 and lanes <= 1 << high:
            for i in range(0, len(x), lanes):
                _inside(x, i)
            while 1 << low < lanes:
                low += 1
        else:
            apart = 1 << low
            for start in range(0, len(x), 2 * apart):
                for i in range(start, start + apart):
                    a, b = x[i], x[i + apart]
                    x[i], x[i + apart] = a + b, a - b
            low += 1
    while low < high:
        apart, step = 1 << low, min(high - low, 3)
        for start in range(0, len(x), apart << step):
            _columns(x, start, apart, apart, step)
        low += step


@compiled
def _scaled(x: Array, out: Array, place: int, factor: float, signs: Words) -> None:  # pragma: no cover (compiled)
    """Write ``factor`` times the numbers of ``x``, then zeros; with the signs from ``place`` on, if there are any."""
    by = out.dtype.type(factor)
    held = len(x) if factor != 0.0 else 0
    if len(signs) == 0:
        for i in range(_U(held)):
            out[i] = out.dtype.type(x[i]) * by
    else:
        for first in range(0, held, 64):
            bits = signs[(place + first) >> 6]
            some = out[first : min(first + 64, held)]
            given = x[first : first + len(some)]
            for i in range(_U(len(some))):
                value = out.dtype.type(given[i]) * by
                some[i] = value if (bits >> i) & _U(1) else -value
    out[held:] = 0


@compiled
def first_pass(
    x: Array, out: Array, factors: Array, scale: float, signs: Words, last: bool, start: int, stop: int
) -> bool:  # pragma: no cover (compiled)
    """Blocks of the rows: scaled, with signs before the levels, or after them if that is ``last``."""
    width = out.shape[1]
    bits = 0
    while 2 << bits <= min(width, 1 << BLOCK_BITS):
        bits += 1
    each = width >> bits
    none = signs[:0]
    for number in range(start, stop):
        row, place = number // each, number % each << bits
        block = out[row, place : place + (1 << bits)]
        near = min(NEAR_BITS, bits)
        for part in range(0, 1 << bits, 1 << near):
            some = block[part : part + (1 << near)]
            begin = min(place + part, x.shape[1])
            given = x[row, begin : min(begin + len(some), x.shape[1])]
            _scaled(given, some, place + part, factors[row] * scale, none if last else signs)
            _levels(some, 0, near)
        _levels(block, near, bits)
        if last and each == 1:
            _scaled(block, block, place, 1.0, signs)
    return False


@compiled
def far_pass(
    out: Array, apart: int, bits: int, signs: Words, start: int, stop: int
) -> bool:  # pragma: no cover (compiled)
    """Up to three levels of numbers that lie ``apart`` and more, some columns at a time; signs after them, if any."""
    columns, groups = apart // COLUMNS, out.shape[1] // (apart << bits)
    for number in range(start, stop):
        row = out[number // (groups * columns)]
        first = number // columns % groups * (apart << bits) + number % columns * COLUMNS
        _columns(row, first, COLUMNS, apart, bits)
        if len(signs) > 0:
            for k in range(1 << bits):
                place = first + k * apart
                some = row[place : place + COLUMNS]
                _scaled(some, some, place, 1.0, signs)
    return False


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})
def _square_sums(x: Array, out: Array, start: int, stop: int) -> bool:  # pragma: no cover (compiled)
    """For parts of the rows the sums of their squares."""
    for number in range(start, stop):
        row, part = number // out.shape[1], number % out.shape[1]
        some = x[row, part * PART : (part + 1) * PART]
        found = 0.0
        for i in range(_U(len(some))):
            found += np.float64(some[i]) * np.float64(some[i])
        out[row, part] = found
    return False


@compiled
def _square_distances(
    x: Array, out: Array, scale: float, centre: float, low: int, high: int, shift: int, start: int, stop: int
) -> bool:  # pragma: no cover (compiled)
    """For parts of the rows the sums of ``squares``."""
    middle, lowest, highest = np.int64(low + high), low + SHIFT, high + SHIFT
    for number in range(start, stop):
        row, part = number // out.shape[1], number % out.shape[1]
        some = x[row, part * PART : (part + 1) * PART]
        found = np.int64(0)
        for i in range(_U(len(some))):
            near = min(max(np.float64(some[i]) * scale + centre, lowest), highest)
            twice = np.int64(2) * (np.float64(near).view(np.int64) & np.int64(2**51 - 1)) - middle
            if shift:
                twice = (abs(twice) >> np.int64(shift)) + np.int64(1)
            found += twice * twice
        out[row, part] = found
    return False


# -- the drivers -----------------------------------------------------------------------------------------


def rotate(
    x: Array,
    out: Array,
    *,
    factors: Array | None = None,
    signs: Words = NO_SIGNS,
    last: bool = False,
    threads: int | None = None,
) -> None:
    """Write the orthonormal transform of every row of ``x``, times its factor and padded with zeros, to ``out``.

    ``signs`` has a bit for every column of ``out``, one for +1, and is multiplied in before the transform, or after it
    if that is ``last``. A row whose factor is zero becomes zero, whatever it holds. ``x`` may be ``out`` itself.
    """
    rows, width = out.shape
    bits = width.bit_length() - 1
    if width != 1 << bits:
        raise ValueError(f"x has {width} columns: must be a power of two")
    own = np.ones(rows) if factors is None else np.asarray(factors, dtype=np.float64)
    block, scale = min(bits, BLOCK_BITS), 1 / sqrt(width)
    in_blocks(
        lambda start, stop: bool(first_pass(x, out, own, scale, signs, last, start, stop)),
        rows * (width >> block),
        threads,
        grain=max(1, GRAIN >> block),
    )
    while block < bits:
        step = min(FAR_BITS, bits - block)
        ending = signs if last and block + step == bits else NO_SIGNS

        def task(start: int, stop: int, apart: int = 1 << block, step: int = step, ending: Words = ending) -> bool:
            return bool(far_pass(out, apart, step, ending, start, stop))

        in_blocks(task, rows * width // (COLUMNS << step), threads, grain=GRAIN // (COLUMNS << step))
        block += step


def square_sums(x: Array, threads: int | None = None) -> npt.NDArray[np.float64]:
    """The sum of the squares of every row: not finite if a number is not, or a square of float64 beyond it."""
    found = np.empty((len(x), max(1, -(-x.shape[1] // PART))))
    in_blocks(lambda a, b: bool(_square_sums(x, found, a, b)), found.size, threads, grain=GRAIN // PART)
    return np.asarray(found.sum(axis=1))


def squares(recipe: Recipe, x: Array, shift: int, threads: int | None = None) -> npt.NDArray[np.int64]:
    """For every row the sum of (twice a position's distance from the middle, over 2**shift and rounded up)²."""
    found = np.empty((len(x), max(1, -(-x.shape[1] // PART))), dtype=np.int64)
    law = recipe.scale, recipe.centre, recipe.low, recipe.high, shift
    in_blocks(lambda a, b: bool(_square_distances(x, found, *law, a, b)), found.size, threads, grain=GRAIN // PART)
    return np.asarray(found.sum(axis=1))
