"""The Triton kernel: encode, or encode and sum over clients, in one pass over the inputs.

The law is the CPU's, the bits are not. Seeded words come from Philox-4×32-7, counted by coordinate (64 bits), client or
group of trials (32) and call (32), under a 64-bit key. Seven rounds are the fewest that Salmon et al. (2011) found to
pass all of TestU01, as are the thirteen of Threefry on the CPU. Secure words come from ChaCha20 under a key that the
host takes from its operating system for every call. What bounds the speed is in ``results/cuda.md``.
"""
# mypy: disable-error-code="no-untyped-def, no-any-return, untyped-decorator"
# ruff: noqa: N803, PLR0124, SIM102, SIM108 (the compiler of kernels knows no ternaries of tensors)

from contextlib import nullcontext
from functools import lru_cache

import numpy as np
import torch
import triton
import triton.language as tl

from rqm.kernels.cuda_words import words_of
from rqm.kernels.recipe import ALIAS_BITS, POSITION_BITS, TABLE_BITS, Recipe
from rqm.randomness import SecureRandom, SeededRandom

BLOCK = 256
WARPS = 4
REGISTERS = {False: 64, True: 128}
DRAWS = {False: 2, True: 8}
"""Draws from a table that one call of Philox, or of ChaCha20 for secure words, is enough for."""
SHARE = {False: 20, True: 40}
"""Rows that one program handles: a multiple of the draws, and few enough that the last programs do not keep the others
waiting."""
MAX_SHARES = 65_535
"""Programs that a grid may have along its second axis."""
SPARE_BITS = TABLE_BITS - 32
"""The lowest bits of a threshold, looked up only where the 32 bits above them cannot decide."""


@triton.jit
def position_of(x, clip, scale, centre, low, high, WIDE: tl.constexpr):
    """The position of each input: as on the CPU, one product and one sum in float64, then the clamp in integers.

    ``clip`` may be a little too large (a float64 in float32): the clamp takes care of it.
    """
    x = tl.minimum(tl.maximum(x, -clip), clip)
    near = x.to(tl.float64) * scale + centre
    bits = near.to(tl.int64, bitcast=True)
    position = (bits - 0x4330000000000000) if WIDE else bits.to(tl.int32)  # a little below 0 or above: not wrapped
    return tl.minimum(tl.maximum(position, low), high)


