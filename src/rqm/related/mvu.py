"""Tables for a single client: the Minimum Variance Unbiased mechanism (MVU, Chaudhuri, Guo and Rabbat 2022).

Of all unbiased tables whose single message is ε-differentially private, MVU has the least variance on average over
inputs. For fixed outcomes the rows of the table solve a linear program. `private_table` takes evenly spaced outcomes,
and can minimize the largest variance instead. `mvu_table` moves the outcomes along the slopes of the program.

Sums of uneven outcomes mean nothing unless the outcomes lie on an even grid. So `mvu_table` rounds them to a fine grid
and solves the program once more. Every table is checked in the integers that are sampled.
"""

from functools import lru_cache
from math import exp, inf
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linprog, minimize
from scipy.sparse import block_array, csr_array, eye_array, kron

from rqm._util.checks import FloatArray, real, whole
from rqm.mechanisms.table import Table
from rqm.mechanisms.table_mechanism import TableMechanism

MAX_TABLE_OUTCOMES = 64
"""Outcomes up to which the linear program takes seconds."""


def pure_epsilon(mechanism: TableMechanism) -> float:
    """The ε of one message: the logarithm of the largest ratio within a column of the integer table, rounded up.

    The inputs must be rounded to levels within the clip.
    """
    if mechanism.input_range != 1:
        raise ValueError(f"{mechanism!r}: must round its inputs to levels within the clip")
    largest = mechanism.table.max(axis=0)
    smallest = mechanism.table.min(axis=0)
    possible = largest > 0
    if (smallest[possible] == 0).any():
        return inf
    return float((np.log(largest[possible]) - np.log(smallest[possible])).max() + 1e-14)


def average_variance(mechanism: Table) -> float:
    """The variance averaged over 33 evenly spaced inputs from -clip to clip, in clip²."""
    return float(mechanism.variance(np.linspace(-1, 1, 33) * mechanism.clip).mean() / mechanism.clip**2)


@lru_cache(maxsize=32)
def private_table(
    epsilon: float, levels: int = 16, *, clip: float = 1.0, rows: int = 33, average: bool = False
) -> Table:
    """The ε-differentially private unbiased table of least variance, with evenly spaced outcomes.

    Args:
        epsilon: Pure ε of one message, above 0 and at most 12.
        levels: Number of outcomes, from 2 to 64.
        clip: c, what inputs are clipped to.
        rows: Number of levels that inputs are rounded to. More take longer and help little.
        average: Whether to minimize the variance averaged over inputs, as MVU does, and not the largest one.

    Returns:
        The table; its ε is exact in the integers that are sampled.

    Raises:
        ValueError: If there is no such table.

    >>> table = private_table(5.4699, rows=17)
    >>> pure_epsilon(table) <= 5.4699, table.variance_max < 0.05
    (True, True)
    """
    _check(epsilon, levels, clip, rows)
    even = np.linspace(-1, 1, levels)

    def variance(output_range: float) -> float:
        solution = solve_rows(epsilon, output_range * even, rows, average)
        return inf if solution is None else solution.variance

    one_bit_range = (exp(epsilon) + 1) / (exp(epsilon) - 1)
    ranges = np.sort(np.append(np.geomspace(1.0, max(1.2 * one_bit_range, 1.5), 13), one_bit_range))
    best = int(np.argmin([variance(output_range) for output_range in ranges]))
    finer = np.geomspace(ranges[max(0, best - 1)], ranges[min(best + 1, len(ranges) - 1)], 8)
    output_range = min([ranges[best], *finer], key=variance)
    return _sampled_table(epsilon, np.arange(levels), float(output_range), clip, rows, average)


