"""Models: the paper's CNN, two small ones for short runs, and `FlatModel`, a model with flat parameters."""

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional

Loss = Callable[[Tensor, Tensor], Tensor]
"""From a model's outputs and the labels to one number, or to the loss of each example."""


class PaperCNN(nn.Module):
    """The paper's CNN: 3×3 convolutions with 32 and 64 channels, a dense layer of 128; 1,018,174 parameters.

    Its size identifies it: the paper's clip is 0.03 / √1,018,174. ``dropout`` (off by default) is the original's
    0.25 and 0.5 when it is 1, and scales them in between.
    """

    def __init__(self, classes: int = 62, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 32, 3)
        self.second = nn.Conv2d(32, 64, 3)
        self.hidden = nn.Linear(64 * 11 * 11, 128)
        self.out = nn.Linear(128, classes)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """Class scores. Pooling comes before the rectifier: the same values for a quarter of the work."""
        x = functional.relu(max_pool(self.first(x)))
        x = functional.relu(self.second(x)).flatten(1)
        x = functional.dropout(x, 0.25 * self.dropout, self.training)
        x = functional.dropout(functional.relu(self.hidden(x)), 0.5 * self.dropout, self.training)
        return torch.as_tensor(self.out(x))


class _MaxPool(torch.autograd.Function):
    """2×2 max pooling, several times faster than torch's, with the same values and the same gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The maximum of each square, and its index: the first of equals."""
        if x.is_cuda:  # there only torch's backward pass is slow
            maximum, index = functional.max_pool2d(x, 2, return_indices=True)
        else:
            height, width = x.shape[-2:]
            top_left, top_right = x[..., 0::2, 0::2], x[..., 0::2, 1::2]
            bottom_left, bottom_right = x[..., 1::2, 0::2], x[..., 1::2, 1::2]
            top = torch.maximum(top_left, top_right)
            maximum = torch.maximum(top, torch.maximum(bottom_left, bottom_right))
            is_bottom = maximum > top
            is_right = torch.where(is_bottom, bottom_right > bottom_left, top_right > top_left)
            corner = width * torch.arange(0, height, 2)[:, None] + torch.arange(0, width, 2)
            index = is_bottom.long().mul_(width).add_(is_right.long()).add_(corner)
        ctx.save_for_backward(index)
        return maximum

    @staticmethod
    def backward(ctx: Any, *errors: Tensor) -> Tensor:
        """Put each error where the maximum was."""
        (index,) = ctx.saved_tensors
        return functional.max_unpool2d(errors[0].contiguous(), index, [2, 2])


def max_pool(x: Tensor) -> Tensor:
    """2×2 max pooling of planes."""
    if x.shape[-2] % 2 or x.shape[-1] % 2:
        return functional.max_pool2d(x, 2)
    return torch.as_tensor(_MaxPool.apply(x))  # type: ignore[no-untyped-call]


class SmallCNN(nn.Sequential):
    """Two strided convolutions and a linear layer: 20,746 parameters with 10 classes."""

    def __init__(self, classes: int = 62) -> None:
        super().__init__(
            nn.Conv2d(1, 16, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 7 * 7, classes),
        )


class Linear(nn.Sequential):
    """Multinomial logistic regression on the pixels."""

    def __init__(self, classes: int = 62) -> None:
        super().__init__(nn.Flatten(), nn.Linear(28 * 28, classes))


MODELS: dict[str, Callable[..., nn.Module]] = {"paper-cnn": PaperCNN, "small-cnn": SmallCNN, "linear": Linear}


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that are trained.

    Raises:
        ValueError: If there are none.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ValueError("model: has no parameters to train")
    return parameters


@final
class FlatModel:
    """A model whose parameters are views of one flat vector, and whose gradients are views of another.

    A backward pass writes the gradient where the encoder reads it, without a copy.

    Args:
        model: The model, which is changed in place.
        values: The vector of parameters of another model of the same kind, which is then shared; None: a new one.

    Attributes:
        model: The model.
        values: All parameters that are trained.
        gradient: Their gradients.
    """

    def __init__(self, model: nn.Module, values: Tensor | None = None) -> None:
        parameters = trained_parameters(model)
        if values is None:
            values = torch.cat([p.detach().reshape(-1) for p in parameters])
        self.model, self.values, self.gradient = model, values, torch.zeros_like(values)
        start = 0
        for p in parameters:
            end = start + p.numel()
            p.data, p.grad = values[start:end].view(p.shape), self.gradient[start:end].view(p.shape)
            start = end


def to_floats(inputs: Tensor) -> Tensor:
    """Pixels of bytes as floats in [0, 1] with a channel; other inputs as they are."""
    return inputs.float().div_(255).unsqueeze(-3) if inputs.dtype == torch.uint8 else inputs


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy of each example."""
    return functional.cross_entropy(outputs, labels, reduction="none")


def example_losses(model: nn.Module, inputs: Tensor, labels: Tensor, loss: Loss = cross_entropy) -> Tensor:
    """The loss of each example, or what else `loss` returns.

    Args:
        model: The model.
        inputs: Inputs of the examples; bytes are pixels.
        labels: Labels of the examples.
        loss: Compares outputs and labels.
    """
    return loss(model(to_floats(inputs)), labels)
