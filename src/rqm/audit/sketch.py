"""Are sketches private for free? A published claim, and ours, before the worst pair of vectors.

Li et al. (2019) state an ε for a count sketch without any noise; their proof takes the vectors for Gaussian.
Differential privacy asks for the worst pair: zero and anything else have different sketches, whatever the hashes are.
Nor is it enough to add noise for vectors that were clipped *before* the sketch: hashes are public, and a vector whose
coordinates all go to the same sum is many times longer afterwards. Clipped after it, a sketch is as private as is
stated.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from math import inf, log
from typing import Any, final

import numpy as np
from scipy import stats

from rqm._util.checks import FloatArray, real, whole
from rqm.accounting.participation import Participation
from rqm.encoding.choice import second_clip
from rqm.encoding.private_mean import PrivateMean
from rqm.encoding.sketch import Sketch
from rqm.mechanisms.rounding import Rounding
from rqm.randomness import SecureRandom, SeededRandom

DIM, COUNT, CLIENTS, DELTA = 1024, 16, 10, 1e-3
"""Of the vectors, their sketches, and the sums in which ours are hidden."""
FEWER = 40
"""Draws of ours for each sketch without noise, which needs few."""
PUBLISHED = 1.0
"""The ε that the published claim is illustrated with."""


@final
@dataclass(frozen=True)
class SketchAudit:
    """What was claimed of a sketch, and what at least it is, with this confidence."""

    name: str
    claimed: float
    delta: float
    measured: float
    confidence: float
    draws: int

    @property
    def contradicted(self) -> bool:
        """Whether the claim is false."""
        return self.measured > self.claimed

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return {**asdict(self), "contradicted": self.contradicted}


def audit_sketch(
    *, draws: int = 20_000, confidence: float = 0.999, rng: SecureRandom | SeededRandom | None = None
) -> list[SketchAudit]:
    """Put three claims before the worst pair: no noise, noise and a clip before the sketch, and one after it."""
    draws, confidence = whole("draws", draws, 1000), real("confidence", confidence, "between 0 and 1", 0, 1)
    source = rng or SeededRandom(0x5CE7)

    def free(one: int) -> FloatArray:
        """Sketches of zero (0) or of a unit vector (1), each with hashes of its own that nobody knows."""
        seeds = source.words(draws // FEWER) >> np.uint64(1)
        x = np.eye(DIM)[:1] * one
        return np.array([np.abs(Sketch(DIM, COUNT, int(seed)).forward(x)).max() for seed in seeds])

    found = [SketchAudit("without noise", PUBLISHED, 0.0, _measured(free, 0.0, confidence), confidence, draws // FEWER)]
    mean = _mean()
    for name, late in (("noise, clipped before", False), ("noise, clipped after", True)):
        measured = _measured(partial(_sums, mean, late, draws, source), DELTA, confidence)
        found.append(SketchAudit(name, mean.guarantee().epsilon, DELTA, measured, confidence, draws))
    return found


def _mean() -> PrivateMean:
    """What is claimed for sketches of unit vectors: that of so many coordinates within the second clip."""
    clip = second_clip(COUNT)
    mech = Rounding(clip=clip, levels=2, margin=0.7)
    participation = Participation(clients=CLIENTS)
    return PrivateMean(dim=COUNT, l2_clip=clip, mechanism=mech, participation=participation, delta=DELTA)


def _sums(mean: PrivateMean, late: bool, draws: int, source: SecureRandom | SeededRandom, one: int) -> FloatArray:
    """What a server sees of a user who holds one of two vectors, along what tells them apart; the others hold zero.

    Both are unit vectors that lie in a single sum of a sketch whose hashes are public. Without the clip after it, the
    mechanism is given what the sketch makes of them.
    """
    sketch = Sketch(DIM, COUNT, 1)
    inside = sketch.places == sketch.places[0]
    x = sketch.signs * inside / inside.sum() ** 0.5 * (2 * one - 1)
    y = mean.rotation(0).forward(sketch.forward(x[None]))  # type: ignore[union-attr]
    if late:
        y *= min(1.0, (mean.length or inf) / float(np.linalg.norm(y)))
    channel = mean.mechanism.channel
    crowd = np.concatenate([np.repeat(y, draws, axis=0)[None], np.zeros((CLIENTS - 1, draws, COUNT))])
    total = np.asarray(channel.encode_sum(crowd.reshape(CLIENTS, -1), source)).reshape(draws, COUNT)
    return np.asarray((2 * total - CLIENTS) @ np.sign(y[0]) * (2 * one - 1))


def _measured(sample: Callable[[int], FloatArray], delta: float, confidence: float) -> float:
    """ε at least: a threshold is chosen by one sample, and measured by another."""
    first, second = ([sample(one) for one in (0, 1)] for _ in range(2))
    thresholds = np.unique(np.concatenate(first))
    scores = [_bound(first[1] >= cut, first[0] >= cut, delta, confidence) for cut in thresholds]
    cut = thresholds[int(np.argmax(scores))]
    return max(0.0, _bound(second[1] >= cut, second[0] >= cut, delta, confidence))


def _bound(p: Any, q: Any, delta: float, confidence: float) -> float:
    """log((p − δ)/q) at least, by Clopper and Pearson's bounds on both."""
    error, draws, hits, misses = (1 - confidence) / 2, len(p), int(p.sum()), int(q.sum())
    low = stats.beta.ppf(error, hits, draws - hits + 1) if hits else 0.0
    high = stats.beta.ppf(1 - error, misses + 1, draws - misses) if misses < draws else 1.0
    return log((low - delta) / high) if low > delta else -inf
