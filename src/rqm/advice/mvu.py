"""The Minimum Variance Unbiased mechanism with an alphabet of its own (Chaudhuri, Guo and Rabbat 2022).

Of all unbiased tables that are ε-differentially private by themselves, the one whose variance is least on average over
the inputs; the outcomes may lie where they like. For fixed outcomes the rows are a linear program. For fixed rows
unbiasedness leaves the outcomes no room, so these move along the value of that program, whose slope its prices give:
programs and steps in turn.

Uneven outcomes have no sum that means anything, unless they lie on a lattice. So they are moved to a fine one, and the
program is solved once more: what comes out is a ``Table``, verified in the integers that are deployed, whose sums
are sums of lattice points. These are a function of the histogram of the outcomes, and tell no more than it does.
"""

from functools import lru_cache
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from rqm._util.checks import FloatArray, real, whole
from rqm.advice.design import PURE_LEVELS, private_table, program, pure_loss
from rqm.mechanisms.table import Table

LATTICE = 511
"""Steps of the lattice, at most; one less for an odd number of outcomes, of which one lies at zero."""
STEPS = 60


def own_alphabet(epsilon: float, levels: int = 16, *, clip: float = 1.0, rows: int = 33) -> Table:
    """The ε-differentially private table of ``levels`` outcomes, wherever they lie, of least variance on average.

    ``rows`` is how many levels inputs are rounded to. ``alphabet`` says where its outcomes lie.

    >>> mech = own_alphabet(3.0, 4, rows=9)
    >>> len(mech.outcomes), mech.bits, pure_loss(mech) <= 3.0
    (4, 2, True)
    """
    epsilon = real("epsilon", epsilon, "above 0 and at most 12", 0, 12, closed="]")
    levels = whole("levels", levels, 2, PURE_LEVELS)
    return _own(epsilon, levels, real("clip", clip, "a positive finite number", 0, inf), whole("rows", rows, 2))


def alphabet(mech: Table) -> FloatArray:
    """The outcomes of a table that are possible, as values."""
    return mech.grid.values[list(mech.outcomes)]


def from_histogram(mech: Table, counts: npt.ArrayLike) -> FloatArray:
    """The mean of the inputs, unbiased, from how often each possible outcome came: one row a coordinate.

    That is what a sum of one-hot vectors tells. It is what ``decode`` makes of the sum of lattice points.
    """
    counts = np.asarray(counts, dtype=np.float64)
    return np.asarray(counts @ alphabet(mech) / counts.sum(axis=-1))


def average_variance(mech: Table, inputs: int = 33) -> float:
    """The variance averaged over so many evenly spaced inputs, in clip²."""
    return float(mech.variance(np.linspace(-1, 1, inputs) * mech.clip).mean() / mech.clip**2)


def _spread(free: FloatArray, levels: int) -> FloatArray:
    """A symmetric alphabet from the logarithms of the gaps of its upper half."""
    gaps = np.exp(free)
    half = np.cumsum(gaps) if levels % 2 else np.cumsum(gaps) - gaps[0] / 2
    return np.concatenate([-half[::-1], [0.0] if levels % 2 else [], half])


def _slopes(free: FloatArray, levels: int, slopes: FloatArray) -> FloatArray:
    """From the slopes of the outcomes to those of the logarithms of the gaps."""
    half = levels // 2
    upper = slopes[levels - half :] - slopes[:half][::-1]
    each = np.cumsum(upper[::-1])[::-1].copy()
    if not levels % 2:
        each[0] -= upper.sum() / 2
    return np.asarray(each * np.exp(free))


@lru_cache(maxsize=32)
def _own(epsilon: float, levels: int, clip: float, rows: int) -> Table:
    def cost(free: FloatArray) -> tuple[float, FloatArray]:
        found = program(epsilon, _spread(free, levels), rows, True)
        if found is None:  # too narrow, or too wide
            return 1e3, np.zeros_like(free)
        return found.value, _slopes(free, levels, found.slopes)

    even = private_table(epsilon, levels, rows=rows, average=True)
    gap = 2 * float(even.output_range) / (levels - 1) * np.ones(levels // 2)
    first: Any = min((np.log(gap * wide) for wide in (1.0, 1.01, 1.03, 1.1)), key=lambda free: cost(free)[0])
    found: Any = minimize(cost, first, jac=True, method="L-BFGS-B", options={"maxiter": STEPS})
    best = found.x if found.fun <= cost(first)[0] else first
    own = _on_lattice(epsilon, _spread(best, levels), clip, rows)
    return min(
        (own, even.with_parameters(clip=clip)), key=average_variance
    )  # the lattice may cost more than moving has gained


def _on_lattice(epsilon: float, outcomes: FloatArray, clip: float, rows: int) -> Table:
    """The best table on the lattice points next to these outcomes; a little wider where nothing else is possible."""
    steps, half = LATTICE - len(outcomes) % 2, len(outcomes) // 2
    places = np.rint((outcomes / outcomes[-1] + 1) / 2 * steps).astype(np.int64)
    places[:half] = steps - places[: len(places) - half - 1 : -1]
    places //= np.gcd.reduce(places)  # or no sum of them has the means that are wanted
    lattice, reach, slack = np.linspace(-1, 1, places[-1] + 1), float(outcomes[-1]), 1e-9
    while slack < 0.1:  # rounding to integers moves the ratios by some billionths
        found = program(epsilon * (1 - slack), reach * lattice[places], rows, True)
        if found is not None:
            full = np.zeros((rows, len(lattice)))
            full[:, places] = found.rows
            mech = Table(clip=clip, margin=reach - 1, rows=tuple(map(tuple, full.tolist())))
            if pure_loss(mech) <= epsilon:
                return mech
        else:
            reach *= 1 + 10 * slack
        slack *= 4
    raise ValueError(f"epsilon = {epsilon:g}: no unbiased table of {len(outcomes)} outcomes is that private")
