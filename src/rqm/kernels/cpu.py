"""Encodes vectors on the CPU: clip, round and draw in one pass over memory, in loops that numba compiles.

The loops run on one thread and release the interpreter's lock. `run_in_blocks` runs them on a pool of threads. They
share one file because numba's cache of a function does not notice changes of functions in other files that it calls.
"""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from rqm._util.threads import usable_cores
from rqm.kernels.integer_sampler import ALIAS_BITS, POSITION_BITS, POSITION_SHIFT, TABLE_BITS, IntegerSampler
from rqm.randomness import SEED_CHUNK, OneEach, SecureRandom, SeededRandom, Words, threefry

Array = npt.NDArray[Any]


_U = np.uint64
_MAGNITUDE = _U(2**63 - 1)  # all bits of a float64 but its sign
_INFINITY = _U(0x7FF0000000000000)  # the magnitude of infinity; those of NaN are larger
_POSITION = _U(POSITION_BITS)
_TRIAL_MASK = _U(2**POSITION_BITS - 1)
_TWO_LEVELS_MASK = _U(2 ** (POSITION_BITS + 1) - 1)
_TABLE = _U(TABLE_BITS)
_ALIAS = _U(ALIAS_BITS)
_OUTCOME_MASK = _U(2**ALIAS_BITS - 1)

compiled = njit(cache=True, nogil=True, error_model="numpy")
inlined = njit(inline="always", error_model="numpy")
_threefry = inlined(threefry)


class CompiledSampler(NamedTuple):
    """An `IntegerSampler` in the types of the compiled loops. `low` and `high` include `POSITION_SHIFT`."""

    entries: Words
    column_bits: np.uint64
    has_row_per_level: bool
    modulus: np.uint64
    trials: np.uint64
    words_per_coordinate: int
    scale: float
    center: float
    low: float
    high: float


def compiled_sampler(sampler: IntegerSampler) -> CompiledSampler:
    """Convert a sampler."""
    return CompiledSampler(
        entries=sampler.entries,
        column_bits=_U(sampler.column_bits),
        has_row_per_level=sampler.has_row_per_level,
        modulus=_U(sampler.modulus),
        trials=_U(sampler.trials),
        words_per_coordinate=sampler.words_per_coordinate,
        scale=sampler.scale,
        center=sampler.center,
        low=sampler.low + POSITION_SHIFT,
        high=sampler.high + POSITION_SHIFT,
    )


# -- hints to the compiler ------------------------------------------------------------------------
# A loop that reads a table at random positions is vectorized only if the compiler knows that nothing else in the loop
# is the table. `_load_entry`, `_load` and `_store` say so: without them the loops take twice the time. They do not
# check bounds.


def _table_scope(module: Any) -> Any:
    domain = module.add_metadata([ir.MetaDataString(module, "rqm")])
    return module.add_metadata([module.add_metadata([ir.MetaDataString(module, "table"), domain])])


def _element_pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [index])


def _load_intrinsic(tag: str) -> Any:
    def _load(_typing: Any, array: Any, index: Any) -> Any:
        def _generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = builder.load(_element_pointer(context, builder, signature.args[0], *args))
            value.set_metadata(tag, _table_scope(builder.module))
            return value

        return array.dtype(array, index), _generate

    return intrinsic(_load)


def _store_intrinsic(_typing: Any, array: Any, index: Any, value: Any) -> Any:
    def _generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = _element_pointer(context, builder, signature.args[0], *args[:2])
        element = context.cast(builder, args[2], signature.args[2], signature.args[0].dtype)
        builder.store(element, target).set_metadata("noalias", _table_scope(builder.module))
        return context.get_dummy_value()

    return types.void(array, index, value), _generate


