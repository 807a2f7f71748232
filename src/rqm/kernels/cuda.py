"""Triton kernels that encode vectors on a GPU: outcomes, or their sum over clients, in one pass over the inputs.

The sampling distribution is that of the CPU, the random words are not. Seeded words come from Philox-4×32-7: seven
rounds are the fewest that passed all of TestU01 (Salmon et al. 2011), as are the thirteen of Threefry on the CPU.
Secure words come from ChaCha20 (RFC 8439), under a key that each call takes from the operating system of the host.

Both are functions of a key and of a counter of 128 bits. No counter is used twice under a key: it consists of the
coordinate (64 bits), the client or group of trials (32 bits), and the number of the call or a nonce (32 bits).

What limits the speed is in results/cuda.md.
"""
# mypy: disable-error-code="no-untyped-def, no-any-return, untyped-decorator"
# ruff: noqa: N803, PLR0124, SIM102, SIM108 (the compiler of kernels knows no ternaries of tensors)

from contextlib import nullcontext
from functools import lru_cache

import numpy as np
import torch
import triton
import triton.language as tl

from rqm.kernels.integer_sampler import ALIAS_BITS, POSITION_BITS, TABLE_BITS, IntegerSampler
from rqm.randomness import SecureRandom, SeededRandom

TABLE_DRAWS_PER_CALL = {False: 2, True: 8}
"""Draws from a table for which one call of Philox (False) or ChaCha20 (True) has enough words."""


@triton.jit
def philox(key, c0, c1, c2, c3):
    """Philox-4×32-7: four 32-bit words. (Products in 64 bits compile to half the instructions of `tl.philox`.)

    Args:
        key: The key, 64 bits.
        c0: The first word of the counter; the others are `c1`, `c2` and `c3`.
        c1: Second word.
        c2: Third word.
        c3: Fourth word.

    Returns:
        The words, of the shape of the counter.
    """
    k0, k1 = key.to(tl.uint32), (key.to(tl.int64) >> 32).to(tl.uint32)
    for _ in tl.static_range(7):
        left = c0.to(tl.uint64) * 0xD2511F53
        right = c2.to(tl.uint64) * 0xCD9E8D57
        c0, c1 = (right >> 32).to(tl.uint32) ^ c1 ^ k0, right.to(tl.uint32)
        c2, c3 = (left >> 32).to(tl.uint32) ^ c3 ^ k1, left.to(tl.uint32)
        k0, k1 = k0 + 0x9E3779B9, k1 + 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def _quarter_round(a, b, c, d):
    a = a + b
    d = d ^ a
    d = (d << 16) | (d >> 16)
    c = c + d
    b = b ^ c
    b = (b << 12) | (b >> 20)
    a = a + b
    d = d ^ a
    d = (d << 8) | (d >> 24)
    c = c + d
    b = b ^ c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit
def _split_key(key, zeros):
    """64 bits of the key as two blocks of 32-bit words, of the shape of `zeros`."""
    return zeros + key.to(tl.uint32), zeros + (key.to(tl.int64) >> 32).to(tl.uint32)


