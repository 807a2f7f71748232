"""Secure words for the CPU's loops: ChaCha20 (RFC 8439), many blocks side by side in vector registers.

Nothing but sums, exclusive ors and rotations by fixed numbers: no branch and no address depends on key or words. The
counter has 64 bits, as in Bernstein's original: RFC 8439's, and the first 32 bits of its nonce. The published answers
fix this file, so those who call it from another one may keep their compiled loops.
"""

from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import njit, types
from numba.extending import intrinsic

from rqm.randomness import CHUNK, KeyWords, Words

BLOCKS = CHUNK // 8
"""Blocks of 64 bytes that make a chunk."""
_CONSTANTS = 0x61707865, 0x3320646E, 0x79622D32, 0x6B206574  # "expand 32-byte k"
_COLUMNS = (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)
_DIAGONALS = (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)
_WORD = ir.IntType(32)


def _lanes() -> int:
    """Blocks side by side: as many words of 32 bits as a vector register of this processor has."""
    features = binding.get_host_cpu_features()
    return 16 if features.get("avx512f") else 8 if features.get("avx2") else 4


LANES = _lanes()
"""What is written does not depend on it."""
_VECTOR = ir.VectorType(_WORD, LANES)


def _widest(_typing: Any) -> Any:
    """Use the widest vectors that the processor has; the compiler's own choice stops at 256 bits."""

    def generate(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')  # a name the wrapper does not list
        return context.get_dummy_value()

    return types.void(), generate


wide: Any = intrinsic(_widest)


def _all(number: int) -> Any:
    return ir.Constant(_VECTOR, [number] * LANES)


def _spread(builder: Any, value: Any) -> Any:
    """A number in every lane."""
    nothing = ir.Constant(_VECTOR, ir.Undefined)
    return builder.shuffle_vector(builder.insert_element(nothing, value, ir.Constant(_WORD, 0)), nothing, _all(0))


def _twenty_rounds(builder: Any, first: list[Any]) -> list[Any]:
    """The state after ten double rounds, as a loop."""
    before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
    builder.branch(loop)
    builder.position_at_end(loop)
    state, turn = [builder.phi(_VECTOR) for _ in first], builder.phi(_WORD)
    last = list(state)
    for a, b, c, d in _COLUMNS + _DIAGONALS:
        for one, other, mixed, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            last[one] = builder.add(last[one], last[other])
            turned = builder.xor(last[mixed], last[one])
            last[mixed] = builder.or_(builder.shl(turned, _all(by)), builder.lshr(turned, _all(32 - by)))
    for place, start, end in zip(state, first, last, strict=True):
        place.add_incoming(start, before)
        place.add_incoming(end, loop)
    done = builder.add(turn, ir.Constant(_WORD, 1))
    turn.add_incoming(ir.Constant(_WORD, 0), before)
    turn.add_incoming(done, loop)
    builder.cbranch(builder.icmp_unsigned("<", done, ir.Constant(_WORD, 10)), loop, after)
    builder.position_at_end(after)
    return last


def _side_by_side(_typing: Any, out: Any, key: Any, low: Any, high: Any) -> Any:
    """Write LANES blocks from the counter (low, high) on: word i of all of them BLOCKS·i words on from ``out``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, source = (
            context.make_array(kind)(context, builder, array).data
            for kind, array in zip(signature.args[:2], args[:2], strict=True)
        )
        keys = [_spread(builder, builder.load(builder.gep(source, [ir.Constant(_WORD, i)]))) for i in range(10)]
        count = builder.add(_spread(builder, args[2]), ir.Constant(_VECTOR, list(range(LANES))))
        first = [*map(_all, _CONSTANTS), *keys[:8], count, _spread(builder, args[3]), *keys[8:]]
        for i, (start, end) in enumerate(zip(first, _twenty_rounds(builder, first), strict=True)):
            place = builder.gep(target, [ir.Constant(_WORD, BLOCKS * i)])
            builder.store(builder.add(start, end), builder.bitcast(place, _VECTOR.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(out, key, low, high), generate


_blocks: Any = intrinsic(_side_by_side)


@njit(cache=True, nogil=True, error_model="numpy")
def fill(words: Words, key: KeyWords, chunk: np.uint64) -> None:  # pragma: no cover (compiled)
    """Write one chunk of the stream of a key: blocks BLOCKS·chunk and those after it.

    They stand as a table of 32-bit numbers with a column for each block, whose rows follow one another: so the loop
    writes whole registers. It is a fixed order of the keystream's bits, which are as unpredictable in any other.
    """
    wide()
    first = chunk * np.uint64(BLOCKS)
    rows = words.view(np.uint32)
    for j in range(0, BLOCKS, LANES):
        _blocks(rows[j:], key, np.uint32(first + np.uint64(j)), np.uint32(first >> np.uint64(32)))