def _wide_vectors_intrinsic(_typing: Any) -> Any:
    def _generate(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')  # llvmlite refuses unknown attributes
        return context.get_dummy_value()

    return types.void(), _generate


_load_entry: Any = _load_intrinsic("alias.scope")  # an element of the table
_load: Any = _load_intrinsic("noalias")  # an element of any other array
_store: Any = intrinsic(_store_intrinsic)
_use_wide_vectors: Any = intrinsic(_wide_vectors_intrinsic)  # of 512 bits, up to 9 % faster; the default is 256


# -- compiled loops -------------------------------------------------------------------------------


@compiled
def fill_seeded(words: Words, k0: np.uint64, k1: np.uint64, chunk: np.uint64) -> None:  # pragma: no cover (compiled)
    """Write successive chunks of a seeded sequence.

    Args:
        words: Receives the words.
        k0: The low word of the sequence's key.
        k1: The high word.
        chunk: The number of the first chunk.
    """
    _use_wide_vectors()
    half = _U(SEED_CHUNK // 2)
    for start in range(0, len(words), SEED_CHUNK):
        block = words[start : start + SEED_CHUNK]
        for j in range(half):
            first, second = _threefry(chunk * half + j, _U(0), k0, k1)
            block[j] = first
            block[j + half] = second
        chunk += _U(1)


@inlined
def _position(value: float, scale: float, center: float, low: float, high: float) -> np.uint64:  # pragma: no cover
    """The position of an input, in the low bits.

    From `low` to `high` every float64 is an integer plus `POSITION_SHIFT`. So the clamp is exact, even if the sum
    before it was rounded, overflowed or infinite.
    """
    shifted = value * scale + center
    shifted = shifted if shifted > low else low
    shifted = shifted if shifted < high else high
    return np.float64(shifted).view(np.uint64)


@inlined
def _trial_mask(trials_left: np.uint64, trial: int) -> np.uint64:  # pragma: no cover (compiled)
    """The bits of a position on two levels if there is such a trial, else zero."""
    return _TWO_LEVELS_MASK if trials_left > _U(trial) else _U(0)


@compiled
def draw(
    x: Array, words: Words, out: Array, sampler: CompiledSampler, group: np.uint64
) -> bool:  # pragma: no cover (compiled)
    """Draw one outcome for each input.

    Args:
        x: The inputs.
        words: Random words: one for each input, or with trials three, which are len(x) words apart.
        out: Receives the outcome in its low 16 bits. With trials, successes are added to it.
        sampler: What to draw from.
        group: With trials: trials 8 · group to 8 · group + 7 are drawn.

    Returns:
        Whether an input is not finite.
    """
    _use_wide_vectors()
    largest = _U(0)
    size = _U(len(x))
    # A loop in which a tuple is used is not vectorized.
    entries, column_bits, has_row_per_level, modulus, trials, _, scale, center, low, high = sampler
    rest_bits = _TABLE - column_bits
    rest_mask = (_U(1) << rest_bits) - _U(1)
    column_mask = (_U(1) << column_bits) - _U(1)
    if trials > _U(0):
        left = trials - _U(8) * group
        m0 = _trial_mask(left, 0)
        m1 = _trial_mask(left, 1)
        m2 = _trial_mask(left, 2)
        m3 = _trial_mask(left, 3)
        m4 = _trial_mask(left, 4)
        m5 = _trial_mask(left, 5)
        m6 = _trial_mask(left, 6)
        m7 = _trial_mask(left, 7)
        for j in range(size):
            value = np.float64(x[j])
            largest = max(largest, value.view(np.uint64) & _MAGNITUDE)
            position = _position(value, scale, center, low, high)
            a = words[j]
            b = words[j + size]
            c = words[j + _U(2) * size]
            successes = _U((a >> _U(40)) < (position & m0))
            successes += _U(((a >> _U(16)) & _TRIAL_MASK) < (position & m1))
            successes += _U((((a << _U(8)) & _TRIAL_MASK) | (b >> _U(56))) < (position & m2))
            successes += _U(((b >> _U(32)) & _TRIAL_MASK) < (position & m3))
            successes += _U(((b >> _U(8)) & _TRIAL_MASK) < (position & m4))
            successes += _U((((b << _U(16)) & _TRIAL_MASK) | (c >> _U(48))) < (position & m5))
            successes += _U(((c >> _U(24)) & _TRIAL_MASK) < (position & m6))
            successes += _U((c & _TRIAL_MASK) < (position & m7))
            out[j] += successes
    elif has_row_per_level:
        for j in range(size):
            value = np.float64(_load(x, j))
            largest = max(largest, value.view(np.uint64) & _MAGNITUDE)
            word = _load(words, j)
            # 24 random bits are added below the level: they carry over with the probability to round up.
            level = ((_position(value, scale, center, low, high) + (word >> _TABLE)) >> _POSITION) & _OUTCOME_MASK
            column = (word >> rest_bits) & column_mask
            entry = _load_entry(entries, (level << column_bits) | column)
            _store(out, j, column if (word & rest_mask) < (entry >> _ALIAS) else entry)
    else:
        for j in range(size):
            value = np.float64(_load(x, j))
            largest = max(largest, value.view(np.uint64) & _MAGNITUDE)
            word = _load(words, j)
            level = ((_position(value, scale, center, low, high) + (word >> _TABLE)) >> _POSITION) & _OUTCOME_MASK
            column = (word >> rest_bits) & column_mask
            entry = _load_entry(entries, column)
            noise = column if (word & rest_mask) < (entry >> _ALIAS) else entry & _OUTCOME_MASK
            _store(out, j, level + noise - (modulus if level + noise >= modulus else _U(0)))
    return bool(largest >= _INFINITY)


@compiled
def encode_words(
    x: Array, out: Array, sampler: CompiledSampler, add: bool, words: Words, buffer: Words
) -> bool:  # pragma: no cover (compiled)
    """Encode inputs with random words.

    Args:
        x: The inputs.
        out: Receives the outcomes. It may be the memory of `x` if its elements have the same size.
        sampler: What to draw from.
        add: Whether outcomes are added to `out`.
        words: `words_per_coordinate` chunks of random words for each chunk of inputs.
        buffer: Scratch space of one chunk.

    Returns:
        Whether an input is not finite.
    """
    is_bad = False
    is_direct = not add and sampler.trials == _U(0) and out.itemsize < x.itemsize
    words_per_chunk = sampler.words_per_coordinate * SEED_CHUNK
    groups = max(1, sampler.words_per_coordinate // 3)
    words_per_group = words_per_chunk // groups
    for start in range(0, len(x), SEED_CHUNK):
        inputs = x[start : start + SEED_CHUNK]
        outputs = out[start : start + SEED_CHUNK]
        chunk_words = words[start // SEED_CHUNK * words_per_chunk :]
        if is_direct:
            is_bad |= draw(inputs, chunk_words, outputs, sampler, _U(0))
            continue
        buffer[:] = 0
        for group in range(groups):
            is_bad |= draw(inputs, chunk_words[group * words_per_group :], buffer, sampler, _U(group))
        if add:
            for j in range(_U(len(outputs))):
                outputs[j] += buffer[j] & _OUTCOME_MASK
        else:
            for j in range(_U(len(outputs))):
                outputs[j] = buffer[j] & _OUTCOME_MASK
    return is_bad


@compiled
def encode_seeded(
    x: Array, out: Array, sampler: CompiledSampler, add: bool, keys: Words, chunks: Words, start: int, stop: int
) -> bool:  # pragma: no cover (compiled)
    """Encode columns of the rows, one row after the other, with seeded words.

    Args:
        x: The rows.
        out: Receives the outcomes of all rows.
        sampler: What to draw from.
        add: Whether outcomes are added to `out`.
        keys: The key of each row's sequence.
        chunks: The number of the first chunk that each row uses.
        start: The first column.
        stop: The column after the last.

    Returns:
        Whether an input is not finite.
    """
    is_bad = False
    words = np.empty(sampler.words_per_coordinate * SEED_CHUNK, dtype=np.uint64)
    buffer = np.empty(SEED_CHUNK, dtype=np.uint64)
    for row in range(len(x)):
        chunk = chunks[row]
        for first in range(start, stop, SEED_CHUNK):
            last = min(first + SEED_CHUNK, stop)
            fill_seeded(words, keys[row, 0], keys[row, 1], chunk)
            chunk += _U(sampler.words_per_coordinate)
            is_bad |= encode_words(x[row, first:last], out[first:last], sampler, add, words, buffer)
    return is_bad


@compiled
def check_sum(x: Array, total: Array, max_total: np.int64) -> np.uint64:  # pragma: no cover (compiled)
    """Check the arguments of a sum.

    Args:
        x: The inputs.
        total: The totals to which outcomes will be added.
        max_total: The largest allowed total.

    Returns:
        1 if an input is not finite, plus 2 if a total is negative or above `max_total`.
    """
    flags = _U(0)
    for j in range(_U(len(total))):
        flags |= _U(2) * _U((total[j] < 0) | (total[j] > max_total))
    for j in range(_U(len(x))):
        flags |= _U((np.float64(x[j]).view(np.uint64) & _MAGNITUDE) >= _INFINITY)
    return flags


# -- threads --------------------------------------------------------------------------------------


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=max(32, usable_cores()), thread_name_prefix="rqm-encode")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork


def run_in_blocks(
    task: Callable[[int, int], bool],
    size: int,
    threads: int | None,
    min_block: int = 64 * SEED_CHUNK,
    unit: int = 1,
) -> bool:
    """Run a task over all of `range(size)` on several threads.

    There are many blocks for each thread, and a thread that is free takes the next one, so a busy processor delays no
    other. If one block fails or is interrupted, the threads stop after their block, before the error is raised.

    Args:
        task: Called as `task(start, stop)` for each block.
        size: Number of items.
        threads: The largest number of threads; None: one for each processor.
        min_block: A thread is used for at least this many items. The default suits coordinates to be
            encoded: fewer take less time than starting a thread.
        unit: Every block but the last is a multiple of this.

    Returns:
        Whether any call returned True.
    """
    workers = max(1, min(usable_cores() if threads is None else threads, size // min_block))
    step = size if workers == 1 else unit * -(-max(min_block, size // (16 * workers)) // unit)
    starts = iter(range(0, size, max(step, 1)))
    lock = Lock()
    is_stopped = False

    def work() -> bool:
        nonlocal is_stopped
        result = False
        try:
            while not is_stopped:
                with lock:
                    start = next(starts, None)
                if start is None:
                    break
                result |= task(start, min(start + step, size))
        except BaseException:
            is_stopped = True
            raise
        return result

    futures: list[Future[bool]] = []
    try:
        for _ in range(workers - 1):
            futures.append(_pool().submit(work))
    except RuntimeError:
        pass  # the interpreter is shutting down and starts no threads: this one does all the work
    try:
        result = work()
    finally:
        wait(futures)
    return any([result, *(future.result() for future in futures)])


def encode_rows(
    sampler: IntegerSampler,
    x: Array,
    rng: SecureRandom | SeededRandom | OneEach,
    out: Array,
    *,
    add: bool,
    threads: int | None,
) -> bool:
    """Encode the rows of an array, one after the other, into one vector.

    Args:
        sampler: What to draw from.
        x: Inputs, two-dimensional, contiguous, float32 or float64.
        rng: The source of random words. Seeded outcomes do not depend on `threads`.
        out: The vector, contiguous.
        add: Whether outcomes are added to `out`. If not, each row overwrites the one before.
        threads: The largest number of threads; None: one for each processor.

    Returns:
        Whether an input was not finite.
    """
    spec = compiled_sampler(sampler)
    words_per_coordinate = sampler.words_per_coordinate
    if isinstance(rng, SecureRandom):

        def task(start: int, stop: int) -> bool:
            # 2**17 words stay in the cache until they are used.
            piece = SEED_CHUNK * max(1, 2**17 // (SEED_CHUNK * words_per_coordinate))
            words = np.empty(words_per_coordinate * piece, dtype=np.uint64)
            buffer = np.empty(SEED_CHUNK, dtype=np.uint64)
            fill = rng.keystream()
            is_bad = False
            for row in x:
                for first in range(start, stop, piece):
                    last = min(first + piece, stop)
                    piece_words = words[: words_per_coordinate * SEED_CHUNK * -(-(last - first) // SEED_CHUNK)]
                    fill(piece_words)
                    is_bad |= bool(encode_words(row[first:last], out[first:last], spec, add, piece_words, buffer))
            return is_bad
    else:
        keys, first_chunks = _reserve(rng, len(x), -(-x.shape[1] // SEED_CHUNK) * words_per_coordinate)

        def task(start: int, stop: int) -> bool:
            chunks = first_chunks + _U(start // SEED_CHUNK * words_per_coordinate)
            return bool(encode_seeded(x, out, spec, add, keys, chunks, start, stop))

    return run_in_blocks(task, x.shape[1], threads, unit=SEED_CHUNK)


def _reserve(rng: SeededRandom | OneEach, rows: int, chunks: int) -> tuple[Words, Words]:
    """The key of every row's sequence and the number of its first chunk."""
    if isinstance(rng, SeededRandom):
        key, first = rng.reserve(chunks * rows)
        return np.tile(key, (rows, 1)), np.arange(rows, dtype=np.uint64) * _U(chunks) + _U(first & 0xFFFFFFFFFFFFFFFF)
    if len(rng.sources) != rows:
        raise ValueError(f"rng has {len(rng.sources)} sources: must have one for each of {rows} rows")
    reserved = [source.reserve(chunks) for source in rng.sources]
    return np.stack([key for key, _ in reserved]), np.array([first for _, first in reserved], dtype=np.uint64)
