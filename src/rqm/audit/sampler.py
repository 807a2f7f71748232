"""Does an encoder draw from the law that is accounted for? G-tests against the exact law, and for independence."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from rqm._checks import FloatArray, real, whole
from rqm.channel import Channel
from rqm.randomness import SecureRandom, SeededRandom

LEVEL = 1e-6
"""A p-value below this, over all tests together, is a failure: a sound sampler fails once in a million audits."""
INPUTS = 8


@dataclass(frozen=True)
class SamplerAudit:
    """``p_value`` is that of the worst test, times the number of tests; ``worst`` names it."""

    p_value: float
    worst: str
    tests: int
    draws: int
    passed: bool

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return asdict(self)


def audit_sampler(
    mech: Channel, rng: SecureRandom | SeededRandom | None = None, *, draws: int = 2_000_000,
    claimed: Channel | None = None,
) -> SamplerAudit:  # fmt: skip
    """Draw ``draws`` times at each of some inputs, and compare with the law of ``claimed`` (the mechanism itself).

    Among the inputs are both ends of the clip and what lies beyond them, levels, places between, and the floats next
    to a level. Neighbouring draws are tested for independence.
    """
    draws = whole("draws", draws, 10_000)
    rng, claimed = rng or SecureRandom(), claimed or mech
    found: list[tuple[float, str]] = []
    for x in _inputs(mech):
        levels = np.asarray(mech.encode(np.full(draws, x), rng)).astype(np.int64)
        law = claimed.sampled_pmf(x).astype(np.float64)
        found.append((goodness(np.bincount(levels, minlength=len(law)), law), f"the law at x = {x:.6g}"))
        found.append((independence(levels), f"neighbours at x = {x:.6g}"))
    worst, where = min(found)
    p_value = min(1.0, worst * len(found))
    return SamplerAudit(p_value, where, len(found), draws * len(found) // 2, bool(p_value >= LEVEL))


def _inputs(mech: Channel) -> list[float]:
    knots = mech.knots[np.linspace(0, len(mech.knots) - 1, min(len(mech.knots), INPUTS)).round().astype(int)]
    inner = [float(np.nextafter(knots[len(knots) // 2], np.inf))]
    between = [float((a + b) / 2 + (b - a) / 7) for a, b in zip(knots[:-1:3], knots[1::3], strict=False)]
    return [*map(float, knots), *inner, *between, 2.5 * mech.clip]


def goodness(counts: Any, law: FloatArray) -> float:
    """The p-value of a G-test; rare outcomes are taken together, impossible ones must not occur."""
    total = counts.sum()
    if counts[law == 0].any():
        return 0.0
    often = law * total >= 10
    expected = np.append(law[often], law[~often].sum()) * total
    observed = np.append(counts[often], counts[~often].sum())
    kept = expected > 0
    if kept.sum() < 2:
        return 1.0
    scaled = expected[kept] * (observed[kept].sum() / expected[kept].sum())
    return float(stats.power_divergence(observed[kept], scaled, lambda_="log-likelihood").pvalue)


def independence(levels: Any) -> float:
    """The p-value of a G-test on pairs of neighbouring draws, both of which fall into one of at most four groups."""
    order = np.sort(np.unique(levels, return_counts=False))
    if len(order) < 2:
        return 1.0
    edges = np.unique(np.quantile(levels, [0.25, 0.5, 0.75], method="nearest"))
    groups = np.searchsorted(edges, levels, side="left")
    pairs = np.zeros((groups.max() + 1,) * 2)
    np.add.at(pairs, (groups[:-1:2], groups[1::2]), 1)
    pairs = pairs[pairs.sum(axis=1) > 0][:, pairs.sum(axis=0) > 0]
    if min(pairs.shape) < 2:
        return 1.0
    return float(stats.chi2_contingency(pairs, correction=False, lambda_="log-likelihood").pvalue)


def checked_confidence(confidence: float) -> float:
    """A confidence strictly between 0 and 1."""
    return real("confidence", confidence, "between 0 and 1", 0, 1)
