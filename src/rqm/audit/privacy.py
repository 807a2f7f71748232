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

from rqm._util.checks import FloatArray, real, whole
from rqm.audit.sampler import checked_confidence
from rqm.certify.renyi import renyi
from rqm.mechanisms.base import Mechanism
from rqm.mechanisms.channel import Channel
from rqm.mechanisms.rappor import Rappor
from rqm.mechanisms.vqsgd import VQSGD
from rqm.randomness import SecureRandom, SeededRandom

CHUNK = 4_000_000
"""Draws at a time."""
MOST = 400_000
"""Draws of whole messages, of which each takes longer."""
CROWDS = 4
"""Knots, about, at which all other clients are tried."""

Source = SecureRandom | SeededRandom
Claim = Literal["certified", "paper"]


@dataclass(frozen=True)
class PrivacyAudit:
    """What is claimed of one coordinate, and what was measured with ``confidence``; one client replaced."""

    claimed: float
    measured: float
    confidence: float
    contradicted: bool
    x: float
    x_prime: float
    clients: int
    draws: int
    claim: str
    delta: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        fields = asdict(self)
        return {key: "inf" if value == inf else value for key, value in fields.items()}


def audit_privacy(
    mech: Mechanism,
    clients: int = 1,
    *,
    draws: int = 4_000_000,
    confidence: float = 0.999,
    claim: Claim = "certified",
    delta: float = 0.0,
    rng: SecureRandom | SeededRandom | None = None,
) -> PrivacyAudit:
    """Measure ε of one coordinate, or of a message that is sent as a whole, in a sum over ``clients``; and compare it.

    ``claim="certified"`` is this library's bound for all inputs of everyone, of the deployed integers;
    ``claim="paper"`` looks only at ±clip, as the paper does. The pair, and what the other clients hold, are
    searched for by sampling.
    """
    if mech.whole is not None:
        if claim == "paper" or delta:
            raise ValueError(
                f"mechanism = {mech.kind}: must be audited as certified, with delta = 0, as a whole message"
            )
        return audit_message(mech.whole, clients, draws=min(draws, MOST), confidence=confidence, rng=rng)
    return _audit_coordinate(mech.channel, clients, draws, confidence, claim, delta, rng)