@triton.jit
def _from_table(
    w0,
    w1,
    level,
    table_ptr,
    modulus,
    closest,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    ENTRIES: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Draw from the table with ``w1``, and if EXACT with eight more bits from ``w0`` where that ends in a tie.

    ``closest`` keeps the smallest difference that was seen: below 2**COLUMNS, there was a tie.
    """
    if COLUMNS == 0:
        outcome = level  # the only entry always draws 0
    else:
        column = w1 >> (32 - COLUMNS)
        index = ((level << COLUMNS) | column) if ROWS else column
        mine = w1 << COLUMNS
        entry = tl.load(table_ptr + index).to(tl.uint32, bitcast=True)
        own = mine < entry
        if EXACT:
            tie = (mine ^ entry) < (1 << COLUMNS)
            spare = tl.load(table_ptr + ENTRIES + index, mask=tie, other=0)
            own = tl.where(tie, (w0 & 0xFF).to(tl.int32) < spare, own)
        else:
            closest = tl.minimum(closest, mine ^ entry)
        outcome = tl.where(own, index, entry) & ((1 << COLUMNS) - 1)
        if not ROWS:
            outcome += level
            outcome = tl.where(outcome >= modulus, outcome - modulus, outcome)
    return outcome, closest


@triton.jit
def _rows(
    x_ptr,
    out_ptr,
    table_ptr,
    numbers_ptr,
    low,
    high,
    modulus,
    rows,
    share,
    width,
    count,
    key,
    key1,
    key2,
    key3,
    start,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    ENTRIES: tl.constexpr,
    TRIALS: tl.constexpr,
    WIDE: tl.constexpr,
    SUM: tl.constexpr,
    RAGGED: tl.constexpr,
    BLOCK: tl.constexpr,
    SECURE: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Encode one block of some rows; store the outcomes, or return their sum."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    stride = width.to(tl.int64)
    scale, centre = tl.load(numbers_ptr), tl.load(numbers_ptr + 1)
    clip = tl.load(numbers_ptr + 2).to(x_ptr.dtype.element_ty)
    c0, c1, call = offsets.to(tl.uint32), (offsets >> 32).to(tl.uint32), start.to(tl.uint32)
    at_once: tl.constexpr = 16 if SECURE else 4  # a word is a trial, two words are a draw from the table
    groups: tl.constexpr = (TRIALS + at_once - 1) // at_once
    step: tl.constexpr = 1 if TRIALS else at_once // 2
    finite = tl.zeros([BLOCK], x_ptr.dtype.element_ty)
    closest = tl.full([BLOCK], 0xFFFFFFFF, tl.uint32)
    total = tl.zeros([BLOCK], tl.int32)
    begin = tl.program_id(1) * (share // step)
    row_ptr = x_ptr + begin * step * stride
    for turn in range(begin, tl.minimum(begin + share // step, (rows + step - 1) // step)):
        if TRIALS == 0:
            words = words_of(key, key1, key2, key3, c0, c1, tl.full([], turn, tl.uint32), call, SECURE)
        for half in tl.static_range(step):
            inside = offsets < stride
            if half > 0 and RAGGED:  # rows after the first may be shorter, or missing
                inside = offsets < tl.minimum(stride, count - (step * turn + half) * stride)
            x = tl.load(row_ptr + offsets, mask=inside, other=0.0, eviction_policy="evict_first")
            row_ptr += stride
            finite = tl.fma(x, tl.zeros([BLOCK], x.dtype), finite)  # NaN from the first input that is not finite
            position = position_of(x, clip, scale, centre, low, high, WIDE)
            if TRIALS:
                outcome = tl.zeros([BLOCK], tl.uint32)
                for group in range(groups):
                    place = tl.full([], turn * groups + group, tl.uint32)
                    trials = words_of(key, key1, key2, key3, c0, c1, place, call, SECURE)
                    left = TRIALS - at_once * group
                    for trial in tl.static_range(at_once):
                        limit = tl.where(left > trial, position, 0).to(tl.uint32)
                        outcome += ((trials[trial] >> 8) < limit).to(tl.uint32)
            else:
                w0, w1 = words[2 * half], words[2 * half + 1]
                # 24 random bits are added below the level: they carry over with the probability to round up.
                if WIDE:
                    level = ((position + (w0 >> 8)) >> 24).to(tl.uint32)
                else:
                    level = (position.to(tl.uint32) + (w0 >> 8)) >> 24
                outcome, closest = _from_table(
                    w0, w1, level, table_ptr, modulus, closest, COLUMNS, ROWS, ENTRIES, EXACT
                )
            if not SUM:
                here = (turn * step + half) * stride + offsets
                tl.store(out_ptr + here, outcome.to(out_ptr.dtype.element_ty), mask=inside)
            elif half > 0 and RAGGED:
                total += tl.where(inside, outcome, 0).to(tl.int32)
            else:
                total += outcome.to(tl.int32)
    return total, finite, closest


@triton.jit(
    do_not_specialize=[
        "low",
        "high",
        "modulus",
        "rows",
        "share",
        "width",
        "count",
        "key",
        "key1",
        "key2",
        "key3",
        "start",
    ],
    do_not_specialize_on_alignment=["x_ptr", "out_ptr"],  # or inputs and outputs differ in layout: slow exchanges
)
def _kernel(
    x_ptr,
    out_ptr,
    flag_ptr,
    table_ptr,
    numbers_ptr,
    low,
    high,
    modulus,
    rows,
    share,
    width,
    count,
    key,
    key1,
    key2,
    key3,
    start,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    ENTRIES: tl.constexpr,
    TRIALS: tl.constexpr,
    WIDE: tl.constexpr,
    SUM: tl.constexpr,
    RAGGED: tl.constexpr,
    BLOCK: tl.constexpr,
    SECURE: tl.constexpr,
):
    total, finite, closest = _rows(
        x_ptr,
        out_ptr,
        table_ptr,
        numbers_ptr,
        low,
        high,
        modulus,
        rows,
        share,
        width,
        count,
        key,
        key1,
        key2,
        key3,
        start,
        COLUMNS,
        ROWS,
        ENTRIES,
        TRIALS,
        WIDE,
        SUM,
        RAGGED,
        BLOCK,
        SECURE,
        False,
    )
    if COLUMNS > 0 and TRIALS == 0:
        if tl.min(closest) < (1 << COLUMNS):  # once in 2**(32 - COLUMNS) draws: do the block again, in full
            total, finite, closest = _rows(
                x_ptr,
                out_ptr,
                table_ptr,
                numbers_ptr,
                low,
                high,
                modulus,
                rows,
                share,
                width,
                count,
                key,
                key1,
                key2,
                key3,
                start,
                COLUMNS,
                ROWS,
                ENTRIES,
                TRIALS,
                WIDE,
                SUM,
                RAGGED,
                BLOCK,
                SECURE,
                True,
            )
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(flag_ptr + tl.zeros([BLOCK], tl.int32), 1, mask=finite != finite)
    if SUM:
        tl.atomic_add(out_ptr + offsets, total, mask=offsets < width, sem="relaxed")


def is_wide(recipe: Recipe) -> bool:
    """Whether positions need 64 bits, with room for a clip that float32 rounds up."""
    return recipe.high >= 2**31 - 2**10


Source = SecureRandom | SeededRandom


def encode(recipe: Recipe, x: torch.Tensor, rng: Source, out: torch.Tensor) -> bool:
    """Encode ``x`` into ``out``, its halves (or eighths) as rows; return whether an input was not finite."""
    width = x.numel() if recipe.trials else -(-x.numel() // DRAWS[rng.private])
    return bool(width) and bool(launch(recipe, x, rng, out, width, sum_rows=False).item())


def encode_sum(recipe: Recipe, x: torch.Tensor, rng: Source, total: torch.Tensor, check: bool = True) -> bool:
    """Encode the rows of ``x`` and add their outcomes to ``total``; return whether ``check`` found NaN or infinity."""
    width = x[0].numel()
    if not width:
        return False
    flag = launch(recipe, x, rng, total, width, sum_rows=True)
    return check and bool(flag.item())


def launch(
    recipe: Recipe, x: torch.Tensor, rng: Source, out: torch.Tensor, width: int, *, sum_rows: bool
) -> torch.Tensor:
    """Start the kernel; return the flag that it will set if an input is not finite."""
    if x.dtype == torch.float32 and not 1e-30 < recipe.clip < 1e30:
        x = x.double()  # the clip itself is beyond float32
    secure = rng.private
    *key, start = _key(rng)
    flag = torch.zeros(1, dtype=torch.int32, device=x.device)
    rows = triton.cdiv(x.numel(), width)
    draws = DRAWS[secure]
    share = max(SHARE[secure], draws * triton.cdiv(rows, draws * MAX_SHARES))
    with torch.cuda.device(x.device) if x.is_cuda else nullcontext():
        _kernel[(triton.cdiv(width, BLOCK), triton.cdiv(rows, share))](
            x,
            out,
            flag,
            *_constants(recipe, x.device, x.dtype),
            recipe.low,
            recipe.high,
            recipe.modulus,
            rows,
            share,
            width,
            x.numel(),
            *(_signed(part, 64) for part in key),
            _signed(start, 32),
            COLUMNS=recipe.columns,
            ROWS=recipe.rows,
            ENTRIES=len(recipe.entries),
            TRIALS=recipe.trials,
            WIDE=is_wide(recipe),
            SUM=sum_rows,
            RAGGED=x.numel() % (draws * width) > 0,
            BLOCK=BLOCK,
            SECURE=secure,
            num_warps=WARPS,
            maxnreg=REGISTERS[secure],
            enable_fp_fusion=False,
        )
    return flag


def _key(rng: Source) -> tuple[int, int, int, int, int]:
    """A key that no other call has: 64 bits for seeded words, 256 for secure ones; and 32 bits to begin with."""
    if isinstance(rng, SeededRandom):
        low, high, start = rng.reserve_call()
        return high << 32 | low, 0, 0, 0, start
    words = rng.key()
    first, second, third, fourth = words[:8].view(np.uint64).tolist()
    return first, second, third, fourth, int(words[8])


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


@lru_cache(maxsize=64)
def _constants(recipe: Recipe, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """The table in two parts, and the numbers that must not be passed as float32: scale, centre and clip."""
    capacity = 1 << (TABLE_BITS - recipe.columns)
    threshold = (recipe.entries >> np.uint64(ALIAS_BITS)).astype(np.int64)
    alias = (recipe.entries & np.uint64(2**ALIAS_BITS - 1)).astype(np.int64)
    threshold[threshold == capacity] = 0  # a column with one outcome is its own alias
    high = ((threshold >> SPARE_BITS) << recipe.columns) | alias
    low = threshold & (2**SPARE_BITS - 1)
    clip = np.float64(recipe.clip)
    if dtype == torch.float32 and np.float32(clip) < clip:
        clip = np.float64(np.nextafter(np.float32(clip), np.float32(np.inf)))
    table = np.concatenate([high.astype(np.uint32).view(np.int32), low.astype(np.int32)])
    numbers = np.array([recipe.scale, recipe.centre, clip])
    return torch.from_numpy(table).to(device), torch.from_numpy(numbers).to(device)


assert POSITION_BITS == 24  # written out in the kernel
