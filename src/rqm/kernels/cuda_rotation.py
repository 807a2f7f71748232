"""Triton kernels for rotated vectors: the Hadamard transform in two passes, and sums of squares for the L2 bound.

A transform of 2**16 to 2**20 coordinates is a product of four factors, transforms of 2**4 or 2**5. A pass multiplies by
two of them while a tile is in registers. The entries of the matrices are ±1 and the products are split into three of
TF32, so the error is that of sums in float32.
"""
# mypy: disable-error-code="no-untyped-def, no-any-return, untyped-decorator"
# ruff: noqa: N803

from contextlib import nullcontext
from functools import lru_cache

import torch
import triton
import triton.language as tl

from rqm.kernels.cuda import constants, is_wide, position_of
from rqm.kernels.integer_sampler import IntegerSampler

SUPPORTED_BITS = range(16, 21)
"""Base-2 logarithms of the lengths that the kernel transforms."""


@triton.jit
def _transform_pass(
    x_ptr,
    out_ptr,
    signs_ptr,
    factors_ptr,
    left_ptr,
    right_ptr,
    scale,
    dim,
    width,
    FIRST: tl.constexpr,
    STRIDE: tl.constexpr,
    A: tl.constexpr,
    B: tl.constexpr,
    LANES: tl.constexpr,
):
    """Transform along two digits of the coordinate's index: B values with stride STRIDE, A with stride STRIDE·B.

    FIRST: rows of `dim` inputs are read, multiplied by public signs and by a factor for each row, and padded with
    zeros to `width`.
    """
    tile = tl.program_id(0).to(tl.int64)
    left = tl.load(left_ptr + tl.arange(0, A)[:, None] * A + tl.arange(0, A)[None, :])
    right = tl.load(right_ptr + tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :])
    first, second = tl.arange(0, B * LANES), tl.arange(0, A * LANES)
    if STRIDE == 1:  # the lanes are rows of A·B coordinates
        start = tile * (A * B * LANES)
        in_offsets = tl.arange(0, A)[:, None] * B + ((first // B) * (A * B) + first % B)[None, :]
        out_offsets = tl.arange(0, B)[:, None] + ((second // A) * (A * B) + (second % A) * B)[None, :]
    else:  # the lanes are adjacent coordinates
        start = tile // (STRIDE // LANES) * (A * B * STRIDE) + tile % (STRIDE // LANES) * LANES
        in_offsets = tl.arange(0, A)[:, None] * (B * STRIDE) + ((first // LANES) * STRIDE + first % LANES)[None, :]
        out_offsets = tl.arange(0, B)[:, None] * STRIDE + ((second // LANES) * (B * STRIDE) + second % LANES)[None, :]
    if FIRST:
        row, column = start // width, start % width + in_offsets
        factor = tl.load(factors_ptr + row)
        x = tl.load(x_ptr + row * dim + column, mask=column < dim, other=0.0) * tl.load(signs_ptr + column)
        x = tl.where(factor == 0, 0.0, x * factor)
    else:
        x = tl.load(x_ptr + start + in_offsets)
    x = tl.dot(left, x, input_precision="tf32x3")
    if STRIDE == 1:
        x = tl.permute(tl.reshape(x, (A, LANES, B)), (2, 1, 0))
    else:
        x = tl.permute(tl.reshape(x, (A, B, LANES)), (1, 0, 2))
    x = tl.dot(right, tl.reshape(x, (B, A * LANES)), input_precision="tf32x3")
    tl.store(out_ptr + start + out_offsets, x * scale)


@triton.jit
def _zero_rows(x_ptr, rows_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if tl.load(rows_ptr + row) != 0:
        tl.store(x_ptr + row * width + offsets, tl.zeros([BLOCK], tl.float32), mask=offsets < width)


@triton.jit(do_not_specialize=["low", "high", "shift"])
def _square_distances(
    x_ptr, out_ptr, numbers_ptr, low, high, shift, width, WIDE: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr
):
    row = tl.program_id(1).to(tl.int64)
    scale, center = tl.load(numbers_ptr), tl.load(numbers_ptr + 1)
    clip = tl.load(numbers_ptr + 2).to(x_ptr.dtype.element_ty)
    total = tl.zeros([BLOCK], tl.int64)
    for block in range(BLOCKS):
        offsets = (tl.program_id(0) * BLOCKS + block) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * width + offsets, mask=offsets < width, other=0.0)
        twice = 2 * position_of(x, clip, scale, center, low, high, WIDE).to(tl.int64) - low - high
        if shift > 0:
            twice = (tl.abs(twice) >> shift) + 1
        total += tl.where(offsets < width, twice * twice, 0)
    tl.atomic_add(out_ptr + row, tl.sum(total), sem="relaxed")


def fits(columns: int) -> bool:
    """Whether rows with this number of columns can be transformed."""
    return columns.bit_count() == 1 and columns.bit_length() - 1 in SUPPORTED_BITS


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """The orthonormal Walsh–Hadamard transform of every row, in place: float32, 2**16 to 2**20 columns."""
    return _transform(x, x, x, x, first=False)


def rotate(x: torch.Tensor, signs: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Multiply rows by factors and signs, and transform them.

    Args:
        x: Rows of float32. Missing columns are zeros.
        signs: A sign for each column of the result, 1 or −1.
        factors: A factor for each row. A row with the factor 0 becomes zero even if it is not finite.

    Returns:
        The transformed rows.
    """
    out = x.new_empty((len(x), len(signs)))
    return _transform(x, out, signs, factors, first=True)


def _transform(
    x: torch.Tensor, out: torch.Tensor, signs: torch.Tensor, factors: torch.Tensor, *, first: bool
) -> torch.Tensor:
    bits = out.shape[-1].bit_length() - 1
    assert bits in SUPPORTED_BITS
    assert all(tensor.dtype == torch.float32 and tensor.is_contiguous() for tensor in (x, out, signs, factors))
    lanes = 16  # transforms in a tile: the smallest width of a matrix product in Triton
    digit_bits = [5 if digit < bits - 16 else 4 for digit in range(4)]
    stride = 1
    with torch.cuda.device(x.device) if x.is_cuda else nullcontext():
        for low, high in (digit_bits[:2], digit_bits[2:]):
            _transform_pass[(out.numel() // (lanes << (low + high)),)](
                x if stride == 1 else out,
                out,
                signs,
                factors,
                _hadamard_matrix(high, x.device),
                _hadamard_matrix(low, x.device),
                2.0 ** (-(low + high) / 2),
                x.shape[-1],
                out.shape[-1],
                FIRST=first and stride == 1,
                STRIDE=stride,
                A=1 << high,
                B=1 << low,
                LANES=lanes,
                num_warps=8,
            )
            stride <<= low + high
    return out


def zero_rows(x: torch.Tensor, rows: torch.Tensor) -> None:
    """Set rows to zero, in place.

    Args:
        x: The rows, float32.
        rows: A number for each row; rows where it is not 0 are set to zero.
    """
    with torch.cuda.device(x.device) if x.is_cuda else nullcontext():
        block = 2**14
        _zero_rows[(triton.cdiv(x.shape[1], block), len(x))](x, rows.to(torch.int32), x.shape[1], BLOCK=block)


def squares(sampler: IntegerSampler, x: torch.Tensor, shift: int) -> torch.Tensor:
    """The sum of squares of every row, of twice the distance of a position from the middle.

    Args:
        sampler: The grid on which inputs are placed.
        x: Rows of inputs.
        shift: If it is not 0, distances are counted in units of 2**shift and rounded up.

    Returns:
        A sum for each row, int64.
    """
    out = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    _, numbers = constants(sampler, x.device, x.dtype)
    with torch.cuda.device(x.device) if x.is_cuda else nullcontext():
        block, blocks = 1024, 16  # coordinates of a block, and blocks that a program handles
        _square_distances[(triton.cdiv(x.shape[1], block * blocks), len(x))](
            x,
            out,
            numbers,
            sampler.low,
            sampler.high,
            shift,
            x.shape[1],
            WIDE=is_wide(sampler),
            BLOCK=block,
            BLOCKS=blocks,
            enable_fp_fusion=False,
        )
    return out


@lru_cache(maxsize=8)
def _hadamard_matrix(bits: int, device: torch.device) -> torch.Tensor:
    """The Hadamard matrix of 2**bits rows, with entries ±1."""
    out = torch.ones((1, 1))
    for _ in range(bits):
        out = torch.cat([torch.cat([out, out], 1), torch.cat([out, -out], 1)])
    return out.to(device)
