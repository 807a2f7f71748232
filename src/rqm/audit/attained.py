"""ε that some inputs attain in a release of many coordinates.

It is not a guarantee: no sound bound lies below it. One client's vector is mirrored in some
coordinates, and the other clients all hold the same value there. The distributions are known exactly.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, log, sqrt

import numpy as np

from rqm._util.checks import FloatArray
from rqm.audit.measurement import event_epsilons
from rqm.mechanisms.additive import Additive
from rqm.mechanisms.discrete import DiscreteMechanism
from rqm.mechanisms.sums import summed


@dataclass(frozen=True)
class Pair:
    """Two vectors of a client that are mirror images in some coordinates.

    Attributes:
        size: The absolute value of these coordinates, in units of the clip.
        count: How many they are.
        others: What each other client holds there, in units of the clip.
        low: The pmf of a coordinate's sum where the client's value is negative.
        high: The pmf of that sum where it is positive.
        others_pmf: The pmf of the sum of the other clients. Its first outcome is 0 where sums are
            modular. Otherwise it is that of `low` and `high`.
    """

    size: float
    count: int
    others: float
    low: FloatArray
    high: FloatArray
    others_pmf: FloatArray

    def losses(self) -> FloatArray:
        """The privacy loss of each outcome of a coordinate, in favor of the positive value."""
        with np.errstate(divide="ignore", invalid="ignore"):
            losses = np.log(self.high) - np.log(self.low)
        return np.asarray(np.clip(np.nan_to_num(losses, nan=0.0), -700, 700))

    def epsilon(self, delta: float) -> float:
        """An ε at δ that the pair attains, in the direction where it is larger."""
        return max(
            float(event_epsilons(*loss_events(*pmfs, self.count)[1:], delta).max())
            for pmfs in ((self.high, self.low), (self.low, self.high))
        )


def attained_epsilon(mechanism: DiscreteMechanism, honest: int, dim: int, l2_clip: float, delta: float) -> float:
    """The largest ε that one of the tried inputs attains.

    Args:
        mechanism: A mechanism that sends integers.
        honest: Honest clients in the sum.
        dim: Coordinates of the vectors.
        l2_clip: Largest L2 norm of the vectors.
        delta: δ.

    Returns:
        ε; 0 if none is attained.
    """
    return max((pair.epsilon(delta) for pair in pairs(mechanism, honest, dim, l2_clip)), default=0.0)


def pairs(mechanism: DiscreteMechanism, honest: int, dim: int, l2_clip: float) -> Iterator[Pair]:
    """Pairs of vectors, each with what the other clients hold.

    Args:
        mechanism: A mechanism that sends integers.
        honest: Honest clients in the sum.
        dim: Coordinates of the vectors.
        l2_clip: Largest L2 norm of the vectors.

    Yields:
        Pairs with the largest number of mirrored coordinates that the clip allows.
    """
    additive = mechanism.additive
    sizes = [1.0, 0.5, 0.25]  # in units of the clip: few large differences, or more small ones
    if additive is not None:
        sizes = sorted({_level_size(additive, size) for size in (*sizes, 1 / 3)})
    for size in sizes:
        count = min(dim, int((l2_clip / mechanism.clip / size) ** 2 * (1 + 1e-9)))
        if count and additive is not None:
            yield _additive_pair(additive, honest, size, count)
        elif count:
            yield from _pairs_of_size(mechanism, honest, size, count)


def _level_size(mechanism: Additive, size: float) -> float:
    """The size below `size`, or 1, that is a level, so that the encoder rounds nothing."""
    return (2 * int(size * mechanism.steps / 2 - 1e-9) + 1) / mechanism.steps if size < 1 else 1.0


def _additive_pair(mechanism: Additive, honest: int, size: float, count: int) -> Pair:
    """A pair of a mechanism whose noise does not depend on the inputs: the other clients hold −clip."""
    distance = round(size * mechanism.steps)
    level = (mechanism.steps - distance) // 2
    noise = mechanism.summed(honest)
    shift = honest * mechanism.offset
    low = np.roll(noise, shift + level)
    high = np.roll(noise, shift + level + distance)
    others = np.eye(1, mechanism.levels)[0]
    if honest > 1:
        others = np.roll(mechanism.summed(honest - 1), shift - mechanism.offset)
    return Pair(size, count, -1.0, low, high, others)


def _pairs_of_size(mechanism: DiscreteMechanism, honest: int, size: float, count: int) -> Iterator[Pair]:
    """Pairs of any other mechanism: the other clients hold one of five of its breakpoints."""
    low, high = (np.exp(mechanism.log_pmf_at(x * mechanism.clip, "sampled")) for x in (-size, size))
    breakpoints = mechanism.breakpoints[mechanism.breakpoints >= 0]
    for x in breakpoints[:: -max(1, len(breakpoints) // 5)]:
        others, _ = summed(np.exp(mechanism.log_pmf_at(x, "sampled")), honest - 1, 1e-60)
        sums = np.convolve(low, others), np.convolve(high, others)
        yield Pair(size, count, float(x / mechanism.clip), *sums, others)


def loss_events(p: FloatArray, q: FloatArray, count: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Probabilities of the events that the summed loss of some coordinates exceeds a threshold.

    Losses of many coordinates are rounded to a grid. Any event is sound, so rounding costs the
    adversary only.

    Args:
        p: The first pmf of a coordinate.
        q: The second pmf.
        count: Number of coordinates.

    Returns:
        Thresholds, from the largest to the smallest, and the probabilities of the events under both
        distributions. The threshold lies halfway to the next loss. Without rounding, events of many
        coordinates have nearly these probabilities.
    """
    is_possible = (p > 0) & (q > 0)
    p, q = p[is_possible], q[is_possible]
    losses = np.log(p) - np.log(q)
    if count == 1:
        order = np.argsort(-losses, kind="stable")
        losses = losses[order]
        return np.append((losses[:-1] + losses[1:]) / 2, -inf), np.cumsum(p[order]), np.cumsum(q[order])
    mean = float(np.average(losses, weights=p))
    deviation = sqrt(np.average((losses - mean) ** 2, weights=p)) or 1.0
    resolution = 64  # steps in a standard deviation of the loss
    step = deviation / resolution
    steps = np.rint((losses - mean) / step).clip(-60 * resolution, 60 * resolution).astype(np.int64)
    largest = int(abs(steps).max())
    largest_sum = min(count * largest, int(16.0 * sqrt(count) * resolution) + largest)
    size = 2 << largest_sum.bit_length()
    # Tilted by the losses, the second pmf lies where the first does, and small probabilities keep their digits.
    tilted = q * np.exp(step * steps)
    mass = float(tilted.sum())

    def sum_pmf(pmf: FloatArray) -> FloatArray:
        """The pmf of the coordinates' summed steps, from the largest sum to the smallest."""
        wrapped = np.bincount(steps % size, pmf, size)
        return np.fft.fftshift(np.maximum(np.fft.irfft(np.fft.rfft(wrapped) ** count, size), 0))[::-1]

    sums = np.arange(size // 2 - 1, -size // 2 - 1, -1)
    untilt = np.exp(np.minimum(count * log(mass) - step * sums, 700))
    thresholds = (count * mean + step * (sums - 0.5)).astype(np.float64)
    return thresholds, np.cumsum(sum_pmf(p)), np.cumsum(sum_pmf(tilted / mass) * untilt)
