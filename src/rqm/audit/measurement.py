"""Lower bounds on ε from samples.

An attacker draws outcomes for two neighboring inputs and counts an event. Under (ε, δ)-differential
privacy P ≤ e^ε Q + δ for its probabilities P and Q, so confidence bounds on both bound ε from below.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.special import ndtri

from rqm._util.checks import FloatArray
from rqm.randomness import SecureRandom, SeededRandom

IntArray = npt.NDArray[np.int64]
Source = SecureRandom | SeededRandom


@dataclass(frozen=True, kw_only=True)
class EpsilonAudit:
    """A claimed ε and what an attack measured.

    Attributes:
        claimed: The ε that is claimed at `delta`.
        measured: A lower bound on ε at `delta`.
        delta: δ.
        confidence: The probability with which the lower bound holds.
    """

    claimed: float
    measured: float
    delta: float
    confidence: float

    @property
    def contradicted(self) -> bool:
        """Whether more was measured than is claimed."""
        return bool(self.measured > self.claimed)

    def to_dict(self) -> dict[str, Any]:
        """All values, ready for JSON."""
        values = asdict(self) | {"contradicted": self.contradicted}
        return {name: "inf" if value == inf else value for name, value in values.items()}


def event_bounds(hits: int, false_hits: int, draws: int, error: float) -> tuple[float, float]:
    """Confidence bounds on the probabilities of an event under two inputs (Clopper and Pearson 1934).

    These are the quantiles that `scipy.stats.binomtest(...).proportion_ci` searches for. Its search
    ends within 2e-12, which is too coarse for rare events.

    Args:
        hits: How often the event was seen under the first input.
        false_hits: How often it was seen under the second.
        draws: Draws of each input.
        error: The probability with which each bound may be wrong.

    Returns:
        A lower bound for the first input and an upper bound for the second.

    >>> event_bounds(0, 0, 100, 0.05)[0], round(event_bounds(0, 0, 100, 0.05)[1], 4)
    (0.0, 0.0295)
    """
    lower = float(stats.beta.ppf(error, hits, draws - hits + 1)) if hits else 0.0
    upper = float(stats.beta.isf(error, false_hits + 1, draws - false_hits)) if false_hits < draws else 1.0
    return lower, upper


def event_epsilons(p: npt.ArrayLike, q: npt.ArrayLike, delta: float) -> FloatArray:
    """The ε that events show.

    Args:
        p: Probability of each event under the first input.
        q: The same under the second.
        delta: δ.

    Returns:
        log((p − δ)/q); −∞ where p ≤ δ.
    """
    p = np.asarray(p)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(p > delta, np.log(p - delta) - np.log(q), -inf)


def choose_event(
    p: FloatArray, q: FloatArray, draws: int, error: float, value: Callable[[FloatArray, FloatArray], FloatArray]
) -> tuple[int, float]:
    """The event that is expected to show most.

    Args:
        p: Probability of each event under the first input, known or estimated. Events are nested:
            each holds the one before it.
        q: The same under the second input.
        draws: Draws of each input that the event will be counted in.
        error: The probability with which each confidence bound may be wrong.
        value: What a lower bound on p and an upper bound on q show.

    Returns:
        The index of the event, and the value that can be expected of it.
    """
    z = float(ndtri(error))
    values = value(_wilson_bounds(p, draws, z), _wilson_bounds(q, draws, -z))
    # Several events in a row may have the same outcomes, and so the same value. The middle one is farthest from other
    # events.
    is_best = values >= values.max() - 1e-9
    first = int(np.argmax(is_best))
    index = first + int(np.argmin(np.append(is_best[first:], False))) // 2
    return index, float(values[index])


def _wilson_bounds(probabilities: FloatArray, draws: int, z: float) -> FloatArray:
    """About the confidence bounds, `z` standard deviations away, of events that are counted (Wilson 1927)."""
    p = np.clip(probabilities, 0, 1)
    ratio = z * z / draws
    deviation = np.sqrt(p * (1 - p) / draws + ratio / draws / 4)
    return np.asarray(np.clip((p + ratio / 2 + z * deviation) / (1 + ratio), 0, 1))
