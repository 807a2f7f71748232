"""How much does a mechanism leak, measured? A lower confidence bound on ε, from nothing but samples.

The attacker draws the outcome many times for two inputs, and looks for a set of outcomes that one gives far more often
than the other. Pair, set, and what the other clients hold are chosen on some draws and measured on others, so nothing
is fitted to what it is tested on. The bound is Clopper and Pearson's, for both frequencies together.
"""

from dataclasses import asdict, dataclass
from itertools import permutations
from math import inf, log
from typing import Any, Literal

import numpy as np
from scipy import stats

from rqm._checks import FloatArray, whole
from rqm.audit.sampler import checked_confidence
from rqm.channel import Channel
from rqm.privacy.worst_case import renyi
from rqm.randomness import SecureRandom, SeededRandom

CHUNK = 4_000_000
"""Draws at a time."""
CROWDS = 4
"""Knots, about, at which all other clients are tried."""

Claim = Literal["certified", "paper"]


@dataclass(frozen=True)
class PrivacyAudit:
    """What is claimed of one coordinate, and what was measured with ``confidence``; pure ε, one client replaced."""

    claimed: float
    measured: float
    confidence: float
    contradicted: bool
    x: float
    x_prime: float
    clients: int
    draws: int
    claim: str

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        fields = asdict(self)
        return {key: "inf" if value == inf else value for key, value in fields.items()}


def audit_privacy(
    mech: Channel, clients: int = 1, *, draws: int = 4_000_000, confidence: float = 0.999, claim: Claim = "certified",
    rng: SecureRandom | SeededRandom | None = None,
) -> PrivacyAudit:  # fmt: skip
    """Measure ε of one coordinate in a sum over ``clients``, and compare it with what is claimed.

    ``claim="certified"`` is this library's bound for all inputs of everyone, of the deployed integers;
    ``claim="paper"`` looks only at ±clip, as the paper does. The pair, and what the other clients hold, are
    searched for by sampling.
    """
    draws, clients = whole("draws", draws, 10_000), whole("clients", clients, 1)
    confidence, rng = checked_confidence(confidence), rng or SecureRandom()
    worst = renyi(mech, inf, clients, law="sampled")
    paper = renyi(mech, inf, clients, "balanced", law="sampled") if claim == "paper" else None
    crowds = _crowds(mech, clients, np.repeat(list(worst.other_inputs), list(worst.other_inputs.values())))
    # To choose by: as many draws as to measure with, or where every draw is a sum of many, a tenth.
    search = draws if clients == 1 else max(10_000, draws // 10)
    tried = []
    for crowd in crowds:
        first = {x: _counts(mech, x, crowd, search, rng) for x in mech.knots.tolist()}
        for x, y in permutations(first, 2):
            event = _event(first[x], first[y])
            tried.append((_bound(first[x], first[y], event, search, confidence), (x, y), event, crowd))
    _, pair, event, crowd = max(tried, key=lambda one: one[0])
    there, here = (_counts(mech, x, crowd, draws, rng) for x in pair)
    measured = max(0.0, _bound(there, here, event, draws, confidence))
    claimed = worst.upper if paper is None else paper.upper
    return PrivacyAudit(
        claimed, measured, confidence, bool(measured > claimed), pair[0], pair[1], clients, draws, claim
    )


def _crowds(mech: Channel, clients: int, worst: FloatArray) -> list[FloatArray]:
    """What the others may hold: all the same knot, half of them each end, and the worst that accounting found."""
    if clients == 1:
        return [np.empty(0)]
    ends = np.where(np.arange(clients - 1) % 2, mech.clip, -mech.clip)
    return [*(np.full(clients - 1, x) for x in mech.knots[:: max(1, len(mech.knots) // CROWDS)]), ends, worst]


def _counts(mech: Channel, x: float, others: FloatArray, draws: int, rng: SecureRandom | SeededRandom) -> Any:
    """How often each sum came out."""
    clients = len(others) + 1
    modulus = 2 ** mech.sum_bits(clients)
    out = np.zeros(modulus, dtype=np.int64)
    left = draws
    while left:
        size = min(left, max(1, CHUNK // clients))
        sums = np.asarray(mech.encode(np.full(size, x), rng)).astype(np.int64)
        if len(others):
            sums = (sums + mech.encode_sum(np.repeat(others[:, None], size, axis=1), rng)) % modulus
        out += np.bincount(sums, minlength=modulus)
        left -= size
    return out


def _event(p: Any, q: Any) -> Any:
    """The outcomes that speak most for the first input: of those sorted by their ratio, as many as bound best."""
    ratio = (p + 0.5) / (q + 0.5)
    order = np.argsort(-ratio)
    gained, paid = np.cumsum(p[order]), np.cumsum(q[order])
    with np.errstate(divide="ignore", invalid="ignore"):
        # About the lower bound: the logarithm less three standard deviations.
        about = np.log(gained) - np.log(paid + 3) - 3 * np.sqrt(1 / np.maximum(gained, 1) + 1 / (paid + 1))
    chosen = np.zeros(len(p), dtype=bool)
    chosen[order[: int(np.argmax(about)) + 1]] = True
    return chosen


def _bound(p: Any, q: Any, event: Any, draws: int, confidence: float) -> float:
    """log(p/q) at least, with this confidence: Clopper and Pearson's bounds on both, half of the error each."""
    error = (1 - confidence) / 2
    hits, misses = int(p[event].sum()), int(q[event].sum())
    low = stats.beta.ppf(error, hits, draws - hits + 1) if hits else 0.0
    high = stats.beta.ppf(1 - error, misses + 1, draws - misses) if misses < draws else 1.0
    return log(low / high) if low > 0 else -inf
