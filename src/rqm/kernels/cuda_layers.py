"""A Triton kernel for the gradients of a layer's parameters, summed over runs of examples (such as those of a client).

The inputs of the layer are read in place. A convolution's patches are never stored: a tile of them is gathered and
multiplied by a tile of errors. The order of the sums is fixed, so results are reproducible to the last bit.
"""
# mypy: disable-error-code="no-untyped-def, no-any-return, untyped-decorator"
# ruff: noqa: N803, SIM102 (Triton cannot join a constant condition and a runtime condition)

from contextlib import nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _gradient_kernel(
    input_ptr,
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
    STRIDE_Y: tl.constexpr,
    STRIDE_X: tl.constexpr,
    PADDING_Y: tl.constexpr,
    PADDING_X: tl.constexpr,
    CONVOLUTION: tl.constexpr,
    BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """One tile of the gradient of one run: a matrix product of errors and patches over examples and positions."""
    run = tl.program_id(0)
    first, count = tl.load(first_ptr + run), tl.load(count_ptr + run)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    channel, tap = column // KERNEL, column % KERNEL
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    bias = tl.zeros([ROWS], tl.float32)
    for start in range(0, count * POSITIONS, DEPTH):
        index = start + tl.arange(0, DEPTH)
        is_inside = index < count * POSITIONS
        example, position = (first + index // POSITIONS).to(tl.int64), index % POSITIONS
        input_mask = is_inside[:, None] & (column < columns)[None, :]
        if CONVOLUTION:
            error_row = error_ptr + example * (rows * POSITIONS) + position
            error_offset = row * POSITIONS
            top, left = position // OUT_WIDTH * STRIDE_Y - PADDING_Y, position % OUT_WIDTH * STRIDE_X - PADDING_X
            input_row = input_ptr + example * (columns // KERNEL * HEIGHT * WIDTH) + top * WIDTH + left
            input_offset = channel * (HEIGHT * WIDTH) + tap // KERNEL_WIDTH * WIDTH + tap % KERNEL_WIDTH
            if PADDING_Y > 0 or PADDING_X > 0:
                y = top[:, None] + (tap // KERNEL_WIDTH)[None, :]
                x = left[:, None] + (tap % KERNEL_WIDTH)[None, :]
                input_mask = input_mask & (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
        else:
            error_row = error_ptr + (example * POSITIONS + position) * rows
            error_offset = row
            input_row = input_ptr + (example * POSITIONS + position) * columns
            input_offset = column
        error_mask = (row < rows)[:, None] & is_inside[None, :]
        error = tl.load(error_row[None, :] + error_offset[:, None], mask=error_mask, other=0.0)
        patch = tl.load(input_row[:, None] + input_offset[None, :], mask=input_mask, other=0.0)
        total = tl.dot(error, patch, total, input_precision=PRECISION)
        if BIAS:
            bias += tl.sum(error, 1)
    offsets = run.to(tl.int64) * weight_stride + row[:, None] * columns + column[None, :]
    tl.store(weight_ptr + offsets, total, mask=(row < rows)[:, None] & (column < columns)[None, :])
    if BIAS:
        if tl.program_id(1) == 0:
            tl.store(bias_ptr + run.to(tl.int64) * bias_stride + row, bias, mask=row < rows)


def gradients(
    layer: Any, inputs: torch.Tensor, error: torch.Tensor, first: torch.Tensor, count: torch.Tensor, out: torch.Tensor
) -> None:
    """Write the gradients of a layer's weight and bias, summed over each run of examples.

    Args:
        layer: A linear layer, or a convolution without groups or dilation.
        inputs: The inputs of the layer for all examples.
        error: The gradients of the loss with respect to the outputs of the layer.
        first: The first example of each run, int32.
        count: The number of examples of each run, int32.
        out: Receives a row for each run: the weight's gradient, then the bias's. The last dimension is contiguous.
    """
    inputs, error = inputs.contiguous(), error.contiguous()
    if isinstance(layer, nn.Linear):
        rows, columns = layer.weight.shape
        geometry = {"POSITIONS": error.numel() // len(error) // rows, "OUT_WIDTH": 1, "HEIGHT": 1, "WIDTH": 1}
        geometry |= {"KERNEL": 1, "KERNEL_WIDTH": 1, "STRIDE_Y": 1, "STRIDE_X": 1, "PADDING_Y": 0, "PADDING_X": 0}
    else:
        rows, kernel = layer.out_channels, layer.kernel_size[0] * layer.kernel_size[1]
        columns = layer.in_channels * kernel
        geometry = {
            "POSITIONS": error.shape[2] * error.shape[3],
            "OUT_WIDTH": error.shape[3],
            "HEIGHT": inputs.shape[2],
            "WIDTH": inputs.shape[3],
            "KERNEL": kernel,
            "KERNEL_WIDTH": layer.kernel_size[1],
            "STRIDE_Y": layer.stride[0],
            "STRIDE_X": layer.stride[1],
            "PADDING_Y": layer.padding[0],
            "PADDING_X": layer.padding[1],
        }
    # The largest numbers of rows and columns of a tile, products that are added at a time, warps, and stages of the
    # pipeline of loads; measured on an H200.
    is_dense = isinstance(layer, nn.Linear)
    max_rows, max_columns, depth, warps, stages = (128, 128, 32, 8, 3) if is_dense else (64, 128, 32, 4, 3)
    tile_rows = min(max_rows, max(16, triton.next_power_of_2(rows)))
    tile_columns = min(max_columns, max(16, triton.next_power_of_2(columns)))
    weight = out[:, : rows * columns]
    bias = out[:, rows * columns :] if layer.bias is not None else weight
    with torch.cuda.device(inputs.device) if inputs.is_cuda else nullcontext():
        _gradient_kernel[(len(first), triton.cdiv(columns, tile_columns), triton.cdiv(rows, tile_rows))](
            inputs,
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
            ROWS=tile_rows,
            COLUMNS=tile_columns,
            DEPTH=depth,
            num_warps=warps,
            num_stages=stages,
        )
