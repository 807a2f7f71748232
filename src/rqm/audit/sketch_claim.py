"""Are sketches private without noise? A published claim, and ours, for the worst pair of vectors.

Li et al. (2019) state an ε for a count sketch without noise. Their proof assumes Gaussian vectors.
Differential privacy is about the worst pair: zero and any other vector have different sketches. Noise
for vectors that are clipped *before* the sketch is not enough: the hashes are public, and a vector
whose coordinates all go to the same sum becomes many times longer. Clipped after it, a sketch is as
private as stated.
"""

from dataclasses import dataclass, fields
from functools import partial
from math import inf
from typing import final

import numpy as np

from rqm._util.checks import FloatArray, whole
from rqm.accounting.participation import Participation
from rqm.audit.measurement import EpsilonAudit, IntArray, Source
from rqm.audit.privacy import measure_epsilon
from rqm.core.private_mean import PrivateMean
from rqm.core.transform import second_clip
from rqm.mechanisms.stochastic_rounding import StochasticRounding
from rqm.randomness import SeededRandom
from rqm.related.count_sketch import Sketch

DIM, COUNT, CLIENTS, DELTA = 1024, 16, 10, 1e-3
"""Length of the vectors and of their sketches, clients in a sum, and δ of our claim. They are small to be fast."""


@final
@dataclass(frozen=True, kw_only=True)
class SketchAudit(EpsilonAudit):
    """What is claimed of a sketch, and what was measured.

    Attributes:
        name: The kind of sketch.
        draws: Draws of each vector.
    """

    name: str
    draws: int


def audit_sketch(draws: int = 20_000) -> list[SketchAudit]:
    """Test three claims with the worst pair of vectors: no noise, a clip before the sketch, and one after it.

    Args:
        draws: Sums that are drawn of each vector, at least 1000.

    Returns:
        The three audits. The first two claims are false.
    """
    draws = whole("draws", draws, 1000)
    source = SeededRandom(0x5CE7)
    clip = second_clip(COUNT)
    mean = PrivateMean(
        dim=COUNT,
        l2_clip=clip,
        mechanism=StochasticRounding(clip=clip, levels=2, margin=0.7),
        participation=Participation(clients=CLIENTS),
        delta=DELTA,
    )
    private_epsilon = mean.guarantee().epsilon
    audits = []
    for name, count, claimed, delta, number in (
        ("without noise", _count_nonzero, 1.0, 0.0, draws // 40),  # ε of their examples; all sketches show the vector
        ("noise, clipped before", partial(_count_sums, mean, False), private_epsilon, DELTA, draws),
        ("noise, clipped after", partial(_count_sums, mean, True), private_epsilon, DELTA, draws),
    ):
        audit = measure_epsilon(
            partial(count, source), [0, 1], [np.empty(0)], claimed, draws=number, confidence=0.999, delta=delta
        )
        shared = {field.name: getattr(audit, field.name) for field in fields(SketchAudit) if field.name != "name"}
        audits.append(SketchAudit(name=name, **shared))
    return audits


def _count_nonzero(source: Source, x: float, others: FloatArray, draws: int) -> IntArray:
    """How many sketches of zero (0) or of a unit vector (1) are zero or not, each with secret hashes of its own."""
    seeds = source.words(draws) >> np.uint64(1)
    vector = x * np.eye(1, DIM)
    sketches = (Sketch(DIM, COUNT, int(seed)).forward(vector) for seed in seeds)
    return np.bincount([sketch.any() for sketch in sketches], minlength=2)


def _count_sums(
    mean: PrivateMean, is_clipped: bool, source: Source, x: float, others: FloatArray, draws: int
) -> IntArray:
    """How often each sum came out in the direction that distinguishes a unit vector (1) from its negative (0).

    All coordinates of the vector lie in one sum of a sketch whose hashes are public. The other
    clients hold zero. `is_clipped` says whether there is a clip after the sketch.
    """
    sketch = Sketch(DIM, COUNT, 1)
    in_first_sum = sketch.bins == sketch.bins[0]
    vector = sketch.signs * in_first_sum / in_first_sum.sum() ** 0.5
    direction = mean.transform().rotation.forward(sketch.forward(vector[None]))  # type: ignore[union-attr]
    sent = direction * (2 * x - 1)
    if is_clipped:
        sent *= min(1.0, (mean.transform().length or inf) / float(np.linalg.norm(sent)))
    inputs = np.zeros((CLIENTS, draws, COUNT))
    inputs[0] = sent
    total = np.asarray(mean.mechanism.discrete.encode_sum(inputs.reshape(CLIENTS, -1), source))
    total = total.reshape(draws, COUNT)
    aligned = np.where(direction[0] > 0, total, CLIENTS - total).sum(axis=1)
    return np.bincount(aligned, minlength=CLIENTS * COUNT + 1)