@lru_cache(maxsize=32)
def mvu_table(epsilon: float, levels: int = 16, *, clip: float = 1.0, rows: int = 33) -> Table:
    """MVU with its own alphabet: the ε-differentially private table of least average variance, with uneven outcomes.

    Args:
        epsilon: Pure ε of one message, above 0 and at most 12.
        levels: Number of outcomes, from 2 to 64.
        clip: c, what inputs are clipped to.
        rows: Number of levels that inputs are rounded to.

    Returns:
        The table. Its possible outcomes are `table.grid.values[list(table.outcomes)]`.

    Raises:
        ValueError: If there is no such table.

    >>> table = mvu_table(3.0, 4, rows=9)
    >>> len(table.outcomes), table.bits, pure_epsilon(table) <= 3.0
    (4, 2, True)
    """
    _check(epsilon, levels, clip, rows)
    gap_matrix = symmetric_alphabet(levels)

    def cost(log_gaps: FloatArray) -> tuple[float, FloatArray]:
        solution = solve_rows(epsilon, gap_matrix @ np.exp(log_gaps), rows, average=True)
        if solution is None:  # the outcomes lie too close together or too far apart
            return 1e3, np.zeros_like(log_gaps)
        return solution.variance, solution.slopes @ gap_matrix * np.exp(log_gaps)

    even = private_table(epsilon, levels, clip=clip, rows=rows, average=True)
    even_gap = 2 * float(even.output_range) / (levels - 1) * np.ones(levels // 2)
    starts = [np.log(even_gap * wider) for wider in (1.0, 1.01, 1.03, 1.1)]
    start = min(starts, key=lambda log_gaps: cost(log_gaps)[0])
    result: Any = minimize(cost, start, jac=True, method="L-BFGS-B", options={"maxiter": 60})
    outcomes = gap_matrix @ np.exp(result.x if result.fun <= cost(start)[0] else start)
    # Steps of the grid to which `mvu_table` rounds outcomes; one less for an odd number of outcomes.
    grid_steps = 511
    steps = grid_steps - levels % 2
    half = levels // 2
    positions = np.rint((outcomes / outcomes[-1] + 1) / 2 * steps).astype(np.int64)
    positions[:half] = steps - positions[: levels - half - 1 : -1]
    positions //= np.gcd.reduce(positions)  # so that every mean is possible in integers
    uneven = _sampled_table(epsilon, positions, float(outcomes[-1]), clip, rows, average=True)
    return min((uneven, even), key=average_variance)  # rounding to the grid can cost more than moving gained


def _check(epsilon: float, levels: int, clip: float, rows: int) -> None:
    real("epsilon", epsilon, "above 0 and at most 12", 0, 12, closed="]")
    whole("levels", levels, 2, MAX_TABLE_OUTCOMES)
    real("clip", clip, "a positive finite number", 0, inf)
    whole("rows", rows, 2)


def symmetric_alphabet(levels: int) -> FloatArray:
    """The matrix that maps the gaps between the upper half of symmetric outcomes to all outcomes."""
    upper = np.tril(np.ones((levels // 2, levels // 2)))
    if levels % 2 == 0:
        upper[:, 0] -= 0.5  # half of the innermost gap lies below zero
    return np.vstack([-upper[::-1], np.zeros((levels % 2, levels // 2)), upper])


def _sampled_table(epsilon: float, positions: Any, output_range: float, clip: float, rows: int, average: bool) -> Table:
    """The best table with outcomes at these points of an even grid, ε-private in the integers that are sampled."""
    points = np.linspace(-1, 1, positions[-1] + 1)
    slack = 1e-9
    while slack < 0.1:  # rounding to integers changes ratios by about 1e-9
        solution = solve_rows(epsilon * (1 - slack), output_range * points[positions], rows, average)
        if solution is None:
            output_range *= 1 + 10 * slack
        else:
            pmfs = np.zeros((rows, len(points)))
            pmfs[:, positions] = solution.rows
            table = Table(clip=clip, margin=output_range - 1, rows=tuple(map(tuple, pmfs.tolist())))
            if pure_epsilon(table) <= epsilon:
                return table
        slack *= 4
    raise ValueError(
        f"epsilon = {epsilon:g}: no unbiased table of {len(positions)} outcomes is that private; it must be larger"
    )


class RowSolution(NamedTuple):
    """The solution of the linear program for given outcomes.

    Attributes:
        variance: The least variance, in clip².
        rows: The pmf of the outcomes at each input level.
        slopes: The derivative of the average variance by each outcome.
    """

    variance: float
    rows: FloatArray
    slopes: FloatArray


def solve_rows(epsilon: float, outcomes: FloatArray, rows: int, average: bool) -> RowSolution | None:
    """The pmfs of least variance, by a linear program.

    Args:
        epsilon: Pure ε of one message.
        outcomes: The outcomes, in clips.
        rows: Number of input levels, evenly spaced from -1 to 1.
        average: Whether to minimize the variance averaged over input levels, and not the largest one.

    Returns:
        The solution; None if no pmfs are unbiased and private.
    """
    count = len(outcomes)
    levels = np.linspace(-1, 1, rows)
    # The variance is quadratic between two levels: its bound is imposed at both and at three points between.
    inputs = (np.arange(rows - 1)[:, None] + np.array([0.0, 0.25, 0.5, 0.75, 1.0])).ravel()
    weights = np.maximum(0, 1 - abs(inputs[:, None] - np.arange(rows)))
    pmfs: Any = eye_array(rows * count)
    floors: Any = kron(np.ones((rows, 1)), eye_array(count))
    inequalities: Any = [
        [-pmfs, floors, None],  # floor ≤ pmf
        [exp(-epsilon) * pmfs, -floors, None],  # pmf ≤ e^ε floor
        [
            kron(csr_array(weights), outcomes[None] ** 2),
            None,
            csr_array(-np.ones((len(inputs), 1))),
        ],  # variance ≤ bound
    ]
    unused = csr_array((rows, count + 1))
    per_row: Any = [[kron(eye_array(rows), factors[None]), unused] for factors in (np.ones(count), outcomes)]
    if average:
        goal = np.append(np.tile(outcomes**2, rows) / rows, np.zeros(count + 1))
    else:
        goal = np.append(np.zeros(rows * count + count), 1.0)
    # The least probability of an outcome. Rounding it to integers hardly changes the ratios of probabilities.
    min_outcome_probability = 1e-6
    result: Any = linprog(
        goal,
        A_ub=block_array(inequalities).tocsr(),
        b_ub=np.append(np.zeros(2 * rows * count), (weights @ levels) ** 2),
        A_eq=block_array(per_row).tocsr(),  # each pmf adds up to 1 and has its level as the mean
        b_eq=np.append(np.ones(rows), levels),
        bounds=[(0, None)] * (rows * count) + [(min_outcome_probability, None)] * count + [(0, None)],
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-9},
    )
    if result.status != 0:
        return None
    solved = np.maximum(result.x[: rows * count].reshape(rows, count), 0)
    prices = result.eqlin.marginals[rows:]  # of the means, which change with the outcomes
    slopes = (solved * (2 * outcomes / rows - prices[:, None])).sum(axis=0)
    return RowSolution(float(result.fun), solved / solved.sum(axis=1, keepdims=True), slopes)
