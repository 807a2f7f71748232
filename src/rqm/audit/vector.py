"""ε of a sum of whole vectors, measured from samples.

Two vectors of one client differ in some coordinates, and all other clients hold the same there (see
`rqm.audit.attained`). The adversary knows the distributions and adds up the privacy losses of the
coordinates' sums. The event is that this loss exceeds a threshold. The pair of vectors and the
threshold are chosen on the distributions, before anything is drawn. Counting the event bounds its
probabilities P and Q under the two vectors. The client's message comes from the encoder. The sum of
all others is the same for both vectors, and is drawn from its exact distribution, rounded to 2⁻⁴⁰.

What they show is measured in one of two ways:

- "epsilon": ε ≥ log((P − δ)/Q). It holds for every claim. For many coordinates and δ = 1e-6 hardly any
  such event would be seen.
- "mu": a Gaussian certificate claims Φ⁻¹(P) − Φ⁻¹(Q) ≤ μ for every event, so any event bounds μ from
  below. It is reported as ε at δ of that Gaussian (Nasr et al. 2023, "Tight auditing of differentially
  private machine learning"). This is an ε only of releases that are as Gaussian as claimed.

A certificate leaves out outcomes of a total probability of δ/1000. So bounds on probabilities are
kept within δ and 1 − δ, where that changes μ by at most 0.001.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import ndtri

from rqm import kernels
from rqm._util.checks import FloatArray, real, whole
from rqm.audit.attained import Pair, loss_events, pairs
from rqm.audit.measurement import EpsilonAudit, Source, choose_event, event_bounds, event_epsilons
from rqm.bounds import gaussian_epsilon
from rqm.kernels.integer_sampler import TABLE_BITS, IntegerSampler, grid_sampler
from rqm.mechanisms.discrete import DiscreteMechanism
from rqm.randomness import SecureRandom

MIN_VECTOR_DRAWS = 20_000
"""Draws of either vector, even where a draw takes many messages."""

Measure = Literal["epsilon", "mu"]


@dataclass(frozen=True, kw_only=True)
class VectorAudit(EpsilonAudit):
    """What is claimed of a release of vectors, and what was measured; one client's vector is replaced.

    Attributes:
        measure: "epsilon" or "mu".
        rounds: Draws of each vector.
        coordinates: Number of coordinates in which the vectors differ.
        size: Their absolute value, in units of the clip.
        others: What all other clients hold there, in units of the clip.
        clients: Clients in the sum.
    """

    measure: Measure
    rounds: int
    coordinates: int
    size: float
    others: float
    clients: int


def audit_vector(
    mechanism: DiscreteMechanism,
    claimed: float,
    *,
    clients: int,
    dim: int,
    l2_clip: float,
    delta: float,
    gaussian: bool = True,
    confidence: float = 0.99,
    effort: int = 1_000_000_000,
    rng: Source | None = None,
) -> VectorAudit:
    """Measure ε of the sum of vectors.

    Args:
        mechanism: A mechanism that sends integers.
        claimed: The ε that is claimed at `delta`.
        clients: Clients in the sum.
        dim: Coordinates of the vectors.
        l2_clip: Largest L2 norm of the vectors.
        delta: δ, above 0 and below 1.
        gaussian: Whether the claim about several coordinates is a Gaussian certificate
            (`Guarantee.accountant`). Any other claim is measured as "epsilon".
        confidence: The probability with which the measured value is a lower bound.
        effort: About how many messages to draw; the default takes some ten seconds.
        rng: Source of randomness; None: a cryptographic one.

    Returns:
        The claimed and the measured ε.

    >>> from rqm import PBM
    >>> audit = audit_vector(PBM(theta=0.05), 4.5, clients=10, dim=64, l2_clip=2.0, delta=1e-5, effort=10**6)
    >>> audit.measure, audit.coordinates, audit.contradicted
    ('mu', 4, False)
    """
    clients = whole("clients", clients, 1)
    dim = whole("dim", dim, 1)
    delta = real("delta", delta, "strictly between 0 and 1", 0, 1)
    confidence = real("confidence", confidence, "between 0 and 1", 0, 1)
    effort = whole("effort", effort, 100_000)
    error = (1 - confidence) / 2
    candidates = list(pairs(mechanism, clients, dim, l2_clip))
    max_count = max(2 * effort // MIN_VECTOR_DRAWS, min(pair.count for pair in candidates))
    attack = max(
        (
            _plan_attack(pair, measure, is_high, effort, error, delta)
            for pair in candidates
            if pair.count <= max_count
            for measure in _measures(pair, gaussian and dim > 1)
            for is_high in (True, False)
        ),
        key=lambda attack: attack.expected,
    )
    pair = attack.pair
    rng = rng or SecureRandom()
    hits, false_hits = (_count(attack, mechanism, is_high, rng) for is_high in (attack.is_high, not attack.is_high))
    lower, upper = event_bounds(hits, false_hits, attack.rounds, error)
    return VectorAudit(
        claimed=claimed,
        measured=_as_epsilon(attack.measure, _shown(lower, upper, measure=attack.measure, delta=delta), delta),
        delta=delta,
        confidence=confidence,
        measure=attack.measure,
        rounds=attack.rounds,
        coordinates=pair.count,
        size=pair.size,
        others=pair.others,
        clients=clients,
    )


class _Attack(NamedTuple):
    """The event that the loss in favor of one vector, the positive one if `is_high`, exceeds a threshold."""

    pair: Pair
    measure: Measure
    is_high: bool
    rounds: int
    threshold: float
    expected: float


def _measures(pair: Pair, gaussian: bool) -> Iterator[Measure]:
    if pair.count == 1 or not gaussian:
        yield "epsilon"
    if gaussian:
        yield "mu"


def _plan_attack(pair: Pair, measure: Measure, is_high: bool, effort: int, error: float, delta: float) -> _Attack:
    """The threshold that is expected to show most with this effort."""
    rounds = max(MIN_VECTOR_DRAWS, effort // (4 * pair.count))
    pmfs = (pair.high, pair.low) if is_high else (pair.low, pair.high)
    thresholds, p, q = loss_events(*pmfs, pair.count)
    event, value = choose_event(p, q, rounds, error, partial(_shown, measure=measure, delta=delta))
    return _Attack(pair, measure, is_high, rounds, float(thresholds[event]), _as_epsilon(measure, value, delta))


def _shown(p: FloatArray | float, q: FloatArray | float, *, measure: Measure, delta: float) -> FloatArray:
    """The ε or μ that events show."""
    if measure == "epsilon":
        return event_epsilons(p, q, delta)
    return np.asarray(ndtri(np.minimum(p, 1 - delta)) - ndtri(np.maximum(q, delta)))


def _as_epsilon(measure: Measure, value: FloatArray | float, delta: float) -> float:
    positive = max(0.0, float(value))
    return positive if measure == "epsilon" else gaussian_epsilon(positive, delta)


def _count(attack: _Attack, mechanism: DiscreteMechanism, is_high: bool, rng: Source) -> int:
    """How often the event occurs in all rounds of one vector."""
    pair, hits = attack.pair, 0
    losses = pair.losses() if attack.is_high else -pair.losses()
    x = pair.size * mechanism.clip * (1 if is_high else -1)
    others = _sampler(pair.others_pmf)
    rounds_at_once = max(1, 2**17 // pair.count)  # coordinates that stay in the cache
    for start in range(0, attack.rounds, rounds_at_once):
        shape = min(rounds_at_once, attack.rounds - start), pair.count
        sums = mechanism.encode(np.full(shape, x), rng, threads=1).astype(np.int64)
        sums += kernels.encode(others, np.full(shape, -1.0), rng, 1)
        total = losses[sums % len(losses)].sum(axis=1)  # sums that are not modular are smaller
        hits += int((total >= attack.threshold).sum())
    return hits


def _sampler(pmf: FloatArray) -> IntegerSampler:
    """A table that draws from a pmf in units of 2⁻⁴⁰. Both of its rows are the same, so any input will do."""
    units = np.rint(pmf / pmf.sum() * 2.0**TABLE_BITS).astype(np.int64)
    units[np.argmax(units)] += 2**TABLE_BITS - int(units.sum())
    return grid_sampler(1.0, Fraction(1), 2, np.stack([units, units]), modulus=len(units))
