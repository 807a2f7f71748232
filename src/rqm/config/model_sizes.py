"""The number of parameters of the models and of classes of the data sets that come with the package, without torch."""

from collections.abc import Callable

OWN = "own"
"""The name of a model that does not come with the package."""
IMAGE_SIDE = 28
"""Pixels of a picture's side."""
CLASSES = {
    "glyphs": 62,
    "femnist": 62,
    "emnist-byclass": 62,
    "emnist-byclass-test": 62,
    "mnist": 10,
    "mnist-writers": 10,
    "mnist-shards": 10,
}


def _dense(inputs: int, outputs: int) -> int:
    """Parameters of a dense layer, or of a convolution with this many inputs per output."""
    return (inputs + 1) * outputs


PARAMETERS: dict[str, Callable[[int], int]] = {
    "paper-cnn": lambda classes: _dense(9, 32) + _dense(9 * 32, 64) + _dense(64 * 11 * 11, 128) + _dense(128, classes),
    "small-cnn": lambda classes: _dense(25, 16) + _dense(9 * 16, 32) + _dense(32 * 7 * 7, classes),
    "linear": lambda classes: _dense(IMAGE_SIDE * IMAGE_SIDE, classes),
}


def parameters(model: str, data: str) -> int | None:
    """The number of parameters of a model on a data set.

    Args:
        model: The name of the model.
        data: The name of the data set.

    Returns:
        The number; None if one of them does not come with the package.

    >>> parameters("paper-cnn", "femnist"), parameters("mine", "femnist")
    (1018174, None)
    """
    return PARAMETERS[model](CLASSES[data]) if model in PARAMETERS and data in CLASSES else None
