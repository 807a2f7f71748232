"""How many parameters the models have that come with the package, and how many classes the data: without torch."""

from collections.abc import Callable

OWN = "own"
"""The name of a model that does not come with the package."""
SIDE = 28
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
    return (inputs + 1) * outputs


PARAMETERS: dict[str, Callable[[int], int]] = {
    "paper-cnn": lambda k: _dense(9, 32) + _dense(9 * 32, 64) + _dense(64 * 11 * 11, 128) + _dense(128, k),
    "small-cnn": lambda k: _dense(25, 16) + _dense(9 * 16, 32) + _dense(32 * 7 * 7, k),
    "linear": lambda k: _dense(SIDE * SIDE, k),
}


def parameters(model: str, data: str) -> int | None:
    """The number of parameters of a model on a data set; None if one of them does not come with the package.

    >>> parameters("paper-cnn", "femnist"), parameters("mine", "femnist")
    (1018174, None)
    """
    return PARAMETERS[model](CLASSES[data]) if model in PARAMETERS and data in CLASSES else None