def _audit_coordinate(
    mech: Channel, clients: int, draws: int, confidence: float, claim: Claim, delta: float, rng: Source | None
) -> PrivacyAudit:
    draws, clients = whole("draws", draws, 10_000), whole("clients", clients, 1)
    delta = real("delta", delta, "at least 0 and below 1", 0, 1, closed="[")
    if delta and (clients > 1 or claim == "paper"):
        raise ValueError(f"delta = {delta:g}: must be 0 unless one client sends alone, and the claim is certified")
    confidence, rng = checked_confidence(confidence), rng or SecureRandom()
    worst = renyi(mech, inf, clients, distribution="sampled")
    others = worst.witness.other_inputs
    paper = renyi(mech, inf, clients, "balanced", distribution="sampled") if claim == "paper" else None
    crowds = _crowds(mech, clients, np.repeat(list(others), list(others.values())))
    # To choose by: as many draws as to measure with, or where every draw is a sum of many, a tenth.
    search = draws if clients == 1 else max(10_000, draws // 10)
    tried = []
    for crowd in crowds:
        first = {x: _counts(mech, x, crowd, search, rng) for x in mech.breakpoints.tolist()}
        for x, y in permutations(first, 2):
            event = _event(first[x], first[y], delta * search)
            tried.append((_bound(first[x], first[y], event, search, confidence, delta), (x, y), event, crowd))
    _, pair, event, crowd = max(tried, key=lambda one: one[0])
    there, here = (_counts(mech, x, crowd, draws, rng) for x in pair)
    measured = max(0.0, _bound(there, here, event, draws, confidence, delta))
    claimed = exact_epsilon(mech, delta) if delta else worst.upper if paper is None else paper.upper
    return PrivacyAudit(
        claimed, measured, confidence, bool(measured > claimed), pair[0], pair[1], clients, draws, claim, delta
    )


def audit_message(
    mech: VQSGD, clients: int = 1, *, draws: int = 400_000, confidence: float = 0.999, rng: Source | None = None
) -> PrivacyAudit:
    """The same of a whole message that is sent as one, by its own encoder: vectors of one value, which has two slots.

    There the most that a message can tell is attained; more values only add bits that are the same for both.
    """
    draws, clients = whole("draws", draws, 10_000), whole("clients", clients, 1)
    confidence, source = checked_confidence(confidence), rng or SecureRandom()
    claimed = mech.differing * renyi(mech.channel, inf, clients, distribution="sampled").upper

    def counts(own: float, others: FloatArray, many: int) -> Any:
        found = sum(mech.messages(np.full((many, 1), value), source) for value in (own, *others))
        return np.bincount(found @ (1, clients + 1), minlength=(clients + 1) ** 2)  # type: ignore[operator]

    tried = []
    for up in {0, clients // 2, clients - 1}:
        others = np.repeat([1.0, -1.0], [up, clients - 1 - up])
        first = {own: counts(own, others, draws) for own in (1.0, -1.0)}
        for x, y in permutations(first, 2):
            event = _event(first[x], first[y], 0.0)
            tried.append((_bound(first[x], first[y], event, draws, confidence, 0.0), (x, y), event, others))
    _, (x, y), event, others = max(tried, key=lambda one: one[0])
    measured = max(0.0, _bound(counts(x, others, draws), counts(y, others, draws), event, draws, confidence, 0.0))
    return PrivacyAudit(claimed, measured, confidence, bool(measured > claimed), x, y, clients, draws, "certified")


def audit_reports(
    rappor: Rappor, reports: int = 1, *, draws: int = 100_000, confidence: float = 0.999, rng: Source | None = None
) -> PrivacyAudit:
    """Measure ε of so many reports of one value, by the bits in which two values differ, and compare it."""
    draws, reports = min(whole("draws", draws, 10_000), MOST), whole("reports", reports, 1)
    confidence, source = checked_confidence(confidence), rng or SecureRandom()
    values, own = _apart(rappor), []
    where = values[0][1] != values[1][1]

    def counts(value: str) -> Any:
        """How often each total came of how many bits speak for the first value, over all reports."""
        found = np.zeros(draws, dtype=np.int64)
        kept = rappor.permanent(value, 0, source, users=draws)
        for _ in range(reports):
            seen = rappor.report(kept, source)[:, where]
            found += (seen == values[0][1][where]).sum(axis=1)
        return np.bincount(found, minlength=reports * int(where.sum()) + 1)

    for (one, _), (other, _) in permutations(values, 2):
        event = _event(counts(one), counts(other), 0.0)
        own.append(_bound(counts(one), counts(other), event, draws, confidence, 0.0))
    claimed, measured = rappor.epsilon(reports), max(0.0, *own)
    return PrivacyAudit(claimed, measured, confidence, bool(measured > claimed), 0, 1, 1, draws, "certified")


def _apart(rappor: Rappor) -> list[tuple[str, Any]]:
    """Two values and their bits in a cohort, as different as values can be."""
    every = [(str(number), rappor.bloom(str(number), 0)) for number in range(200)]
    return [every[0], max(every, key=lambda one: int((one[1] != every[0][1]).sum()))]


def _crowds(mech: Channel, clients: int, worst: FloatArray) -> list[FloatArray]:
    """What the others may hold: all the same knot, half of them each end, and the worst that accounting found."""
    if clients == 1:
        return [np.empty(0)]
    ends = np.where(np.arange(clients - 1) % 2, mech.clip, -mech.clip)
    return [
        *(np.full(clients - 1, x) for x in mech.breakpoints[:: max(1, len(mech.breakpoints) // CROWDS)]),
        ends,
        worst,
    ]


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


def exact_epsilon(mech: Channel, delta: float) -> float:
    """The least ε with which what one client sends is (ε, δ)-differentially private: of the deployed law, all inputs.

    The divergence that δ bounds is jointly convex in the two laws, and these are affine between breakpoints, so the
    worst pair are breakpoints. For one pair, δ(ε) = Σ max(0, p − e^ε q) falls in ε and is inverted by outcomes.

    >>> from rqm import Rounding
    >>> round(exact_epsilon(Rounding(levels=2, margin=1.0), 0.25), 6) == round(log(0.5 / 0.25), 6)
    True
    """
    laws = np.exp(mech.knot_laws("sampled"))
    return max(_pair_epsilon(p, q, delta) for p, q in permutations(laws, 2))


def _pair_epsilon(p: FloatArray, q: FloatArray, delta: float) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(-np.where(p > 0, p / q, 0.0))
        gained, paid = np.cumsum(p[order]), np.cumsum(q[order])
        return max(0.0, float(np.where(gained > delta, np.log((gained - delta) / paid), 0.0).max()))


def _event(p: Any, q: Any, spare: float) -> Any:
    """The outcomes that speak most for the first input: of those sorted by their ratio, as many as bound best."""
    ratio = (p + 0.5) / (q + 0.5)
    order = np.argsort(-ratio)
    gained, paid = np.cumsum(p[order]), np.cumsum(q[order])
    with np.errstate(divide="ignore", invalid="ignore"):
        # About the lower bound: the logarithm less three standard deviations.
        more = np.maximum(gained - spare, 0)
        about = np.log(more) - np.log(paid + 3) - 3 * np.sqrt(gained / np.maximum(more, 1) ** 2 + 1 / (paid + 1))
    chosen = np.zeros(len(p), dtype=bool)
    chosen[order[: int(np.argmax(about)) + 1]] = True
    return chosen


def _bound(p: Any, q: Any, event: Any, draws: int, confidence: float, delta: float) -> float:
    """log((p − δ)/q) at least, with this confidence: Clopper and Pearson's bounds on both, half of the error each."""
    error = (1 - confidence) / 2
    hits, misses = int(p[event].sum()), int(q[event].sum())
    low = stats.beta.ppf(error, hits, draws - hits + 1) if hits else 0.0
    high = stats.beta.ppf(1 - error, misses + 1, draws - misses) if misses < draws else 1.0
    return log((low - delta) / high) if low > delta else -inf
