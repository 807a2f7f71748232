"""The randomized Hadamard transform on the CPU.

A transform of 2**b numbers has b levels. Level k replaces numbers that are 2**k apart by their sum and difference. The
first 18 levels are computed in blocks that stay in the cache, the others three at a time in passes over memory. The
order of the levels is fixed, so the result is the same to the last bit on every processor and any number of threads.
"""

from collections.abc import Callable
from functools import partial
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from rqm.kernels.cpu import compiled, run_in_blocks
from rqm.kernels.integer_sampler import POSITION_SHIFT, IntegerSampler
from rqm.randomness import Words

Array = npt.NDArray[Any]

ADJACENT_COLUMNS = 1024
"""Adjacent numbers that a pass over memory handles at a time; measured."""
MIN_NUMBERS = 2**16
"""A thread handles at least this many numbers; measured."""
SQUARES_PER_SUM = 2**15
"""Squares are summed in chunks of this length, so that the order of the sum does not depend on threads."""
VECTOR_BYTES = 64
"""Bytes of a vector register."""
NO_SIGNS: Words = np.empty(0, dtype=np.uint64)
"""Signs that are all +1."""

_U = np.uint64


# -- compiled loops -------------------------------------------------------------------------------


def _levels_intrinsic(levels: int) -> Any:
    """A compiled function `f(x, index, stride)` that computes levels on 2**levels vectors, which are a stride apart.

    With 0 levels it computes all levels within one vector.
    """

    def _compute_levels(_typing: Any, x: Any, index: Any, stride: Any) -> Any:
        def _generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            array_type, (array, offset, stride) = signature.args[0], args
            number_bytes = array_type.dtype.bitwidth // 8
            vector = ir.VectorType(context.get_value_type(array_type.dtype), VECTOR_BYTES // number_bytes)
            data = context.make_array(array_type)(context, builder, array).data
            pointers = []
            for _ in range(1 << levels):
                pointers.append(builder.bitcast(builder.gep(data, [offset]), vector.as_pointer()))
                offset = builder.add(offset, stride)
            values = [builder.load(pointer, align=number_bytes) for pointer in pointers]
            if levels == 0:
                values = [_levels_within(builder, values[0])]
            for level in range(levels):
                for i in range(1 << levels):
                    if not i >> level & 1:
                        j = i | 1 << level
                        values[i], values[j] = builder.fadd(values[i], values[j]), builder.fsub(values[i], values[j])
            for pointer, value in zip(pointers, values, strict=True):
                builder.store(value, pointer, align=number_bytes)
            return context.get_dummy_value()

        return types.void(x, index, stride), _generate

    return intrinsic(_compute_levels)


def _levels_within(builder: Any, value: Any) -> Any:
    """All levels of the numbers in one vector."""
    lanes, stride = range(value.type.count), 1
    while stride < len(lanes):
        partners = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), [lane ^ stride for lane in lanes])
        signs = ir.Constant(value.type, [-1.0 if lane & stride else 1.0 for lane in lanes])
        partner = builder.shuffle_vector(value, value, partners)
        value = builder.fadd(builder.fmul(value, signs), partner)
        stride *= 2
    return value


_within, _one_level, _two_levels, _three_levels = (_levels_intrinsic(levels) for levels in range(4))


@compiled
def _adjacent_columns(x: Array, start: int, count: int, stride: int, levels: int) -> None:  # pragma: no cover
    """Compute one to three levels in adjacent columns of numbers that are a stride apart."""
    lanes = VECTOR_BYTES // x.itemsize
    if levels == 3:
        for i in range(start, start + count, lanes):
            _three_levels(x, i, stride)
    elif levels == 2:
        for i in range(start, start + count, lanes):
            _two_levels(x, i, stride)
    else:
        for i in range(start, start + count, lanes):
            _one_level(x, i, stride)


@compiled
def _levels(x: Array, low: int, high: int) -> None:  # pragma: no cover (compiled)
    """Compute the levels from `low` to `high`, without `high`."""
    lanes = VECTOR_BYTES // x.itemsize
    if low == 0 and lanes <= 1 << high:
        for i in range(0, len(x), lanes):
            _within(x, i, 0)
        while 1 << low < lanes:
            low += 1
    while low < high:
        stride = 1 << low
        if stride < lanes:  # a row that is shorter than a vector
            for i in range(len(x)):
                if not i & stride:
                    x[i], x[i + stride] = x[i] + x[i + stride], x[i] - x[i + stride]
            low += 1
        else:
            levels = min(high - low, 3)
            for start in range(0, len(x), stride << levels):
                _adjacent_columns(x, start, stride, stride, levels)
            low += levels


