"""Triton's kernel for the gradients of a layer's weights, summed over runs of examples: those of a client, or some.

What a layer saw is read in place. For a convolution the patches are never written down: a tile of them is gathered,
multiplied by a tile of errors, and forgotten. Sums are in a fixed order: always the same bits.
"""
# mypy: disable-error-code="no-untyped-def, no-any-return, untyped-decorator"
# ruff: noqa: N803, SIM102 (the compiler of kernels knows no conditions of which one is a constant)

from contextlib import nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import nn

TILES = {"dense": (128, 128, 32, 8, 3), "convolution": (64, 128, 32, 4, 3)}
"""Rows and columns of the tile of a weight's gradient that a program makes, at most; how many products it adds up at
once; its warps, and the loads that are under way."""


@triton.jit
def _kernel(
    given_ptr,
    error_ptr,
    weight_ptr,
    bias_ptr,
    first_ptr,
    count_ptr,
    weight_stride,
    bias_stride,
    rows,
    columns,
    POSITIONS: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    KERNEL: tl.constexpr,
    KERNEL_WIDTH: tl.constexpr,
    DOWN: tl.constexpr,
    RIGHT: tl.constexpr,
    TOP: tl.constexpr,
    LEFT: tl.constexpr,
    CONVOLUTION: tl.constexpr,
    BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """One tile of the gradient of one run: errors (rows by examples and positions) times patches (by columns)."""
    run = tl.program_id(0)
    first, count = tl.load(first_ptr + run), tl.load(count_ptr + run)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    channel, tap = column // KERNEL, column % KERNEL
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    bias = tl.zeros([ROWS], tl.float32)
    for start in range(0, count * POSITIONS, DEPTH):
        place = start + tl.arange(0, DEPTH)
        inside = place < count * POSITIONS
        example, position = (first + place // POSITIONS).to(tl.int64), place % POSITIONS
        there = inside[:, None] & (column < columns)[None, :]
        if CONVOLUTION:
            error_row = error_ptr + example * (rows * POSITIONS) + position
            error_at = row * POSITIONS
            top, left = position // OUT_WIDTH * DOWN - TOP, position % OUT_WIDTH * RIGHT - LEFT
            given_row = given_ptr + example * (columns // KERNEL * HEIGHT * WIDTH) + top * WIDTH + left
            given_at = channel * (HEIGHT * WIDTH) + tap // KERNEL_WIDTH * WIDTH + tap % KERNEL_WIDTH
            if TOP > 0 or LEFT > 0:
                y = top[:, None] + (tap // KERNEL_WIDTH)[None, :]
                x = left[:, None] + (tap % KERNEL_WIDTH)[None, :]
                there = there & (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
        else:
            error_row = error_ptr + (example * POSITIONS + position) * rows
            error_at = row
            given_row = given_ptr + (example * POSITIONS + position) * columns
            given_at = column
        inside_too = (row < rows)[:, None] & inside[None, :]
        error = tl.load(error_row[None, :] + error_at[:, None], mask=inside_too, other=0.0)
        given = tl.load(given_row[:, None] + given_at[None, :], mask=there, other=0.0)
        total = tl.dot(error, given, total, input_precision=PRECISION)
        if BIAS:
            bias += tl.sum(error, 1)
    at = run.to(tl.int64) * weight_stride + row[:, None] * columns + column[None, :]
    tl.store(weight_ptr + at, total, mask=(row < rows)[:, None] & (column < columns)[None, :])
    if BIAS:
        if tl.program_id(1) == 0:
            tl.store(bias_ptr + run.to(tl.int64) * bias_stride + row, bias, mask=row < rows)


def gradients(
    layer: Any, given: torch.Tensor, error: torch.Tensor, first: torch.Tensor, count: torch.Tensor, out: torch.Tensor
) -> None:
    """Write the gradients of a layer's weight, and then of its bias, into the row of each run of examples.

    A run is its ``first`` example and a ``count`` of them, both int32; rows of ``out`` may lie apart.
    """
    given, error = given.contiguous(), error.contiguous()
    if isinstance(layer, nn.Linear):
        rows, columns = layer.weight.shape
        geometry = {"POSITIONS": error.numel() // len(error) // rows, "OUT_WIDTH": 1, "HEIGHT": 1, "WIDTH": 1}
        geometry |= {"KERNEL": 1, "KERNEL_WIDTH": 1, "DOWN": 1, "RIGHT": 1, "TOP": 0, "LEFT": 0}
    else:
        rows, kernel = layer.out_channels, layer.kernel_size[0] * layer.kernel_size[1]
        columns = layer.in_channels * kernel
        geometry = {
            "POSITIONS": error.shape[2] * error.shape[3],
            "OUT_WIDTH": error.shape[3],
            "HEIGHT": given.shape[2],
            "WIDTH": given.shape[3],
            "KERNEL": kernel,
            "KERNEL_WIDTH": layer.kernel_size[1],
            "DOWN": layer.stride[0],
            "RIGHT": layer.stride[1],
            "TOP": layer.padding[0],
            "LEFT": layer.padding[1],
        }
    most, widest, depth, warps, stages = TILES["dense" if isinstance(layer, nn.Linear) else "convolution"]
    tile = min(most, max(16, triton.next_power_of_2(rows))), min(widest, max(16, triton.next_power_of_2(columns)))
    weight = out[:, : rows * columns]
    bias = out[:, rows * columns :] if layer.bias is not None else weight
    with torch.cuda.device(given.device) if given.is_cuda else nullcontext():
        _kernel[(len(first), triton.cdiv(columns, tile[1]), triton.cdiv(rows, tile[0]))](
            given,
            error,
            weight,
            bias,
            first,
            count,
            out.stride(0),
            out.stride(0),
            rows,
            columns,
            **geometry,
            CONVOLUTION=not isinstance(layer, nn.Linear),
            BIAS=layer.bias is not None,
            PRECISION="tf32" if torch.backends.cudnn.allow_tf32 else "ieee",
            ROWS=tile[0],
            COLUMNS=tile[1],
            DEPTH=depth,
            num_warps=warps,
            num_stages=stages,
        )
