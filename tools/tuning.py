"""Rates chosen alike for every system: one grid, the same seeds, none of which a table reports."""

from collections.abc import Callable
from math import isfinite

GRID = range(-3, 2)
"""Rates are powers of √10: 0.03, 0.1, 0.3, 1 and 3."""
TUNING, SEEDS = (100, 101), tuple(range(5))
"""Seeds to choose by, and to report."""
WIDEST = 8
"""Steps beyond the grid, at most."""


def rate_of(step: int) -> float:
    """√10 to that power, to two digits.

    >>> [rate_of(step) for step in GRID]
    [0.032, 0.1, 0.32, 1.0, 3.2]
    """
    return float(f"{10 ** (step / 2):.2g}")


def chosen(score: Callable[[float, int], float]) -> tuple[float, dict[str, float]]:
    """The rate with the best mean score, and what every rate scored.

    Where the best lies at an end of the grid, this is widened there until it does not.

    >>> chosen(lambda rate, seed: -abs(rate - 10))[0]
    10.0
    """
    found: dict[int, float] = {}

    def look(step: int) -> None:
        every = [score(rate_of(step), seed) for seed in TUNING]
        found[step] = sum(every) / len(every) if all(map(isfinite, every)) else float("-inf")

    for step in GRID:
        look(step)
    for _ in range(WIDEST):
        best = max(found, key=lambda step: found[step])
        if min(found) < best < max(found):
            break
        look(best - 1 if best == min(found) else best + 1)
    best = max(found, key=lambda step: found[step])
    return rate_of(best), {f"{rate_of(step):g}": found[step] for step in sorted(found)}
