"""ε of one coordinate, of a whole message and of RAPPOR's reports, measured from samples.

The inputs and the event are chosen on some draws and measured on others: nothing is fitted to what
it is tested on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from math import inf
from typing import Literal

import numpy as np

from rqm._util.checks import FloatArray, real, whole
from rqm.audit.measurement import EpsilonAudit, IntArray, Source, choose_event, event_bounds, event_epsilons
from rqm.certify.renyi import renyi
from rqm.mechanisms.base import Mechanism, VectorMechanism
from rqm.mechanisms.discrete import DiscreteMechanism
from rqm.randomness import SecureRandom
from rqm.related.rappor import Rappor

MAX_SLOW_DRAWS = 400_000
"""The largest number of draws of whole messages and of reports, each of which takes microseconds."""

Claim = Literal["certified", "paper"]
Count = Callable[[float, FloatArray, int], IntArray]
"""Counts of the outcomes of a client's input, the inputs of the other clients, and a number of draws."""


@dataclass(frozen=True, kw_only=True)
class PrivacyAudit(EpsilonAudit):
    """A claimed and a measured ε of one coordinate or message, with one client's input replaced.

    Attributes:
        x: An input of the client.
        x_prime: The input that replaces it.
        clients: Clients in the sum.
        draws: Draws of each input.
        claim: "certified", or "paper" for what the paper claims.
    """

    x: float
    x_prime: float
    clients: int
    draws: int
    claim: str


