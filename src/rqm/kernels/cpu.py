"""The CPU encoder: clip, round and draw in one pass, in vector registers.

The compiled loops are serial and release the interpreter's lock; a small pool of threads runs them over blocks. They
share one file because the compiler's cache of a function does not notice when a function it calls has changed in
another file (``threefry`` and ChaCha20, which are compiled in here, are fixed by known answers).
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
from rqm.kernels import chacha
from rqm.kernels.chacha import wide
from rqm.kernels.recipe import ALIAS_BITS, POSITION_BITS, SHIFT, TABLE_BITS, Recipe
from rqm.randomness import CHUNK, KEY_WORDS, KeyWords, OneEach, SecureRandom, SeededRandom, Words, threefry

Array = npt.NDArray[Any]

GRAIN = 64 * CHUNK
"""A thread is given at least this many coordinates."""

_U = np.uint64
_HALF = CHUNK // 2
_MAGNITUDE = _U(2**63 - 1)  # all bits of a float64 but its sign
_INFINITY = _U(0x7FF0000000000000)  # the magnitude of infinity; those of NaN are larger
_POSITION = _U(POSITION_BITS)
_PART = _U(2**POSITION_BITS - 1)
_ALL_OF_TWO = _U(2 ** (POSITION_BITS + 1) - 1)
_TABLE = _U(TABLE_BITS)
_ALIAS = _U(ALIAS_BITS)
_OUTCOME = _U(2**ALIAS_BITS - 1)

compiled = njit(cache=True, nogil=True, error_model="numpy")
_threefry = njit(inline="always", error_model="numpy")(threefry)
_fill_secure = chacha.fill


class Law(NamedTuple):
    """A recipe in the types that the compiled loops take."""

    entries: Words
    columns: np.uint64
    rows: bool
    modulus: np.uint64
    trials: np.uint64
    scale: float
    centre: float
    low: float  # the ends of the clamp plus SHIFT, like the positions that they clamp
    high: float


def law_of(recipe: Recipe) -> Law:
    """Translate a recipe."""
    return Law(
        entries=recipe.entries,
        columns=_U(recipe.columns),
        rows=recipe.rows,
        modulus=_U(recipe.modulus),
        trials=_U(recipe.trials),
        scale=recipe.scale,
        centre=recipe.centre,
        low=recipe.low + SHIFT,
        high=recipe.high + SHIFT,
    )


# -- hints to the compiler -----------------------------------------------------------------------------
# A loop that reads a table at unpredictable places runs in vector registers only if the compiler knows that nothing
# else it touches is the table: ``_look_up``, ``_get`` and ``_put`` say so. They do not check bounds.


def _table_scope(module: Any) -> Any:
    domain = module.add_metadata([ir.MetaDataString(module, "rqm")])
    return module.add_metadata([module.add_metadata([ir.MetaDataString(module, "table"), domain])])


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [index])


def _reader(tag: str) -> Any:
    def read(_typing: Any, array: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = builder.load(_pointer(context, builder, signature.args[0], *args))
            value.set_metadata(tag, _table_scope(builder.module))
            return value

        return array.dtype(array, index), generate

    return intrinsic(read)


_look_up = _reader("alias.scope")  # an entry of the table
_get = _reader("noalias")  # an element of any other array


def _write(_typing: Any, array: Any, index: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = _pointer(context, builder, signature.args[0], *args[:2])
        element = context.cast(builder, args[2], signature.args[2], signature.args[0].dtype)
        builder.store(element, target).set_metadata("noalias", _table_scope(builder.module))
        return context.get_dummy_value()

    return types.void(array, index, value), generate


_put: Any = intrinsic(_write)


# -- the compiled loops --------------------------------------------------------------------------------


@compiled
def fill(words: Words, k0: np.uint64, k1: np.uint64, chunk: np.uint64) -> None:  # pragma: no cover (compiled)
    """Write one chunk of a seeded sequence."""
    wide()
    for j in range(_U(_HALF)):
        a, b = _threefry(chunk * _U(_HALF) + j, _U(0), k0, k1)
        words[j] = a
        words[j + _U(_HALF)] = b


@njit(inline="always", error_model="numpy")
def _place(value: float, scale: float, centre: float, low: float, high: float) -> np.uint64:  # pragma: no cover
    """The position of an input, in the low bits.

    From ``low`` to ``high`` every float64 is a whole number plus SHIFT, so the clamp is one in integers, whatever the
    sum before it was: rounded, overflowing or infinite.
    """
    near = value * scale + centre
    near = near if near > low else low
    near = near if near < high else high
    return np.float64(near).view(np.uint64)


@compiled
def draw(x: Array, words: Words, out: Array, law: Law, group: np.uint64) -> bool:  # pragma: no cover (compiled)
    """Draw one outcome for each input; return whether an input is not finite.

    From a table: one word each; the outcome is in the low 16 bits of ``out``. With trials: add to ``out`` the successes
    among trials 8·group … 8·group + 7, from three words each, of which the second and third lie len(x) and 2·len(x)
    further on.
    """
    wide()
    largest = _U(0)
    size = _U(len(x))
    # A tuple that is used inside a loop keeps the loop out of vector registers.
    entries, columns, rows, modulus, trials, scale, centre, low, high = law
    rest_bits = _TABLE - columns
    rest_mask = (_U(1) << rest_bits) - _U(1)
    column_mask = (_U(1) << columns) - _U(1)
    if trials > _U(0):
        left = trials - _U(8) * group
        m0, m1, m2, m3 = _mask(left, 0), _mask(left, 1), _mask(left, 2), _mask(left, 3)
        m4, m5, m6, m7 = _mask(left, 4), _mask(left, 5), _mask(left, 6), _mask(left, 7)
        for j in range(size):
            value = np.float64(_get(x, j))
            largest = max(largest, value.view(np.uint64) & _MAGNITUDE)
            place = _place(value, scale, centre, low, high)
            a, b, c = _get(words, j), _get(words, j + size), _get(words, j + _U(2) * size)
            ones = _U((a >> _U(40)) < (place & m0))
            ones += _U(((a >> _U(16)) & _PART) < (place & m1))
            ones += _U((((a << _U(8)) & _PART) | (b >> _U(56))) < (place & m2))
            ones += _U(((b >> _U(32)) & _PART) < (place & m3))
            ones += _U(((b >> _U(8)) & _PART) < (place & m4))
            ones += _U((((b << _U(16)) & _PART) | (c >> _U(48))) < (place & m5))
            ones += _U(((c >> _U(24)) & _PART) < (place & m6))
            ones += _U((c & _PART) < (place & m7))
            _put(out, j, _get(out, j) + ones)
    elif rows:
        for j in range(size):
            value = np.float64(_get(x, j))
            largest = max(largest, value.view(np.uint64) & _MAGNITUDE)
            word = _get(words, j)
            # 24 random bits are added below the level: they carry over with the probability to round up.
            level = ((_place(value, scale, centre, low, high) + (word >> _TABLE)) >> _POSITION) & _OUTCOME
            column = (word >> rest_bits) & column_mask
            entry = _look_up(entries, (level << columns) | column)
            _put(out, j, column if (word & rest_mask) < (entry >> _ALIAS) else entry)
    else:
        for j in range(size):
            value = np.float64(_get(x, j))
            largest = max(largest, value.view(np.uint64) & _MAGNITUDE)
            word = _get(words, j)
            level = ((_place(value, scale, centre, low, high) + (word >> _TABLE)) >> _POSITION) & _OUTCOME
            column = (word >> rest_bits) & column_mask
            entry = _look_up(entries, column)
            noise = column if (word & rest_mask) < (entry >> _ALIAS) else entry & _OUTCOME
            _put(out, j, level + noise - (modulus if level + noise >= modulus else _U(0)))
    return bool(largest >= _INFINITY)


@njit(inline="always", error_model="numpy")
def _mask(left: np.uint64, trial: int) -> np.uint64:  # pragma: no cover (compiled)
    """The bits of a position on two levels if the trial is among those left, else zero."""
    return _ALL_OF_TWO if left > _U(trial) else _U(0)


@compiled
def draw_chunk(
    x: Array, words: Words, out: Array, drawn: Words, law: Law, add: bool, group: np.uint64, groups: np.uint64
) -> bool:  # pragma: no cover (compiled)
    """``draw`` to ``out``, or by way of a buffer: where outcomes are added up, or ``out`` may be ``x`` itself."""
    if not add and law.trials == _U(0) and out.itemsize < x.itemsize:
        return draw(x, words, out, law, group)
    if group == _U(0):
        drawn[:] = 0
    bad = draw(x, words, drawn, law, group)
    if group + _U(1) == groups:
        if add:
            for j in range(_U(len(out))):
                out[j] += drawn[j] & _OUTCOME
        else:
            for j in range(_U(len(out))):
                out[j] = drawn[j] & _OUTCOME
    return bad


@compiled
def draw_seeded(
    x: Array, out: Array, law: Law, add: bool, k0: np.uint64, k1: np.uint64, chunk: np.uint64
) -> bool:  # pragma: no cover (compiled)
    """Encode a run of inputs with the words of a seeded sequence from a chunk on."""
    bad = False
    planes, groups = (1, _U(1)) if law.trials == _U(0) else (3, (law.trials + _U(7)) // _U(8))
    words = np.empty(planes * CHUNK, dtype=np.uint64)
    drawn = np.empty(CHUNK, dtype=np.uint64)
    for start in range(0, len(x), CHUNK):
        stop = min(start + CHUNK, len(x))
        for group in range(_U(groups)):
            for plane in range(planes):
                fill(words[plane * CHUNK : (plane + 1) * CHUNK], k0, k1, chunk)
                chunk += _U(1)
            bad |= draw_chunk(x[start:stop], words, out[start:stop], drawn, law, add, _U(group), groups)
    return bad


@compiled
def draw_secure(x: Array, out: Array, law: Law, add: bool, key: KeyWords) -> bool:  # pragma: no cover (compiled)
    """Encode a run of inputs with the words of a secure stream, from its beginning."""
    bad = False
    chunk = _U(0)
    planes, groups = (1, _U(1)) if law.trials == _U(0) else (3, (law.trials + _U(7)) // _U(8))
    words = np.empty(planes * CHUNK, dtype=np.uint64)
    drawn = np.empty(CHUNK, dtype=np.uint64)
    for start in range(0, len(x), CHUNK):
        stop = min(start + CHUNK, len(x))
        for group in range(_U(groups)):
            for plane in range(planes):
                _fill_secure(words[plane * CHUNK : (plane + 1) * CHUNK], key, chunk)
                chunk += _U(1)
            bad |= draw_chunk(x[start:stop], words, out[start:stop], drawn, law, add, _U(group), groups)
    return bad


@compiled
def rows_seeded(
    x: Array, out: Array, law: Law, add: bool, keys: Words, chunks: Words, start: int, stop: int
) -> bool:  # pragma: no cover (compiled)
    """``draw_seeded`` of the same part of every row, one after the other."""
    bad = False
    for i in range(len(x)):
        bad |= draw_seeded(x[i, start:stop], out[start:stop], law, add, keys[i, 0], keys[i, 1], chunks[i])
    return bad


@compiled
def rows_secure(
    x: Array, out: Array, law: Law, add: bool, keys: Array, start: int, stop: int
) -> bool:  # pragma: no cover (compiled)
    """``draw_secure`` of the same part of every row, one after the other."""
    bad = False
    for i in range(len(x)):
        bad |= draw_secure(x[i, start:stop], out[start:stop], law, add, keys[i])
    return bad


@compiled
def unusable(x: Array, total: Array, room: np.int64) -> np.uint64:  # pragma: no cover (compiled)
    """Return 1 if an input is not finite, plus 2 if a total is negative or above ``room``."""
    bad = _U(0)
    for j in range(_U(len(total))):
        bad |= _U(2) * _U((total[j] < 0) | (total[j] > room))
    for j in range(_U(len(x))):
        bad |= _U((np.float64(x[j]).view(np.uint64) & _MAGNITUDE) >= _INFINITY)
    return bad


# -- the drivers -----------------------------------------------------------------------------------------


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=max(32, usable_cores()), thread_name_prefix="rqm-encode")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork


def in_blocks(
    task: Callable[[int, int], bool], size: int, threads: int | None, grain: int = GRAIN, unit: int = 1
) -> bool:
    """Run ``task(start, stop)`` over all of ``range(size)`` on some threads; return whether any of them said so.

    A thread is given ``grain`` at least, and every block but the last is a multiple of ``unit``. There are many blocks
    for each thread, and whoever is free takes the next: a busy processor delays no other. If one fails or is
    interrupted, the others stop after their block, and all have stopped before the error goes on.
    """
    workers = max(1, min(usable_cores() if threads is None else threads, size // grain))
    step = size if workers == 1 else unit * -(-max(grain, size // (16 * workers)) // unit)
    starts, lock = iter(range(0, size, max(step, 1))), Lock()
    stop = False

    def work() -> bool:
        nonlocal stop
        found = False
        try:
            while not stop:
                with lock:
                    start = next(starts, None)
                if start is None:
                    break
                found |= task(start, min(start + step, size))
        except BaseException:
            stop = True
            raise
        return found

    others: list[Future[bool]] = []
    try:
        for _ in range(workers - 1):
            others.append(_pool().submit(work))
    except RuntimeError:
        pass  # the interpreter is shutting down and starts no threads: this one does it all
    try:
        found = work()
    finally:
        wait(others)
    return any([found, *(other.result() for other in others)])


def encode_into(
    recipe: Recipe, x: Array, rng: SecureRandom | SeededRandom | OneEach, out: Array, *, add: bool, threads: int | None
) -> bool:
    """Encode the rows of ``x`` one after the other into ``out``; return whether an input was not finite.

    Each row is written over the one before, or added to what is there. ``x`` (two-dimensional, float32 or float64)
    and ``out`` (one-dimensional) are contiguous.
    """
    law, size, need = law_of(recipe), x.shape[1], recipe.words
    if isinstance(rng, SecureRandom):

        def task(start: int, stop: int) -> bool:
            keys = np.stack([rng.key() for _ in x]) if len(x) else np.empty((0, KEY_WORDS), dtype=np.uint32)
            return bool(rows_secure(x, out, law, add, keys, start, stop))
    else:
        keys, firsts = _reserved(rng, len(x), -(-size // CHUNK) * need)

        def task(start: int, stop: int) -> bool:
            return bool(rows_seeded(x, out, law, add, keys, firsts + _U(start // CHUNK * need), start, stop))

    return in_blocks(task, size, threads, unit=CHUNK)


def _reserved(rng: SeededRandom | OneEach, rows: int, chunks: int) -> tuple[Words, Words]:
    """For every row the key of its sequence and the number of its first chunk."""
    if isinstance(rng, SeededRandom):
        key, first = rng.reserve(chunks * rows)
        return np.tile(key, (rows, 1)), np.arange(rows, dtype=np.uint64) * _U(chunks) + _U(first & 0xFFFFFFFFFFFFFFFF)
    if len(rng.sources) != rows:
        raise ValueError(f"rng has {len(rng.sources)} sources: must have one for each of {rows} rows")
    taken = [source.reserve(chunks) for source in rng.sources]
    return np.stack([key for key, _ in taken]), np.array([first for _, first in taken], dtype=np.uint64)
