"""The count sketch (Charikar et al. 2002; for learning Li et al. 2019): the other public map to few coordinates.

Like the choice of coordinates it is linear, known to everybody, and unbiased on the way back, and like that it hides
nothing: two vectors have two sketches. What makes it private is what follows it here: a clip *after* the sketch, and a
mechanism whose guarantee is that of so many coordinates within that clip. ``PrivateMean`` does both.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from rqm._util.checks import FloatArray, whole
from rqm.randomness import SeededRandom


@final
@dataclass(frozen=True)
class Sketch:
    """Every one of ``dim`` coordinates is added, with a random sign, to one of ``count`` sums.

    >>> from rqm import SecureRandom, private_mean
    >>> sketch = Sketch(dim=1000, count=64, seed=1)
    >>> mean = private_mean(epsilon=1, delta=1e-6, clients=1000, dim=64, l2_clip=1.27)  # 1 + 3/√128: the second clip
    >>> message = mean.encode(sketch.forward(np.ones((1, 1000)) / 1000)[0], SecureRandom())
    >>> sketch.inverse(mean.decode(1000 * message, 1000)[None]).shape
    (1, 1000)
    """

    dim: int
    count: int
    seed: int = 0

    def __post_init__(self) -> None:
        """Validate every value."""
        whole("dim", self.dim, 1)
        whole("count", self.count, 1)
        whole("seed", self.seed, 0)

    @cached_property
    def _words(self) -> Any:
        return SeededRandom(self.seed).words(self.dim)

    @cached_property
    def places(self) -> Any:
        """Where each coordinate goes."""
        return (self._words >> np.uint64(1)) % np.uint64(self.count)

    @cached_property
    def signs(self) -> FloatArray:
        """With which sign."""
        return np.asarray(2.0 * (self._words & np.uint64(1)) - 1)

    def forward(self, rows: FloatArray) -> FloatArray:
        """Rows of ``count`` sums."""
        return np.array([np.bincount(self.places, row * self.signs, self.count) for row in rows])

    def inverse(self, rows: FloatArray) -> FloatArray:
        """Rows of ``dim`` values, each with the sum that it was added to: unbiased over the seed."""
        return np.asarray(rows[:, self.places] * self.signs)