@compiled
def _scale(x: Array, out: Array, column: int, factor: float, signs: Words) -> None:  # pragma: no cover (compiled)
    """Write the factor times the numbers of `x` and the signs from a column on, if there are any; then zeros."""
    typed_factor = out.dtype.type(factor)
    count = len(x) if factor != 0.0 else 0
    if len(signs) == 0:
        for i in range(_U(count)):
            out[i] = out.dtype.type(x[i]) * typed_factor
    else:
        for start in range(0, count, 64):
            word = signs[(column + start) >> 6]
            outputs = out[start : min(start + 64, count)]
            inputs = x[start : start + len(outputs)]
            for i in range(_U(len(outputs))):
                value = out.dtype.type(inputs[i]) * typed_factor
                outputs[i] = value if (word >> i) & _U(1) else -value
    out[count:] = 0


@compiled
def transform_blocks(
    x: Array, out: Array, factors: Array, signs: Words, bits: int, start: int, stop: int
) -> bool:  # pragma: no cover (compiled)
    """Write blocks of the rows, multiplied by factors and signs, and compute all their levels.

    Args:
        x: The rows.
        out: Receives the transformed rows.
        factors: A factor for each row.
        signs: A bit for each column, or nothing.
        bits: A block has 2**bits numbers.
        start: The first block, counted over all rows.
        stop: The block after the last.

    Returns:
        False, for `run_in_blocks`.
    """
    blocks_per_row = out.shape[1] >> bits
    tile_bits = min(11, bits)  # a tile stays in the first cache
    tile_size = 1 << tile_bits
    for index in range(start, stop):
        row = index // blocks_per_row
        first = index % blocks_per_row << bits
        block = out[row, first : first + (1 << bits)]
        for offset in range(0, len(block), tile_size):
            tile = block[offset : offset + tile_size]
            column = min(first + offset, x.shape[1])
            inputs = x[row, column : min(column + tile_size, x.shape[1])]
            _scale(inputs, tile, first + offset, factors[row], signs)
            _levels(tile, 0, tile_bits)
        _levels(block, tile_bits, bits)
    return False


@compiled
def transform_far(out: Array, stride: int, levels: int, start: int, stop: int) -> bool:  # pragma: no cover (compiled)
    """Compute up to three levels of numbers that are a stride and more apart.

    Args:
        out: The rows, which are changed in place.
        stride: The distance of the numbers of the first level.
        levels: Number of levels, one to three.
        start: The first chunk of `ADJACENT_COLUMNS` columns, counted over all rows.
        stop: The chunk after the last.

    Returns:
        False, for `run_in_blocks`.
    """
    chunks = stride // ADJACENT_COLUMNS
    groups = out.shape[1] // (stride << levels)
    for index in range(start, stop):
        first = index // chunks % groups * (stride << levels) + index % chunks * ADJACENT_COLUMNS
        _adjacent_columns(out[index // (groups * chunks)], first, ADJACENT_COLUMNS, stride, levels)
    return False


@compiled
def multiply_signs(out: Array, signs: Words, start: int, stop: int) -> bool:  # pragma: no cover (compiled)
    """Multiply columns of the rows by signs, in place.

    Args:
        out: The rows.
        signs: A bit for each column.
        start: The first column, a multiple of 64.
        stop: The column after the last.

    Returns:
        False, for `run_in_blocks`.
    """
    for row in range(len(out)):
        _scale(out[row, start:stop], out[row, start:stop], start, 1.0, signs)
    return False


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})
def _square_sums(x: Array, out: Array, start: int, stop: int) -> bool:  # pragma: no cover (compiled)
    """The sums of the squares of chunks of the rows."""
    for index in range(start, stop):
        row = index // out.shape[1]
        chunk = index % out.shape[1]
        values = x[row, chunk * SQUARES_PER_SUM : (chunk + 1) * SQUARES_PER_SUM]
        total = 0.0
        for i in range(_U(len(values))):
            total += np.float64(values[i]) * np.float64(values[i])
        out[row, chunk] = total
    return False