@triton.jit
def chacha(key, key1, key2, key3, c0, c1, c2, c3):
    """The block function of ChaCha20 (RFC 8439): sixteen 32-bit words.

    Args:
        key: The first 64 bits of the key; the others are `key1`, `key2` and `key3`.
        key1: Next 64 bits.
        key2: Next 64 bits.
        key3: Last 64 bits.
        c0: The first word of the counter, a block. The other words may be scalars.
        c1: Second word.
        c2: Third word.
        c3: Fourth word.

    Returns:
        The words, of the shape of `c0`.
    """
    zeros = c0 ^ c0
    k0, k1 = _split_key(key, zeros)
    k2, k3 = _split_key(key1, zeros)
    k4, k5 = _split_key(key2, zeros)
    k6, k7 = _split_key(key3, zeros)
    x0, x1, x2, x3 = zeros + 0x61707865, zeros + 0x3320646E, zeros + 0x79622D32, zeros + 0x6B206574
    x4, x5, x6, x7, x8, x9, x10, x11 = k0, k1, k2, k3, k4, k5, k6, k7
    x12, x13, x14, x15 = c0, zeros + c1, zeros + c2, zeros + c3
    for _ in range(10):
        x0, x4, x8, x12 = _quarter_round(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter_round(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter_round(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter_round(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter_round(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter_round(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter_round(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter_round(x3, x4, x9, x14)
    return (
        x0 + 0x61707865,
        x1 + 0x3320646E,
        x2 + 0x79622D32,
        x3 + 0x6B206574,
        x4 + k0,
        x5 + k1,
        x6 + k2,
        x7 + k3,
        x8 + k4,
        x9 + k5,
        x10 + k6,
        x11 + k7,
        x12 + c0,
        x13 + c1,
        x14 + c2,
        x15 + c3,
    )


@triton.jit
def _random_words(key, key1, key2, key3, c0, c1, c2, c3, SECURE: tl.constexpr):
    """Four words of Philox, or if SECURE sixteen of ChaCha20."""
    if SECURE:
        return chacha(key, key1, key2, key3, c0, c1, c2, c3)
    else:
        return philox(key, c0, c1, c2, c3)


@triton.jit
def position_of(x, clip, scale, center, low, high, WIDE: tl.constexpr):
    """The position of each input: as on the CPU, one product and one sum in float64, then an exact clamp in integers.

    Args:
        x: The inputs.
        clip: The clip, which may be rounded up to float32.
        scale: Units of position per unit of input.
        center: Position of the input 0, plus 2**52.
        low: Position of -clip.
        high: Position of clip.
        WIDE: Whether positions need 64 bits.

    Returns:
        Integers from `low` to `high`.
    """
    x = tl.minimum(tl.maximum(x, -clip), clip)
    shifted = x.to(tl.float64) * scale + center
    bits = shifted.to(tl.int64, bitcast=True)
    position = (bits - 0x4330000000000000) if WIDE else bits.to(tl.int32)  # may be slightly outside, does not wrap
    return tl.minimum(tl.maximum(position, low), high)


@triton.jit
def _draw_from_table(
    w0,
    w1,
    level,
    table_ptr,
    modulus,
    closest,
    COLUMN_BITS: tl.constexpr,
    ROW_PER_LEVEL: tl.constexpr,
    ENTRIES: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Draw from the table with `w1`, and if EXACT with eight more bits of `w0` where that is a tie.

    `closest` is the smallest difference so far. Below 2**COLUMN_BITS there was a tie.
    """
    if COLUMN_BITS == 0:
        outcome = level  # the only entry always draws 0
    else:
        column = w1 >> (32 - COLUMN_BITS)
        index = ((level << COLUMN_BITS) | column) if ROW_PER_LEVEL else column
        low_digits = w1 << COLUMN_BITS
        entry = tl.load(table_ptr + index).to(tl.uint32, bitcast=True)
        is_below = low_digits < entry
        if EXACT:
            tie = (low_digits ^ entry) < (1 << COLUMN_BITS)
            low_bits = tl.load(table_ptr + ENTRIES + index, mask=tie, other=0)
            is_below = tl.where(tie, (w0 & 0xFF).to(tl.int32) < low_bits, is_below)
        else:
            closest = tl.minimum(closest, low_digits ^ entry)
        outcome = tl.where(is_below, index, entry) & ((1 << COLUMN_BITS) - 1)
        if not ROW_PER_LEVEL:
            outcome += level
            outcome = tl.where(outcome >= modulus, outcome - modulus, outcome)
    return outcome, closest


@triton.jit
def _encode_block(
    x_ptr,
    out_ptr,
    table_ptr,
    numbers_ptr,
    low,
    high,
    modulus,
    rows,
    rows_per_program,
    width,
    count,
    key,
    key1,
    key2,
    key3,
    start,
    COLUMN_BITS: tl.constexpr,
    ROW_PER_LEVEL: tl.constexpr,
    ENTRIES: tl.constexpr,
    TRIALS: tl.constexpr,
    WIDE: tl.constexpr,
    SUM: tl.constexpr,
    RAGGED: tl.constexpr,
    BLOCK: tl.constexpr,
    SECURE: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Encode one block of columns of several rows; store the outcomes, or return their sum."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    stride = width.to(tl.int64)
    scale, center = tl.load(numbers_ptr), tl.load(numbers_ptr + 1)
    clip = tl.load(numbers_ptr + 2).to(x_ptr.dtype.element_ty)
    c0, c1, call = offsets.to(tl.uint32), (offsets >> 32).to(tl.uint32), start.to(tl.uint32)
    words_per_call: tl.constexpr = 16 if SECURE else 4  # a trial takes one word, a draw from the table two
    groups: tl.constexpr = (TRIALS + words_per_call - 1) // words_per_call
    rows_per_step: tl.constexpr = 1 if TRIALS else words_per_call // 2
    finite = tl.zeros([BLOCK], x_ptr.dtype.element_ty)
    closest = tl.full([BLOCK], 0xFFFFFFFF, tl.uint32)
    total = tl.zeros([BLOCK], tl.int32)
    first_step = tl.program_id(1) * (rows_per_program // rows_per_step)
    row_ptr = x_ptr + first_step * rows_per_step * stride
    last_step = tl.minimum(first_step + rows_per_program // rows_per_step, (rows + rows_per_step - 1) // rows_per_step)
    for step in range(first_step, last_step):
        if TRIALS == 0:
            words = _random_words(key, key1, key2, key3, c0, c1, tl.full([], step, tl.uint32), call, SECURE)
        for row in tl.static_range(rows_per_step):
            inside = offsets < stride
            if row > 0 and RAGGED:  # rows after the first may be shorter, or missing
                inside = offsets < tl.minimum(stride, count - (rows_per_step * step + row) * stride)
            x = tl.load(row_ptr + offsets, mask=inside, other=0.0, eviction_policy="evict_first")
            row_ptr += stride
            finite = tl.fma(x, tl.zeros([BLOCK], x.dtype), finite)  # NaN from the first input on that is not finite
            position = position_of(x, clip, scale, center, low, high, WIDE)
            if TRIALS:
                outcome = tl.zeros([BLOCK], tl.uint32)
                for group in range(groups):
                    counter = tl.full([], step * groups + group, tl.uint32)
                    trials = _random_words(key, key1, key2, key3, c0, c1, counter, call, SECURE)
                    left = TRIALS - words_per_call * group
                    for trial in tl.static_range(words_per_call):
                        limit = tl.where(left > trial, position, 0).to(tl.uint32)
                        outcome += ((trials[trial] >> 8) < limit).to(tl.uint32)
            else:
                w0, w1 = words[2 * row], words[2 * row + 1]
                # 24 random bits are added below the level: they carry over with the probability to round up.
                if WIDE:
                    level = ((position + (w0 >> 8)) >> 24).to(tl.uint32)
                else:
                    level = (position.to(tl.uint32) + (w0 >> 8)) >> 24
                outcome, closest = _draw_from_table(
                    w0, w1, level, table_ptr, modulus, closest, COLUMN_BITS, ROW_PER_LEVEL, ENTRIES, EXACT
                )
            if not SUM:
                out_offsets = (step * rows_per_step + row) * stride + offsets
                tl.store(out_ptr + out_offsets, outcome.to(out_ptr.dtype.element_ty), mask=inside)
            elif row > 0 and RAGGED:
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
        "rows_per_program",
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
def _encode_kernel(
    x_ptr,
    out_ptr,
    flag_ptr,
    table_ptr,
    numbers_ptr,
    low,
    high,
    modulus,
    rows,
    rows_per_program,
    width,
    count,
    key,
    key1,
    key2,
    key3,
    start,
    COLUMN_BITS: tl.constexpr,
    ROW_PER_LEVEL: tl.constexpr,
    ENTRIES: tl.constexpr,
    TRIALS: tl.constexpr,
    WIDE: tl.constexpr,
    SUM: tl.constexpr,
    RAGGED: tl.constexpr,
    BLOCK: tl.constexpr,
    SECURE: tl.constexpr,
):
    total, finite, closest = _encode_block(
        x_ptr,
        out_ptr,
        table_ptr,
        numbers_ptr,
        low,
        high,
        modulus,
        rows,
        rows_per_program,
        width,
        count,
        key,
        key1,
        key2,
        key3,
        start,
        COLUMN_BITS,
        ROW_PER_LEVEL,
        ENTRIES,
        TRIALS,
        WIDE,
        SUM,
        RAGGED,
        BLOCK,
        SECURE,
        False,
    )
    if COLUMN_BITS > 0 and TRIALS == 0:
        if tl.min(closest) < (1 << COLUMN_BITS):  # once in 2**(32 - COLUMN_BITS) draws: repeat the block with all bits
            total, finite, closest = _encode_block(
                x_ptr,
                out_ptr,
                table_ptr,
                numbers_ptr,
                low,
                high,
                modulus,
                rows,
                rows_per_program,
                width,
                count,
                key,
                key1,
                key2,
                key3,
                start,
                COLUMN_BITS,
                ROW_PER_LEVEL,
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


def is_wide(sampler: IntegerSampler) -> bool:
    """Whether positions need 64 bits, with a margin for a clip that float32 rounds up."""
    return sampler.high >= 2**31 - 2**10


Source = SecureRandom | SeededRandom


def encode(sampler: IntegerSampler, x: torch.Tensor, rng: Source, out: torch.Tensor) -> bool:
    """Encode a tensor. Its halves, or eighths, are the rows of the kernel.

    Args:
        sampler: What to draw from.
        x: The inputs, contiguous.
        rng: The source of random words.
        out: Receives the outcomes.

    Returns:
        Whether an input was not finite.
    """
    width = x.numel() if sampler.trials else -(-x.numel() // TABLE_DRAWS_PER_CALL[rng.private])
    return bool(width) and bool(launch(sampler, x, rng, out, width, sum_rows=False).item())


def encode_sum(sampler: IntegerSampler, x: torch.Tensor, rng: Source, total: torch.Tensor, check: bool = True) -> bool:
    """Encode the rows of a tensor and add their outcomes.

    Args:
        sampler: What to draw from.
        x: The rows, contiguous.
        rng: The source of random words.
        total: 32-bit integers to which outcomes are added.
        check: Whether to wait for the kernel, to know whether an input is not finite.

    Returns:
        Whether an input was not finite; False without `check`.
    """
    width = x[0].numel()
    if not width:
        return False
    flag = launch(sampler, x, rng, total, width, sum_rows=True)
    return check and bool(flag.item())


def launch(
    sampler: IntegerSampler, x: torch.Tensor, rng: Source, out: torch.Tensor, width: int, *, sum_rows: bool
) -> torch.Tensor:
    """Start the kernel.

    Args:
        sampler: What to draw from.
        x: The inputs, contiguous.
        rng: The source of random words.
        out: Receives the outcomes, or their sums.
        width: Numbers of a row; the last row may be shorter.
        sum_rows: Whether to add up the rows.

    Returns:
        A flag that the kernel will set if an input is not finite.
    """
    if x.dtype == torch.float32 and not 1e-30 < sampler.clip < 1e30:
        x = x.double()  # the clip itself is beyond float32
    secure = rng.private
    *key, start = _key(rng)
    flag = torch.zeros(1, dtype=torch.int32, device=x.device)
    rows = triton.cdiv(x.numel(), width)
    draws = TABLE_DRAWS_PER_CALL[secure]
    block = 256  # coordinates that a program encodes at a time; measured on an H200, as the next sizes
    max_grid = 65_535  # CUDA's limit on programs along the second axis
    # A multiple of the draws per call. With many more rows, all programs wait for the last ones.
    rows_per_program = max(40 if secure else 20, draws * triton.cdiv(rows, draws * max_grid))
    with torch.cuda.device(x.device) if x.is_cuda else nullcontext():
        _encode_kernel[(triton.cdiv(width, block), triton.cdiv(rows, rows_per_program))](
            x,
            out,
            flag,
            *constants(sampler, x.device, x.dtype),
            sampler.low,
            sampler.high,
            sampler.modulus,
            rows,
            rows_per_program,
            width,
            x.numel(),
            *(_signed(word, 64) for word in key),
            _signed(start, 32),
            COLUMN_BITS=sampler.column_bits,
            ROW_PER_LEVEL=sampler.has_row_per_level,
            ENTRIES=len(sampler.entries),
            TRIALS=sampler.trials,
            WIDE=is_wide(sampler),
            SUM=sum_rows,
            RAGGED=x.numel() % (draws * width) > 0,
            BLOCK=block,
            SECURE=secure,
            num_warps=4,
            maxnreg=128 if secure else 64,
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
def constants(sampler: IntegerSampler, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """The constants of a sampler on a device.

    Args:
        sampler: The sampler.
        device: The device.
        dtype: The type of the inputs. For float32 the clip is rounded up to it.

    Returns:
        The table, its high words before its low ones; and scale, center and clip in float64.
    """
    capacity = 1 << (TABLE_BITS - sampler.column_bits)
    threshold = (sampler.entries >> np.uint64(ALIAS_BITS)).astype(np.int64)
    alias = (sampler.entries & np.uint64(2**ALIAS_BITS - 1)).astype(np.int64)
    threshold[threshold == capacity] = 0  # a column with one outcome is its own alias
    low_bits = TABLE_BITS - 32  # they are looked up only where the 32 bits above them are equal
    high = ((threshold >> low_bits) << sampler.column_bits) | alias
    low = threshold & (2**low_bits - 1)
    clip = np.float64(sampler.clip)
    if dtype == torch.float32 and np.float32(clip) < clip:
        clip = np.float64(np.nextafter(np.float32(clip), np.float32(np.inf)))
    table = np.concatenate([high.astype(np.uint32).view(np.int32), low.astype(np.int32)])
    numbers = np.array([sampler.scale, sampler.center, clip])
    return torch.from_numpy(table).to(device), torch.from_numpy(numbers).to(device)


assert POSITION_BITS == 24  # written out in the kernel
