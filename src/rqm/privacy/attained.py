"""An ε that some inputs attain in a release of many coordinates: no guarantee, but what a stated ε cannot be below.

One client's vector is turned over at some coordinates, all others hold the same there: the laws are known exactly, and
so are their compositions, by privacy loss distributions that are rounded towards telling less.
"""

from collections.abc import Iterator
from math import log

import numpy as np

from rqm._util.checks import FloatArray
from rqm.mechanisms.channel import Channel
from rqm.privacy.divergence import Sum

INPUTS = (1.0, 0.25)
"""Sizes, in clips, of the coordinates that are turned over: of fewer large ones or of more small ones."""
FINEST = 1e-4
"""The gap of a privacy loss distribution of one coordinate, at most …"""
PARTS = 1600
"""… and so many of them in its deviation."""
CROWDS = 5
"""Inputs of the others, about, that are tried."""


def attained_epsilon(mech: Channel, honest: int, dim: int, l2_clip: float, delta: float) -> float:
    """The largest ε at δ, of those that were tried, for vectors of ``dim`` coordinates within ``l2_clip``."""
    from dp_accounting.pld import privacy_loss_distribution as losses  # noqa: PLC0415 (takes a second)

    best, budget = 0.0, (l2_clip / mech.clip) ** 2
    for size in INPUTS:
        count = min(dim, int(budget / size**2 * (1 + 1e-9)))
        for low, high in _pairs(mech, honest, size) if count else ():
            for p, q in ((low, high), (high, low)):
                with np.errstate(divide="ignore", invalid="ignore"):
                    loss = np.where((p > 0) & (q > 0), np.log(p) - np.log(q), 0.0)
                gap = max(float(np.sqrt(p @ loss**2 / p.sum())) / PARTS, min(FINEST, 1.0 / count))
                one = losses.from_two_probability_mass_functions(
                    *(dict(enumerate(_logs(law))) for law in (p, q)),
                    pessimistic_estimate=False,
                    value_discretization_interval=gap,
                    log_mass_truncation_bound=log(delta) - 30,
                )
                best = max(best, float(one.self_compose(count).get_epsilon_for_delta(delta)))
    return best


def _pairs(mech: Channel, honest: int, size: float) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Laws of a sum for two inputs of one client, that many clips to either side; all others hold the same."""
    if mech.additive is not None:
        law = mech.additive.summed(honest)
        yield law, np.roll(law, max(1, int(mech.additive.steps * size)))
        return
    ends = [np.exp(mech.log_law(x * mech.clip, "sampled")) for x in (-size, size)]
    knots = mech.knots[mech.knots >= 0]
    for x in knots[:: max(1, len(knots) // CROWDS)][::-1]:
        others = Sum.of(mech.log_law(x, "sampled")).times(honest - 1, log(1e-60))
        base = np.exp(others.log_law(others.mantissa.size))
        yield np.convolve(ends[0], base), np.convolve(ends[1], base)


def _logs(law: FloatArray) -> list[float]:
    """Logarithms of what is not nothing."""
    with np.errstate(divide="ignore"):
        return [float(one) for one in np.log(np.maximum(law, 1e-300))]