def audit_privacy(
    mechanism: Mechanism,
    clients: int = 1,
    *,
    draws: int = 4_000_000,
    confidence: float = 0.999,
    claim: Claim = "certified",
    delta: float = 0.0,
    rng: Source | None = None,
) -> PrivacyAudit:
    """Measure ε of one coordinate, or of a message that is encoded as a whole.

    The client's two inputs, what the other clients hold, and the event are searched for by sampling.

    Args:
        mechanism: The mechanism.
        clients: Clients in the sum; 1: the adversary sees the client's message.
        draws: Draws of each input.
        confidence: The probability with which the measured value is a lower bound.
        claim: "certified" tests the bound of this library, for all inputs; "paper" tests the value
            at ±clip, which is all that the paper looks at.
        delta: δ of the claim. Above 0 for a single client only, whose ε is then computed exactly.
        rng: Source of randomness; None: a cryptographic one.

    Returns:
        The claimed and the measured ε.

    Raises:
        ValueError: If a value is out of range, or `delta` or `claim` do not suit the mechanism.
    """
    draws = whole("draws", draws, 10_000)
    clients = whole("clients", clients, 1)
    confidence = real("confidence", confidence, "between 0 and 1", 0, 1)
    delta = real("delta", delta, "at least 0 and below 1", 0, 1, closed="[")
    rng = rng or SecureRandom()
    if mechanism.vector_mechanism is not None:
        if claim == "paper" or delta:
            raise ValueError(
                f"mechanism = {mechanism.kind}: must be audited as certified, with delta = 0, as a whole message"
            )
        return _audit_message(
            mechanism, mechanism.vector_mechanism, clients, min(draws, MAX_SLOW_DRAWS), confidence, rng
        )
    if delta and (clients > 1 or claim == "paper"):
        raise ValueError(f"delta = {delta:g}: must be 0 unless one client sends alone, and the claim is certified")
    channel = mechanism.discrete
    certified = renyi(channel, inf, clients, distribution="sampled")
    claimed = certified.upper
    if delta:
        claimed = exact_epsilon(channel, delta)
    elif claim == "paper":
        claimed = renyi(channel, inf, clients, "balanced", distribution="sampled").upper

    def _count(x: float, others: FloatArray, draws: int) -> IntArray:
        """How often each sum came out."""
        counts = np.zeros(2 ** channel.sum_bits(clients), dtype=np.int64)
        chunk = max(1, 4_000_000 // clients)  # messages of some tens of megabytes
        for start in range(0, draws, chunk):
            size = min(chunk, draws - start)
            sums = channel.encode(np.full(size, x), rng).astype(np.int64)
            if len(others):
                sums = (sums + channel.encode_sum(np.repeat(others[:, None], size, axis=1), rng)) % len(counts)
            counts += np.bincount(sums, minlength=len(counts))
        return counts

    return measure_epsilon(
        _count,
        channel.breakpoints.tolist(),
        _other_inputs(channel, clients, certified.witness.other_inputs),
        claimed,
        draws=draws,
        confidence=confidence,
        delta=delta,
        claim=claim,
    )


def _other_inputs(mechanism: DiscreteMechanism, clients: int, worst: dict[float, int]) -> Sequence[FloatArray]:
    """What the others may hold: all the same breakpoint, half of them each end, and the worst that accounting knows."""
    if clients == 1:
        return [np.empty(0)]
    breakpoints = mechanism.breakpoints[:: max(1, len(mechanism.breakpoints) // 4)]
    halves = np.where(np.arange(clients - 1) % 2, mechanism.clip, -mechanism.clip)
    return [*(np.full(clients - 1, x) for x in breakpoints), halves, np.repeat(list(worst), list(worst.values()))]


def measure_epsilon(
    count: Count,
    inputs: Sequence[float],
    other_inputs: Sequence[FloatArray],
    claimed: float,
    *,
    draws: int,
    confidence: float,
    delta: float = 0.0,
    claim: str = "certified",
) -> PrivacyAudit:
    """Search for the inputs and the event that show most, and measure them on new draws.

    Args:
        count: Counts outcomes.
        inputs: Inputs of the client whose privacy is attacked.
        other_inputs: What the other clients may hold.
        claimed: The ε that is claimed at `delta`.
        draws: Draws of each input to measure with. The inputs and the event are chosen on as much
            again, or a tenth of it where there are other clients, since a draw of a sum takes longer.
        confidence: The probability with which the measured value is a lower bound.
        delta: δ.
        claim: Whose claim it is.

    Returns:
        The claimed and the measured ε.
    """
    error = (1 - confidence) / 2
    show = partial(event_epsilons, delta=delta)
    search_draws = draws if not len(other_inputs[0]) else max(10_000, draws // 10)
    best = -inf
    for others in other_inputs:
        counts = {x: count(x, others, search_draws) for x in inputs}
        for pair in permutations(inputs, 2):
            first, second = (counts[x] for x in pair)
            order = np.argsort(-(first + 0.5) / (second + 0.5), kind="stable")
            p, q = (np.cumsum(counts[x][order]) / search_draws for x in pair)
            last, value = choose_event(p, q, search_draws, error, show)
            if value >= best:
                best = value
                chosen_pair = pair
                chosen_others = others
                event = order[: last + 1]
    hits, false_hits = (int(count(x, chosen_others, draws)[event].sum()) for x in chosen_pair)
    return PrivacyAudit(
        claimed=claimed,
        measured=max(0.0, float(show(*event_bounds(hits, false_hits, draws, error)))),
        delta=delta,
        confidence=confidence,
        x=chosen_pair[0],
        x_prime=chosen_pair[1],
        clients=1 + len(chosen_others),
        draws=draws,
        claim=claim,
    )


def exact_epsilon(mechanism: DiscreteMechanism, delta: float) -> float:
    """The smallest ε for which one client's message is (ε, δ)-differentially private, for all inputs.

    The hockey-stick divergence is jointly convex in the two distributions, and these are affine
    between breakpoints, so the worst pair are breakpoints. Of one pair, the smallest ε is that of
    the outcomes with the largest probability ratios.

    Args:
        mechanism: A mechanism that sends integers.
        delta: δ, at least 0.

    Returns:
        ε of the integer tables that are sampled from.

    >>> from rqm import StochasticRounding
    >>> round(exact_epsilon(StochasticRounding(levels=2, margin=1.0), 0.25), 4)  # log((3/4 − 1/4) / (1/4))
    0.6931
    """
    pmfs = np.exp(mechanism.breakpoint_log_pmfs("sampled"))
    return max(pair_epsilon(p, q, delta) for p, q in permutations(pmfs, 2))


def pair_epsilon(p: FloatArray, q: FloatArray, delta: float) -> float:
    """The smallest ε of two distributions, in one direction.

    Args:
        p: The first distribution.
        q: The second distribution.
        delta: δ.

    Returns:
        ε, which may be infinite.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(-np.where(p > 0, p / q, 0.0))
    return max(0.0, float(event_epsilons(np.cumsum(p[order]), np.cumsum(q[order]), delta).max()))


def _audit_message(
    mechanism: Mechanism, encoder: VectorMechanism, clients: int, draws: int, confidence: float, rng: Source
) -> PrivacyAudit:
    """The audit of a whole message: of vectors of one value, which has two slots.

    These attain the largest ε. More values add slots whose distributions are the same for both inputs.
    """
    claimed = mechanism.differing_integers * renyi(mechanism.discrete, inf, clients, distribution="sampled").upper

    def _count(x: float, others: FloatArray, draws: int) -> IntArray:
        """How often each pair of sums came out."""
        total = np.zeros((draws, 2), dtype=np.int64)
        for value in (x, *others):
            total += encoder.encode_rows(np.full((draws, 1), value), rng)
        return np.bincount(total @ (1, clients + 1), minlength=(clients + 1) ** 2)

    splits = [np.repeat([1.0, -1.0], [up, clients - 1 - up]) for up in {0, clients // 2, clients - 1}]
    return measure_epsilon(_count, [1.0, -1.0], splits, claimed, draws=draws, confidence=confidence)


def audit_reports(
    rappor: Rappor, reports: int = 1, *, draws: int = 100_000, confidence: float = 0.999, rng: Source | None = None
) -> PrivacyAudit:
    """Measure ε of several RAPPOR reports of one value.

    Args:
        rappor: The mechanism.
        reports: Reports that a user sends of one value.
        draws: Users for each of two values.
        confidence: The probability with which the measured value is a lower bound.
        rng: Source of randomness; None: a cryptographic one.

    Returns:
        The claimed and the measured ε. Its inputs are 0 and 1, for the two values.
    """
    draws = min(whole("draws", draws, 10_000), MAX_SLOW_DRAWS)
    reports = whole("reports", reports, 1)
    confidence = real("confidence", confidence, "between 0 and 1", 0, 1)
    source = rng or SecureRandom()
    blooms = np.array([rappor.bloom(str(value), 0) for value in range(200)])
    distances = (blooms != blooms[0]).sum(axis=1)
    values = "0", str(distances.argmax())  # the two values that differ most
    differs = blooms[0] != blooms[distances.argmax()]

    def _count(x: float, others: FloatArray, draws: int) -> IntArray:
        """How often each number of bits that agree with the first value came out, over all reports."""
        permanent = rappor.permanent(values[int(x)], 0, source, users=draws)
        agreeing = sum((rappor.report(permanent, source) == blooms[0])[:, differs].sum(axis=1) for _ in range(reports))
        return np.bincount(agreeing, minlength=reports * distances.max() + 1)

    return measure_epsilon(_count, [0, 1], [np.empty(0)], rappor.epsilon(reports), draws=draws, confidence=confidence)
