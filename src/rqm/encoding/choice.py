"""Fewer coordinates than a vector has: a public random choice of rotated ones.

The choice is a linear map M from d to k coordinates that everybody knows, scaled so that E[MᵀM] = I: on average it
keeps lengths, and what the server maps back by Mᵀ is unbiased. It hides nothing, and nothing is claimed of it: what is
sent is clipped once more after it, and the guarantee is that of k coordinates within that second clip, whichever were
chosen.
``docs/few-coordinates.md`` has what it costs.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import erfc, exp, pi, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt

from rqm._util.checks import padded, whole
from rqm.encoding.transforms import Rotation, tensors
from rqm.randomness import SeededRandom

if TYPE_CHECKING:
    from rqm.encoding.private_mean import PrivateMean

CHOICE = 8
"""The stream of a seed that the choice of every round is drawn from."""
ROOM = 3.0
"""Vectors may be longer after the choice than they are on average by so many standard deviations."""

NORMAL = np.array([NormalDist().inv_cdf((j + 0.5) / 1000) for j in range(1000)])
"""What a thousand rotated coordinates look like, in units of their root mean square."""


def second_clip(count: int) -> float:
    """What vectors of length one are clipped to after a choice of so many coordinates: 1 + a, a = 3/√(2k).

    The square of a chosen vector's length has variance 2/k at most, whatever the vector is: random signs make the
    coordinates of a rotated vector no heavier in their tails than a Gaussian's.

    >>> round(second_clip(16_384), 4)
    1.0166
    """
    return 1 + ROOM / sqrt(2 * whole("coordinates", count, 1))


def clipped_away(count: int) -> float:
    """How much of a vector as long as the first clip the second takes away on average, if rotated ones are Gaussian."""
    deviation, tail = 1 / sqrt(2 * count), erfc(ROOM / sqrt(2)) / 2
    return deviation * (exp(-(ROOM**2) / 2) / sqrt(2 * pi) - ROOM * tail)


def clipped_away_at_most(count: int) -> float:
    """The same at most, for any vector: from the variance of the squared length alone."""
    variance, room = 2 / count, second_clip(count) ** 2 - 1
    return (sqrt(variance + room**2) - room) / 4 / (1 + room)


def choice_error(count: int, of: int, length: float) -> float:
    """What the choice adds to the mean squared error of each value of a decoded mean of this length."""
    return (of / count - 1) * length**2 / of


def expected_error(mean: "PrivateMean", length: float, size: float | None = None) -> float:
    """The mean squared error of each value that ``mean.decode`` returns, by the choice and by the noise.

    Coordinates of rotated vectors are taken for Gaussian. What clips take away, and sums that wrap around, are not in
    it.
    """
    if mean.l2_clip is None or not mean.rotate:
        raise ValueError("error: must be asked of vectors that are clipped in L2 and rotated")
    mech, chosen_ = mean.mechanism, choice_error(mean.coordinates, padded(mean.dim), length)
    clients = mean.participation.clients
    if not mech.has_integer_messages:
        return chosen_ + (mech.sum_noise_std(clients) * (mean.record_clip or mean.bound) / clients) ** 2
    x = (mean.l2_clip if size is None else size) / sqrt(mean.coordinates) * NORMAL
    return chosen_ + float(mech.discrete.variance(x).mean()) / clients


@final
@dataclass(frozen=True)
class Choice:
    """``count`` of the coordinates of vectors of ``dim``, rotated and padded: the same for all clients of a round.

    >>> choice, rotation = Choice(dim=6, count=4, seed=1, turn=0), Rotation(dim=6, seed=3)
    >>> few = choice.pick(rotation.forward(np.ones((1, 6))))
    >>> few.shape, choice.inverse(few, rotation).shape
    ((1, 4), (1, 6))
    """

    dim: int
    count: int
    seed: int
    turn: int

    @property
    def scale(self) -> float:
        """√(d/k), so that lengths stay as they are on average."""
        return sqrt(padded(self.dim) / self.count)

    def pick(self, rows: Any) -> Any:
        """The chosen coordinates of rotated rows."""
        return rows[:, self._places(rows)] * self.scale

    def inverse(self, rows: Any, rotation: Rotation) -> Any:
        """Back to rows of ``dim`` columns: zero where nothing was chosen, rotated back."""
        shape = (len(rows), padded(self.dim))
        out = np.zeros(shape) if tensors(rows) is None else rows.new_zeros(shape)
        out[:, self._places(rows)] = rows * self.scale
        return rotation.inverse(out)

    def _places(self, rows: Any) -> Any:
        other, what = tensors(rows), (self.seed, self.turn, self.count, padded(self.dim))
        return chosen(*what) if other is None else other.chosen(*what, rows.device)


@lru_cache(maxsize=4)
def chosen(seed: int, turn: int, count: int, of: int) -> npt.NDArray[np.int64]:
    """So many of the numbers below a power of two, sorted; all sets of them are equally likely.

    >>> chosen(1, 0, 3, 8).tolist() == chosen(1, 0, 3, 8).tolist() != chosen(1, 1, 3, 8).tolist()
    True
    """
    if 2 * count > of:  # rather those that are left out
        left = np.ones(of, dtype=bool)
        left[_distinct(SeededRandom(seed, CHOICE, turn), of - count, of)] = False
        return np.flatnonzero(left)
    return np.sort(_distinct(SeededRandom(seed, CHOICE, turn), count, of))


def _distinct(source: SeededRandom, count: int, of: int) -> npt.NDArray[np.int64]:
    """The first so many different numbers of a sequence of uniform ones."""
    drawn = np.empty(0, dtype=np.int64)
    while True:
        words = source.words(3 * count // 2 + 64) & np.uint64(of - 1)
        drawn = np.concatenate([drawn, words.astype(np.int64)])
        values, first = np.unique(drawn, return_index=True)
        if len(values) >= count:
            return drawn[np.sort(first)[:count]]
