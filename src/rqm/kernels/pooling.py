"""2×2 max-pooling on the CPU in one pass: the largest of each square, and where it is."""
# ruff: noqa: PLR0124 (what is not equal to itself is NaN)

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Array = npt.NDArray[Any]


@njit(cache=True, nogil=True, error_model="numpy")
def largest(x: Array, y: Array, where: Array) -> None:  # pragma: no cover (compiled)
    """Fill ``y`` and ``where`` (half as high and wide as the planes of ``x``): the first of equals, or what is NaN."""
    planes, height, width = y.shape
    for plane in range(planes):
        for i in range(height):
            above, below = x[plane, 2 * i], x[plane, 2 * i + 1]
            corner = 2 * i * 2 * width
            for j in range(width):
                a, b, c, d = above[2 * j], above[2 * j + 1], below[2 * j], below[2 * j + 1]
                right, also = b > a or b != b, d > c or d != d
                top, bottom = b if right else a, d if also else c
                down = bottom > top or bottom != bottom
                y[plane, i, j] = bottom if down else top
                where[plane, i, j] = corner + 2 * j + (2 * width + also if down else np.int64(right))
