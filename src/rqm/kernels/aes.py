"""AES-256 in counter mode by the processor's own instructions, four blocks in a register: for masks, which are many.

The library's counter mode takes one block at a time and holds the interpreter's lock. Here a mask is made in the cache
and added at once. No branch and no address depends on key or stream: the instructions take the same time for all. The
published answers and the library's own stream fix this file. A processor without such instructions has the library.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import binding, ir
from numba import njit, types
from numba.extending import intrinsic

from rqm.kernels.chacha import wide

Bytes = npt.NDArray[np.uint8]
Lanes = npt.NDArray[np.unsignedinteger]

KEYS = 15
"""Keys of the rounds of AES-256, 16 bytes each."""
PIECE = 2**13
"""Bytes of a stream that are made at a time: they stay in the first cache."""
BESIDE = 8
"""Registers that are worked on together, since an instruction's result is there a few cycles later."""
_WORD, _BYTE = ir.IntType(32), ir.IntType(8)
_BLOCK = ir.VectorType(_WORD, 4)


def _width() -> int:
    """Blocks in a register that one instruction enciphers; 0: there is none for more than one."""
    features = binding.get_host_cpu_features()
    if not features.get("vaes") or not features.get("aes"):
        return 0
    return 4 if features.get("avx512f") else 2 if features.get("avx2") else 0


WIDTH = _width()
"""What is written does not depend on it."""


def _call(builder: Any, name: str, kind: Any, *args: Any) -> Any:
    """One of the compiler's functions for a processor's instruction, whose vectors are of 64-bit numbers."""
    wide_kind = ir.VectorType(ir.IntType(64), kind.count // 2)
    given = [builder.bitcast(one, wide_kind) if isinstance(one.type, ir.VectorType) else one for one in args]
    return builder.bitcast(builder.call(_function(builder, name, wide_kind, given), given), kind)


def _function(builder: Any, name: str, kind: Any, given: list[Any]) -> Any:
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(kind, [one.type for one in given]), name)


def _picked(builder: Any, one: Any, other: Any, places: list[int]) -> Any:
    return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(_WORD, len(places)), places))


def _expand(builder: Any, low: Any, high: Any) -> list[Any]:
    """The keys of all rounds (FIPS 197, section 5.2), from the two halves of a key."""
    zero, keys, both = ir.Constant(_BLOCK, [0] * 4), [low, high], [low, high]
    for turn in range(2, KEYS):
        own = turn % 2
        constant = ir.Constant(_BYTE, 0 if own else 1 << (turn // 2 - 1))
        last = _call(builder, "llvm.x86.aesni.aeskeygenassist", _BLOCK, both[1 - own], constant)
        mixed = _picked(builder, last, last, [2 if own else 3] * 4)
        for places in ([4, 0, 1, 2], [4, 4, 0, 1]):  # each word takes in all before it
            both[own] = builder.xor(both[own], _picked(builder, both[own], zero, places))
        both[own] = builder.xor(both[own], mixed)
        keys.append(both[own])
    return keys


def _data(context: Any, builder: Any, kind: Any, array: Any, vector: Any, place: int = 0) -> Any:
    """Where a vector of an array of bytes lies."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [ir.Constant(_WORD, place)]), vector.as_pointer())


def _schedule(_typing: Any, keys: Any, key: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kinds = signature.args
        halves = [builder.load(_data(context, builder, kinds[1], args[1], _BLOCK, at), align=1) for at in (0, 16)]
        for turn, one in enumerate(_expand(builder, *halves)):
            builder.store(one, _data(context, builder, kinds[0], args[0], _BLOCK, 16 * turn), align=1)
        return context.get_dummy_value()

    return types.void(keys, key), generate


def _encipher(_typing: Any, out: Any, keys: Any, first: Any) -> Any:
    """Write the stream of BESIDE · WIDTH blocks from a number on, which count from 0 as the standard's do."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        register = ir.VectorType(_WORD, 4 * WIDTH)
        kinds, end = signature.args, {4: ".512", 2: ".256"}[WIDTH]

        def key(turn: int) -> Any:
            one = builder.load(_data(context, builder, kinds[1], args[1], _BLOCK, 16 * turn), align=1)
            return _picked(builder, one, one, [0, 1, 2, 3] * WIDTH)

        nothing = ir.Constant(register, ir.Undefined)
        number = builder.insert_element(nothing, args[2], ir.Constant(_WORD, 0))
        number = builder.shuffle_vector(number, nothing, ir.Constant(register, [0] * 4 * WIDTH))
        last = ir.Constant(register, [0, 0, 0, 0xFFFFFFFF] * WIDTH)  # there are fewer than 2³² blocks
        swap = _function(builder, f"llvm.bswap.v{4 * WIDTH}i32", register, [last])
        start, state = key(0), []
        for place in range(BESIDE):
            ahead = [block for one in range(WIDTH) for block in (0, 0, 0, WIDTH * place + one)]
            count = builder.and_(builder.add(number, ir.Constant(register, ahead)), last)
            state.append(builder.xor(builder.call(swap, [count]), start))
        for turn in range(1, KEYS):
            name = "llvm.x86.aesni.aesenc" + ("last" if turn == KEYS - 1 else "") + end
            own = key(turn)
            state = [_call(builder, name, register, one, own) for one in state]
        for place, one in enumerate(state):
            builder.store(one, _data(context, builder, kinds[0], args[0], register, 16 * WIDTH * place), align=1)
        return context.get_dummy_value()

    return types.void(out, keys, first), generate


_set_keys: Any = intrinsic(_schedule)
_blocks: Any = intrinsic(_encipher)
compiled = njit(cache=True, nogil=True, error_model="numpy")


@compiled
def _keys(key: Bytes) -> Bytes:  # pragma: no cover (compiled)
    """The keys of all rounds."""
    keys = np.empty(16 * KEYS, dtype=np.uint8)
    _set_keys(keys, key)
    return keys


@compiled
def _fill(stream: Bytes, keys: Bytes, first: int, step: int) -> None:  # pragma: no cover (compiled)
    """Write the stream from a block on, ``step`` blocks at a time."""
    wide()
    for start in range(0, len(stream), 16 * step):
        _blocks(stream[start:], keys, np.uint32(first))
        first += step


@compiled
def _add(total: Lanes, key: Bytes, away: bool, step: int) -> None:  # pragma: no cover (compiled)
    wide()
    keys = _keys(key)
    stream = np.empty(PIECE, dtype=np.uint8)
    mask = stream.view(total.dtype)
    size, first = len(mask), 0
    for start in range(0, len(total), size):
        part = total[start : start + size]
        _fill(stream, keys, first, step)
        first += PIECE // 16
        if away:
            for j in range(len(part)):
                part[j] -= mask[j]
        else:
            for j in range(len(part)):
                part[j] += mask[j]


def add(total: Lanes, key: bytes, *, away: bool) -> None:
    """Add the stream of a key of 32 bytes to whole numbers, in place, or take it away; little-endian, and modular."""
    _add(total, np.frombuffer(key, dtype=np.uint8), away, WIDTH * BESIDE)
