"""The CPU encoder: clip, round and draw in one pass, in vector registers.

The compiled loops are serial and release the interpreter's lock; a small pool of threads runs them over blocks. They
share one file because the compiler's cache of a function does not notice when a function it calls has changed in
another file (``threefry``, which is also compiled here, is fixed by known answers).
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from rqm.kernels.recipe import ALIAS_BITS, POSITION_BITS, TABLE_BITS, Recipe
from rqm.randomness import CHUNK, SecureRandom, SeededRandom, Words, threefry

Array = npt.NDArray[Any]

GRAIN = 64 * CHUNK
"""A thread is given at least this many coordinates."""
PIECE = 16 * CHUNK
"""Words of keystream made at a time: 128 KiB, which stay in the cache until they are used."""

_U = np.uint64
_ALL = _U(2**64 - 1)
_HALF = CHUNK // 2
_NOT_FINITE = _U(0x7FF0000000000000)  # the exponent of a float64 infinity or NaN
_LOW_BITS = _U(2**51 - 1)
_POSITION = _U(POSITION_BITS)
_PART = _U(2**POSITION_BITS - 1)
_TABLE = _U(TABLE_BITS)
_ALIAS = _U(ALIAS_BITS)
_ALIAS_MASK = _U(2**ALIAS_BITS - 1)

compiled = njit(cache=True, nogil=True, error_model="numpy")
_threefry = njit(inline="always", error_model="numpy")(threefry)


class Law(NamedTuple):
    """A recipe in the types that the compiled loops take."""

    entries: Words
    columns: np.uint64
    row_mask: np.uint64
    level_mask: np.uint64
    modulus: np.uint64
    trials: np.uint64
    low: np.uint64
    high: np.uint64
    clip: float
    scale: float
    centre: float


def law_of(recipe: Recipe) -> Law:
    """Translate a recipe: with rows the level selects one, without it is added to the outcome."""
    return Law(
        entries=recipe.entries,
        columns=_U(recipe.columns),
        row_mask=_ALL if recipe.rows else _U(0),
        level_mask=_U(0) if recipe.rows else _ALL,
        modulus=_U(recipe.modulus),
        trials=_U(recipe.trials),
        low=_U(recipe.low),
        high=_U(recipe.high),
        clip=recipe.clip,
        scale=recipe.scale,
        centre=recipe.centre,
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


@intrinsic
def _put(_typing: Any, array: Any, index: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = _pointer(context, builder, signature.args[0], *args[:2])
        element = context.cast(builder, args[2], signature.args[2], signature.args[0].dtype)
        builder.store(element, target).set_metadata("noalias", _table_scope(builder.module))
        return context.get_dummy_value()

    return types.void(array, index, value), generate


@intrinsic
def _wide(_typing: Any) -> Any:
    """Use the widest vectors that the processor has; the compiler's own choice stops at 256 bits."""

    def generate(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')  # a name the wrapper does not list
        return context.get_dummy_value()

    return types.void(), generate


# -- the compiled loops --------------------------------------------------------------------------------


@compiled
def fill(words: Words, k0: np.uint64, k1: np.uint64, chunk: np.uint64) -> None:  # pragma: no cover (compiled)
    """Write one chunk of a seeded sequence."""
    _wide()
    for j in range(_U(_HALF)):
        a, b = _threefry(chunk * _U(_HALF) + j, _U(0), k0, k1)
        words[j] = a
        words[j + _U(_HALF)] = b


@njit(inline="always", error_model="numpy")
def _place(
    value: float, clip: float, scale: float, centre: float, low: np.uint64, high: np.uint64
) -> np.uint64:  # pragma: no cover (compiled)
    """The position of an input. Rounding of floats ends at the clamp, which is in integers."""
    value = value if value > -clip else -clip
    value = value if value < clip else clip
    near = np.float64(value * scale + centre)
    position = near.view(np.uint64) & _LOW_BITS
    position = position if position > low else low
    return position if position < high else high


@compiled
def draw(x: Array, words: Words, drawn: Words, law: Law, group: np.uint64) -> np.uint64:  # pragma: no cover (compiled)
    """Draw one outcome for each input; return whether an input is not finite.

    From a table: one word each. With trials: add to ``drawn`` the successes among trials 8·group … 8·group + 7, from
    three words each, of which the second and third lie len(x) and 2·len(x) further on.
    """
    _wide()
    bad = _U(0)
    size = _U(len(x))
    # A tuple that is used inside a loop keeps the loop out of vector registers.
    entries, columns, row_mask, level_mask, modulus, trials, low, high, clip, scale, centre = law
    if trials == _U(0):
        rest_bits = _TABLE - columns
        rest_mask = (_U(1) << rest_bits) - _U(1)
        column_mask = (_U(1) << columns) - _U(1)
        for j in range(size):
            value = np.float64(_get(x, j))
            bad |= _U((value.view(np.uint64) & _NOT_FINITE) == _NOT_FINITE)
            position = _place(value, clip, scale, centre, low, high)
            word = _get(words, j)
            # 24 random bits are added below the level: they carry over with the probability to round up.
            level = (position + (word >> _TABLE)) >> _POSITION
            column = (word >> rest_bits) & column_mask
            entry = _look_up(entries, ((level & row_mask) << columns) | column)
            outcome = column if (word & rest_mask) < (entry >> _ALIAS) else entry & _ALIAS_MASK
            outcome += level & level_mask
            _put(drawn, j, outcome - (modulus if outcome >= modulus else _U(0)))
    else:
        left = trials - _U(8) * group
        m1, m2, m3 = _mask(left, 1), _mask(left, 2), _mask(left, 3)
        m4, m5, m6, m7 = _mask(left, 4), _mask(left, 5), _mask(left, 6), _mask(left, 7)
        for j in range(size):
            value = np.float64(_get(x, j))
            bad |= _U((value.view(np.uint64) & _NOT_FINITE) == _NOT_FINITE)
            position = _place(value, clip, scale, centre, low, high)
            a, b, c = _get(words, j), _get(words, j + size), _get(words, j + _U(2) * size)
            ones = _U((a >> _U(40)) < position)
            ones += _U(((a >> _U(16)) & _PART) < (position & m1))
            ones += _U((((a << _U(8)) & _PART) | (b >> _U(56))) < (position & m2))
            ones += _U(((b >> _U(32)) & _PART) < (position & m3))
            ones += _U(((b >> _U(8)) & _PART) < (position & m4))
            ones += _U((((b << _U(16)) & _PART) | (c >> _U(48))) < (position & m5))
            ones += _U(((c >> _U(24)) & _PART) < (position & m6))
            ones += _U((c & _PART) < (position & m7))
            _put(drawn, j, _get(drawn, j) + ones)
    return bad


@njit(inline="always", error_model="numpy")
def _mask(left: np.uint64, trial: int) -> np.uint64:  # pragma: no cover (compiled)
    """All ones if the trial is among those left, else zero."""
    return _ALL if left > _U(trial) else _U(0)


@compiled
def deliver(drawn: Words, out: Array, add: bool) -> None:  # pragma: no cover (compiled)
    """Write the outcomes to ``out``, or add them to it."""
    if add:
        for j in range(_U(len(out))):
            out[j] += drawn[j]
    else:
        for j in range(_U(len(out))):
            out[j] = drawn[j]


@compiled
def draw_seeded(
    x: Array, out: Array, law: Law, add: bool, k0: np.uint64, k1: np.uint64, chunk: np.uint64
) -> np.uint64:  # pragma: no cover (compiled)
    """Encode a run of inputs with the words of a seeded sequence from a chunk on."""
    bad = _U(0)
    planes, groups = (1, 1) if law.trials == 0 else (3, (int(law.trials) + 7) // 8)
    words = np.empty(planes * CHUNK, dtype=np.uint64)
    drawn = np.empty(CHUNK, dtype=np.uint64)
    for start in range(0, len(x), CHUNK):
        stop = min(start + CHUNK, len(x))
        drawn[:] = 0
        for group in range(groups):
            for plane in range(planes):
                fill(words[plane * CHUNK : (plane + 1) * CHUNK], k0, k1, chunk)
                chunk += _U(1)
            bad |= draw(x[start:stop], words, drawn, law, _U(group))
        deliver(drawn, out[start:stop], add)
    return bad


@compiled
def draw_words(x: Array, words: Words, out: Array, law: Law, add: bool) -> np.uint64:  # pragma: no cover (compiled)
    """Encode a run of inputs with the words given, chunk after chunk."""
    bad = _U(0)
    planes, groups = (1, 1) if law.trials == 0 else (3, (int(law.trials) + 7) // 8)
    drawn = np.empty(CHUNK, dtype=np.uint64)
    for start in range(0, len(x), CHUNK):
        stop = min(start + CHUNK, len(x))
        drawn[:] = 0
        for group in range(groups):
            used = words[planes * (start * groups + group * (stop - start)) :]
            bad |= draw(x[start:stop], used, drawn, law, _U(group))
        deliver(drawn, out[start:stop], add)
    return bad


@compiled
def unusable(x: Array, total: Array, room: np.int64) -> np.uint64:  # pragma: no cover (compiled)
    """Return 1 if an input is not finite, plus 2 if a total is negative or above ``room``."""
    bad = _U(0)
    for j in range(_U(len(total))):
        bad |= _U(2) * _U((total[j] < 0) | (total[j] > room))
    for j in range(_U(len(x))):
        bad |= _U((np.float64(x[j]).view(np.uint64) & _NOT_FINITE) == _NOT_FINITE)
    return bad


# -- the drivers -----------------------------------------------------------------------------------------


def usable_cores() -> int:
    """The processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=max(32, usable_cores()), thread_name_prefix="rqm-encode")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork


def in_blocks(task: Callable[[int, int], int], size: int, threads: int | None) -> int:
    """Run ``task(start, stop)`` over all of ``range(size)`` on some threads; return the flags that were raised."""
    parts = max(1, min(usable_cores() if threads is None else threads, size // GRAIN))
    chunks = -(-size // CHUNK)
    edges = [min(size, chunks * i // parts * CHUNK) for i in range(parts + 1)]
    others = [_pool().submit(task, edges[i], edges[i + 1]) for i in range(1, parts)]
    flags = task(0, edges[1])
    for other in others:
        flags |= other.result()
    return flags


def encode_into(
    recipe: Recipe, x: Array, rng: SecureRandom | SeededRandom, out: Array, *, add: bool, threads: int | None
) -> bool:
    """Encode the rows of ``x`` one after the other into ``out``; return whether an input was not finite.

    Each row is written over the one before, or added to what is there. ``x`` (two-dimensional, float32 or float64)
    and ``out`` (one-dimensional) are contiguous.
    """
    law, size, need = law_of(recipe), x.shape[1], recipe.words
    if isinstance(rng, SeededRandom):
        row_chunks = -(-size // CHUNK) * need
        (k0, k1), first = rng.reserve(row_chunks * len(x))

        def task(start: int, stop: int) -> int:
            bad = 0
            for i, row in enumerate(x):
                chunk = _U((first + i * row_chunks + start // CHUNK * need) & 0xFFFFFFFFFFFFFFFF)
                bad |= int(draw_seeded(row[start:stop], out[start:stop], law, add, k0, k1, chunk))
            return bad
    else:

        def task(start: int, stop: int) -> int:
            bad = 0
            piece = max(1, PIECE // need)
            stream = rng.keystream(min(piece, stop - start) * need)
            for a in range(start, stop, piece):
                b = min(a + piece, stop)
                for row in x:
                    bad |= int(draw_words(row[a:b], stream.next((b - a) * need), out[a:b], law, add))
            return bad

    return bool(in_blocks(task, size, threads))
