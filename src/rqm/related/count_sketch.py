"""The count sketch (Charikar et al. 2002; for learning Li et al. 2019): a public linear map to few coordinates.

Its inverse is unbiased over the seed. It is public and hides nothing: two vectors have two sketches. `PrivateMean`
makes it private by a clip *after* the sketch and a mechanism on the sketch's coordinates.
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
    """Each of `dim` coordinates is added, with a random sign, to one of `count` sums.

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
    def bins(self) -> Any:
        """The number of the sum that each coordinate is added to."""
        return (self._words >> np.uint64(1)) % np.uint64(self.count)

    @cached_property
    def signs(self) -> FloatArray:
        """The sign of each coordinate."""
        return np.asarray(2.0 * (self._words & np.uint64(1)) - 1)

    def forward(self, rows: FloatArray) -> FloatArray:
        """The sketches of vectors, one row each."""
        return np.array([np.bincount(self.bins, row * self.signs, self.count) for row in rows])

    def inverse(self, rows: FloatArray) -> FloatArray:
        """Estimates of vectors from their sketches, one row each: the sum of each coordinate with its sign."""
        return rows[:, self.bins] * self.signs