@compiled
def _square_distances(
    x: Array, scale: float, center: float, low: int, high: int, shift: int, out: Array, start: int, stop: int
) -> bool:  # pragma: no cover (compiled)
    """The sums that `squares` returns, of chunks of the rows."""
    twice_middle = np.int64(low + high)
    lowest = low + POSITION_SHIFT
    highest = high + POSITION_SHIFT
    for index in range(start, stop):
        row = index // out.shape[1]
        chunk = index % out.shape[1]
        values = x[row, chunk * SQUARES_PER_SUM : (chunk + 1) * SQUARES_PER_SUM]
        total = np.int64(0)
        for i in range(_U(len(values))):
            shifted = min(max(np.float64(values[i]) * scale + center, lowest), highest)
            distance = np.int64(2) * (np.float64(shifted).view(np.int64) & np.int64(2**51 - 1)) - twice_middle
            if shift:
                distance = (abs(distance) >> np.int64(shift)) + np.int64(1)
            total += distance * distance
        out[row, chunk] = total
    return False


# -- functions for other packages -----------------------------------------------------------------


def rotate(
    x: Array,
    out: Array,
    *,
    factors: Array | None = None,
    signs: Words = NO_SIGNS,
    signs_last: bool = False,
    threads: int | None = None,
) -> None:
    """Write the orthonormal Walsh–Hadamard transform of every row, times a factor, to an array.

    Args:
        x: Rows of float32 or float64. Missing columns are zeros.
        out: Rows of a power of two of columns. It may be `x` itself.
        factors: A factor for each row, None for 1. A row with the factor 0 becomes zero even if it is not finite.
        signs: A bit for each column of `out`, 1 for a sign of +1; none by default.
        signs_last: Whether to multiply by the signs after the transform instead of before it.
        threads: The largest number of threads; None: one for each processor.

    Raises:
        ValueError: If the number of columns is not a power of two.
    """
    rows, width = out.shape
    bits = width.bit_length() - 1
    if width != 1 << bits:
        raise ValueError(f"x has {width} columns: must be a power of two")
    scales = (np.ones(rows) if factors is None else np.asarray(factors, dtype=np.float64)) * (1 / sqrt(width))
    first_signs = NO_SIGNS if signs_last else signs
    level = min(bits, 18)  # two megabytes stay in the second or third cache
    run_in_blocks(
        lambda start, stop: bool(transform_blocks(x, out, scales, first_signs, level, start, stop)),
        rows * (width >> level),
        threads,
        min_block=max(1, MIN_NUMBERS >> level),
    )
    for low in range(level, bits, 3):
        levels = min(3, bits - low)

        def _task(start: int, stop: int, stride: int = 1 << low, levels: int = levels) -> bool:
            return bool(transform_far(out, stride, levels, start, stop))

        run_in_blocks(
            _task,
            rows * width // (ADJACENT_COLUMNS << levels),
            threads,
            min_block=MIN_NUMBERS // (ADJACENT_COLUMNS << levels),
        )
    if signs_last:
        run_in_blocks(
            lambda start, stop: bool(multiply_signs(out, signs, start, stop)),
            width,
            threads,
            MIN_NUMBERS,
            unit=64,
        )


def square_sums(x: Array, threads: int | None = None) -> npt.NDArray[np.float64]:
    """The sum of the squares of every row: not finite if a number is not, or if the sum exceeds float64."""
    return _sum_chunks(partial(_square_sums, x), len(x), x.shape[1], np.float64, threads)


def squares(sampler: IntegerSampler, x: Array, shift: int, threads: int | None = None) -> npt.NDArray[np.int64]:
    """The sum of squares of every row, of twice the distance of a position from the middle.

    Args:
        sampler: The grid on which inputs are placed.
        x: Rows of inputs, float32 or float64.
        shift: If it is not 0, distances are counted in units of 2**shift and rounded up.
        threads: The largest number of threads; None: one for each processor.

    Returns:
        A sum for each row.
    """
    loop = partial(_square_distances, x, sampler.scale, sampler.center, sampler.low, sampler.high, shift)
    return _sum_chunks(loop, len(x), x.shape[1], np.int64, threads)


def _sum_chunks(loop: Callable[..., bool], rows: int, columns: int, dtype: Any, threads: int | None) -> Array:
    """The sum of every row, from the sums that a compiled loop writes for chunks of the rows."""
    sums = np.empty((rows, max(1, -(-columns // SQUARES_PER_SUM))), dtype=dtype)
    run_in_blocks(lambda *block: bool(loop(sums, *block)), sums.size, threads, MIN_NUMBERS // SQUARES_PER_SUM)
    return np.asarray(sums.sum(axis=1))
