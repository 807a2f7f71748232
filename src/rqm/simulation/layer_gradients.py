"""Gradients of single clients or records, from one forward and one backward pass over a whole batch.

The gradient of a dense layer or a convolution follows from the inputs of the layer and from the gradients of the loss
with respect to its outputs, called errors here (Goodfellow 2015, arXiv:1510.01799). `record_layers` records both. Two
reductions use them: `write_rows` writes one row for each client or record, and `clipped_sum` adds up the gradients of
all records, each clipped in L2.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_weight

TOLERANCE = 1e-3
"""Largest relative difference, in float32, between two computations of the same gradient or loss."""

GROUP_LIMITS = {"cpu": (128, 2**23), "cuda": (10_240, 2**30)}
"""By device: about how many examples a pass has, and how many numbers its rows have at most. On a GPU an example takes
half a megabyte with the paper's model."""

ExampleLosses = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""From a model, inputs and labels to the loss of each example."""


@final
@dataclass(frozen=True)
class LayerUse:
    """One use of a layer in a forward pass.

    Attributes:
        layer: The dense layer or convolution.
        columns: Where its parameters are in the flat vector of all parameters.
        inputs: What the layer was applied to, one row for each example.
        errors: Gradients of the summed losses with respect to the layer's outputs.
        is_repeated: Whether the layer was used earlier in the same pass. Its gradients then add up.
    """

    layer: Any
    columns: slice
    inputs: Tensor
    errors: Tensor
    is_repeated: bool


def plain_layers(model: nn.Module) -> dict[nn.Module, slice]:
    """Every layer with parameters, and its columns in the flat vector; empty if one is of another kind."""
    layers: dict[nn.Module, slice] = {}
    start = 0
    for layer in model.modules():
        parameters = list(layer.parameters(recurse=False))
        if not parameters:
            continue
        is_plain = type(layer) is nn.Linear or (
            type(layer) is nn.Conv2d
            and (layer.groups, layer.dilation, layer.padding_mode) == (1, (1, 1), "zeros")
            and not isinstance(layer.padding, str)
        )
        if not is_plain or not all(parameter.requires_grad for parameter in parameters):
            return {}
        end = start + sum(parameter.numel() for parameter in parameters)
        layers[layer] = slice(start, end)
        start = end
    return layers


def record_layers(
    model: nn.Module,
    losses: ExampleLosses,
    inputs: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
) -> tuple[Tensor, list[LayerUse]]:
    """Run one forward and one backward pass, and record what each layer saw.

    Args:
        model: A model whose parameters all belong to dense layers and plain convolutions.
        losses: Gives the loss of each example.
        inputs: Inputs of the examples.
        labels: Labels of the examples.
        weights: The weight of each example's loss; None: 1.

    Returns:
        The weighted losses, and the uses of all layers.

    Raises:
        ValueError: If the model has other layers, or does not treat the first dimension as examples.
    """
    columns = plain_layers(model)
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []

    def record(layer: nn.Module, layer_inputs: Any, outputs: Tensor) -> None:
        calls.append((layer, layer_inputs[0].detach(), outputs))

    hooks = [layer.register_forward_hook(record) for layer in columns]
    try:
        values = losses(model, inputs, labels)
    finally:
        for hook in hooks:
            hook.remove()
    if values.shape != labels.shape[:1]:
        raise ValueError(f"loss: has shape {tuple(values.shape)}; must give one number for every example")
    if not columns or {layer for layer, _, _ in calls} != columns.keys():
        raise ValueError("model: must use only dense layers and plain convolutions, and all of them")
    if any(len(layer_inputs) != len(labels) for _, layer_inputs, _ in calls):
        raise ValueError("model: a layer sees other rows than examples")
    if weights is not None:
        values = values * weights.to(values)
    errors = torch.autograd.grad(values.sum(), [outputs for _, _, outputs in calls])
    uses: list[LayerUse] = []
    for (layer, layer_inputs, _), error in zip(calls, errors, strict=True):
        is_repeated = any(use.layer is layer for use in uses)
        uses.append(LayerUse(layer, columns[layer], layer_inputs, error, is_repeated))
    return values.detach(), uses


# -- one row for each client or record ------------------------------------------------------------


def write_rows(use: LayerUse, examples: slice, rows: Tensor) -> None:
    """Write the gradients of a layer's weight and bias, one row for each client or record.

    Args:
        use: What the layer saw.
        examples: Which of its examples. All clients have equally many: the first example of each client comes first,
            then the second of each, and so on.
        rows: Receives the gradients: one row for each client, one column for each parameter of the layer.
    """
    layer, inputs, errors = use.layer, use.inputs[examples], use.errors[examples]
    count, size = len(rows), layer.weight.numel()
    weight_rows, bias_rows = rows[:, :size], rows[:, size:]
    if isinstance(layer, nn.Linear):
        errors = by_client(errors, count)
        weights = weight_rows.view(count, *layer.weight.shape)
        weights.baddbmm_(errors.mT, by_client(inputs, count), beta=int(use.is_repeated))
        bias = errors.sum(1)
    else:
        weights = conv2d_weight(  # type: ignore[no-untyped-call]  # of a convolution with one group for each client
            inputs.reshape(-1, count * layer.in_channels, *inputs.shape[2:]),
            (count * layer.out_channels, *layer.weight.shape[1:]),
            errors.reshape(-1, count * layer.out_channels, *errors.shape[2:]),
            layer.stride,
            layer.padding,
            groups=count,
        )
        _add_or_copy(weight_rows, weights.view(count, -1), use.is_repeated)
        bias = errors.reshape(-1, count, *errors.shape[1:]).sum((0, 3, 4))
    if layer.bias is not None:
        _add_or_copy(bias_rows, bias, use.is_repeated)


def by_client(values: Tensor, count: int) -> Tensor:
    """Reorder what a dense layer saw: a matrix for each of `count` clients, also where examples are sequences."""
    return values.reshape(-1, count, *values.shape[1:]).transpose(0, 1).reshape(count, -1, values.shape[-1])


def _add_or_copy(target: Tensor, values: Tensor, is_repeated: bool) -> None:
    if is_repeated:
        target += values
    else:
        target.copy_(values)


# -- a clipped sum over records -------------------------------------------------------------------


def clipped_sum(uses: Sequence[LayerUse], clip: float) -> Tensor:
    """The sum of the records' gradients, each scaled down to the clip.

    The gradient of a dense layer is an outer product for each record. Its length is the product of two lengths, and
    the sum of the clipped ones is one matrix product, so no gradient of a single record is formed.

    Args:
        uses: What the layers saw; each example is a record.
        clip: L2 bound of a record's gradient over all layers.

    Returns:
        The sum in float64. A record whose gradient is not finite counts as zero.

    Raises:
        ValueError: If a layer is used twice.
    """
    if any(use.is_repeated for use in uses):
        raise ValueError("model: a layer is used twice")
    ordered = sorted(uses, key=lambda use: use.columns.start)
    rows = [_record_rows(use) for use in ordered]
    squares = [
        squared_lengths(use.errors) * (squared_lengths(use.inputs) + (use.layer.bias is not None))
        if layer_rows is None
        else squared_lengths(layer_rows)
        for use, layer_rows in zip(ordered, rows, strict=True)
    ]
    lengths = torch.stack(squares).sum(dim=0).sqrt()
    sums: list[Tensor] = []
    for use, layer_rows in zip(ordered, rows, strict=True):
        if layer_rows is not None:
            sums.append(scale_rows(layer_rows, lengths, clip).sum(dim=0, dtype=torch.float64))
            continue
        errors = scale_rows(use.errors.double(), lengths, clip)
        inputs = use.inputs.masked_fill(~torch.isfinite(lengths)[:, None], 0).double()
        sums.append((errors.T @ inputs).reshape(-1))
        if use.layer.bias is not None:
            sums.append(errors.sum(dim=0))
    return torch.cat(sums)


def _record_rows(use: LayerUse) -> Tensor | None:
    """The layer's gradients, one row for each record; None where they are outer products of errors and inputs."""
    layer = use.layer
    if isinstance(layer, nn.Linear):
        if use.inputs.dim() == 2:
            return None
        rows = use.errors.new_empty((len(use.errors), use.columns.stop - use.columns.start))
        write_rows(use, slice(None), rows)
        return rows
    # With one example in each group, matrix products are faster than a convolution with groups.
    (height, width), (down, right), (top, left) = layer.kernel_size, layer.stride, layer.padding
    windows = functional.pad(use.inputs, (left, left, top, top)).unfold(2, height, down).unfold(3, width, right)
    patches = windows.permute(0, 1, 4, 5, 2, 3).flatten(4).flatten(1, 3)
    errors = use.errors.flatten(2)
    weights = torch.bmm(errors, patches.mT).flatten(1)
    return weights if layer.bias is None else torch.cat([weights, errors.sum(2)], dim=1)


def squared_lengths(rows: Tensor) -> Tensor:
    """The sum of squares of each row, in float64: the clip depends on it."""
    return rows.double().square().sum(dim=1)


def scale_rows(rows: Tensor, lengths: Tensor, clip: float) -> Tensor:
    """Scale each row by the factor that brings its length to the clip at most.

    Args:
        rows: The rows. They may be slices of longer vectors.
        lengths: The lengths of the whole vectors.
        clip: The largest length.

    Returns:
        The scaled rows; zero where the length is not finite.
    """
    scaled = rows * torch.where(lengths > clip, clip / lengths, 1.0).to(rows.dtype)[:, None]
    return scaled.masked_fill_(~torch.isfinite(lengths)[:, None], 0)
