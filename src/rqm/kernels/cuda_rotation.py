"""Triton kernels for rotated vectors: the Hadamard transform in two passes, and the L2 budget in one.

A transform of 2**16 to 2**20 coordinates is four factors of 2**4 or 2**5; a pass multiplies by two of them while a tile
is in registers. The matrices are ±1 and the products split into three of TF32, so the sums are those of float32.
"""
# mypy: disable-error-code="no-untyped-def, no-any-return, untyped-decorator"
# ruff: noqa: N803

from contextlib import nullcontext
from functools import lru_cache

import torch
import triton
import triton.language as tl

from rqm.kernels.cuda import _constants, is_wide, position_of
from rqm.kernels.recipe import Recipe

LANES = 16
"""Transforms that a tile holds."""
SIZES = range(16, 21)
"""Bits of the lengths that the kernel transforms."""
BLOCK, BLOCKS = 1024, 16


@triton.jit
def _pass(
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
    """Transform the two digits, of A and of B values, that count coordinates STRIDE and STRIDE·B apart.

    FIRST: rows of ``dim`` inputs are read, times a public sign each and a factor a row, and padded to ``width``.
    """
    tile = tl.program_id(0).to(tl.int64)
    left = tl.load(left_ptr + tl.arange(0, A)[:, None] * A + tl.arange(0, A)[None, :])
    right = tl.load(right_ptr + tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :])
    first, second = tl.arange(0, B * LANES), tl.arange(0, A * LANES)
    if STRIDE == 1:  # the lanes are rows of A·B coordinates, one after the other
        start = tile * (A * B * LANES)
        into = tl.arange(0, A)[:, None] * B + ((first // B) * (A * B) + first % B)[None, :]
        out = tl.arange(0, B)[:, None] + ((second // A) * (A * B) + (second % A) * B)[None, :]
    else:  # the lanes are neighbours
        start = tile // (STRIDE // LANES) * (A * B * STRIDE) + tile % (STRIDE // LANES) * LANES
        into = tl.arange(0, A)[:, None] * (B * STRIDE) + ((first // LANES) * STRIDE + first % LANES)[None, :]
        out = tl.arange(0, B)[:, None] * STRIDE + ((second // LANES) * (B * STRIDE) + second % LANES)[None, :]
    if FIRST:
        row, place = start // width, start % width + into
        factor = tl.load(factors_ptr + row)
        x = tl.load(x_ptr + row * dim + place, mask=place < dim, other=0.0) * tl.load(signs_ptr + place)
        x = tl.where(factor == 0, 0.0, x * factor)
    else:
        x = tl.load(x_ptr + start + into)
    x = tl.dot(left, x, input_precision="tf32x3")
    if STRIDE == 1:
        x = tl.permute(tl.reshape(x, (A, LANES, B)), (2, 1, 0))
    else:
        x = tl.permute(tl.reshape(x, (A, B, LANES)), (1, 0, 2))
    x = tl.dot(right, tl.reshape(x, (B, A * LANES)), input_precision="tf32x3")
    tl.store(out_ptr + start + out, x * scale)


@triton.jit
def _silence(x_ptr, rows_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if tl.load(rows_ptr + row) != 0:
        tl.store(x_ptr + row * width + offsets, tl.zeros([BLOCK], tl.float32), mask=offsets < width)


@triton.jit(do_not_specialize=["low", "high", "shift"])
def _squares(
    x_ptr, out_ptr, numbers_ptr, low, high, shift, width, WIDE: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr
):
    row = tl.program_id(1).to(tl.int64)
    scale, centre = tl.load(numbers_ptr), tl.load(numbers_ptr + 1)
    clip = tl.load(numbers_ptr + 2).to(x_ptr.dtype.element_ty)
    total = tl.zeros([BLOCK], tl.int64)
    for block in range(BLOCKS):
        offsets = (tl.program_id(0) * BLOCKS + block) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * width + offsets, mask=offsets < width, other=0.0)
        twice = 2 * position_of(x, clip, scale, centre, low, high, WIDE).to(tl.int64) - low - high
        if shift > 0:
            twice = (tl.abs(twice) >> shift) + 1
        total += tl.where(offsets < width, twice * twice, 0)
    tl.atomic_add(out_ptr + row, tl.sum(total), sem="relaxed")


def fits(columns: int) -> bool:
    """Whether rows of that many columns can be transformed."""
    return columns.bit_count() == 1 and columns.bit_length() - 1 in SIZES


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """The orthonormal Walsh–Hadamard transform of every row of ``x``, in place: float32, 2**16 to 2**20 columns."""
    return _transform(x, x, x, x, first=False)


def rotate(x: torch.Tensor, signs: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Rows of ``x`` times their factors (zero where that is zero, even if not finite) and the signs, transformed."""
    out = x.new_empty((len(x), len(signs)))
    return _transform(x, out, signs, factors, first=True)


def _transform(
    x: torch.Tensor, out: torch.Tensor, signs: torch.Tensor, factors: torch.Tensor, *, first: bool
) -> torch.Tensor:
    bits = out.shape[-1].bit_length() - 1
    assert bits in SIZES
    assert all(part.dtype == torch.float32 and part.is_contiguous() for part in (x, out, signs, factors))
    digits = [5 if place < bits - 16 else 4 for place in range(4)]
    stride = 1
    with torch.cuda.device(x.device) if x.is_cuda else nullcontext():
        for low, high in (digits[:2], digits[2:]):
            _pass[(out.numel() // (LANES << (low + high)),)](
                x if stride == 1 else out,
                out,
                signs,
                factors,
                _signs(high, x.device),
                _signs(low, x.device),
                2.0 ** (-(low + high) / 2),
                x.shape[-1],
                out.shape[-1],
                FIRST=first and stride == 1,
                STRIDE=stride,
                A=1 << high,
                B=1 << low,
                LANES=LANES,
                num_warps=8,
            )
            stride <<= low + high
    return out


def silence(x: torch.Tensor, rows: torch.Tensor) -> None:
    """Set some rows of ``x`` to zero, in place; the others are not touched."""
    with torch.cuda.device(x.device) if x.is_cuda else nullcontext():
        _silence[(triton.cdiv(x.shape[1], BLOCK * BLOCKS), len(x))](
            x, rows.to(torch.int32), x.shape[1], BLOCK=BLOCK * BLOCKS
        )


def squares(recipe: Recipe, x: torch.Tensor, shift: int) -> torch.Tensor:
    """For every row of ``x``: the sum of (twice the distance of a position from the middle)², in int64.

    With ``shift`` every distance is first rounded up to a multiple of 2**shift, and counted in those.
    """
    out = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    _, numbers = _constants(recipe, x.device, x.dtype)
    with torch.cuda.device(x.device) if x.is_cuda else nullcontext():
        _squares[(triton.cdiv(x.shape[1], BLOCK * BLOCKS), len(x))](
            x,
            out,
            numbers,
            recipe.low,
            recipe.high,
            shift,
            x.shape[1],
            WIDE=is_wide(recipe),
            BLOCK=BLOCK,
            BLOCKS=BLOCKS,
            enable_fp_fusion=False,
        )
    return out


@lru_cache(maxsize=8)
def _signs(bits: int, device: torch.device) -> torch.Tensor:
    """The Hadamard matrix of ±1."""
    out = torch.ones((1, 1))
    for _ in range(bits):
        out = torch.cat([torch.cat([out, out], 1), torch.cat([out, -out], 1)])
    return out.to(device)
