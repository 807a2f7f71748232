"""All ways in which a block of clients stand at the knots, and how much their sum tells of a step: compiled loops.

The score of a block is what the law of its sum changes by, relatively, when the sum moves up by one. What counts is
E exp(t score), for some rates t; its largest value over all ways is kept (``docs/proofs/inside.md``).
"""

import numpy as np

from rqm._util.checks import FloatArray
from rqm.privacy.compiled import IntArray, compiled, inlined

EDGE = 1e-9
"""A block's outcome at one end that is rarer makes hardly any difference."""


@inlined
def _added(law: FloatArray, size: int, row: FloatArray, out: FloatArray) -> int:  # pragma: no cover (compiled)
    """Write the law of a sum to ``out``; how many outcomes it has."""
    width = row.shape[0]
    for z in range(size + width - 1):
        out[z] = 0.0
    for k in range(width):
        for z in range(size):
            out[z + k] += law[z] * row[k]
    return int(size + width - 1)


@compiled
def _scores(law: FloatArray, size: int, out: FloatArray) -> float:  # pragma: no cover (compiled)
    """Write what the law changes by, relatively, when all but its last outcome move up by one; the mass of that one.

    Infinite if something comes to be that could not be.
    """
    while law[size - 1] == 0.0:
        size -= 1
    for z in range(size):
        before = law[z - 1] if z else 0.0
        if law[z] > 0.0:
            out[z] = (before - (law[z] if z < size - 1 else 0.0)) / law[z]
        elif before > 0.0:
            return np.inf
        else:
            out[z] = 0.0
    return float(law[size - 1])


@inlined
def _told(
    law: FloatArray,
    score: FloatArray,
    last: float,
    rate: float,
    ways: IntArray,
    powers: FloatArray,
    found: FloatArray,
) -> None:  # pragma: no cover (compiled)
    """Raise what is found to that of one law and its scores."""
    outcomes, squares, top, low = law.shape[0], 0.0, 0.0, 0.0
    for z in range(outcomes):
        squares += law[z] * score[z] ** 2
        top, low = max(top, score[z]), max(low, -score[z])
    found[0, 0], found[0, 2] = max(found[0, 0], squares), max(found[0, 2], last)
    for sign in range(2):
        peak = low if sign else top
        for z in range(outcomes):
            powers[0, z] = np.exp(rate * ((-score[z] if sign else score[z]) - peak))
        for k in range(ways.shape[0]):
            if k:
                for z in range(outcomes):
                    powers[k, z] = powers[ways[k, 1], z] * powers[ways[k, 2], z]
            total = 0.0
            for z in range(outcomes):
                total += law[z] * powers[k, z]
            found[k + 1, sign] = max(found[k + 1, sign], ways[k, 0] * rate * peak + np.log(total))
            if sign == 0:
                found[k + 1, 2] = max(found[k + 1, 2], last / total)


@compiled
def others_scores(
    first: int, rows: FloatArray, size: int, rate: float, ways: IntArray, rest: bool, found: FloatArray
) -> float:  # pragma: no cover (compiled)
    """Of all blocks of ``size`` clients whose lowest knot is ``first``, raise what is found to the largest.

    Only of those that hardly ever send all they can, or less often than nothing at all; with ``rest`` only of those
    that send nothing more often: what is missing, seen from the other side.

    Rates are multiples of ``rate``: 1, and from then on of sums of two before, as told by ``ways``, up to the last. A
    row of ``found`` for each: log E exp(t score), the same of −score, and the part that a block's last outcome has in
    the first of these. The row before all is E score², and that outcome's probability. Infinity is returned if some
    outcome tells all.
    """
    knots, width = rows.shape
    room = size * (width - 1) + 1
    laws, used = np.zeros((size + 1, room)), np.ones(size + 1, np.int64)
    laws[0, 0] = 1.0
    score, powers = np.zeros(room), np.zeros((ways.shape[0], room))
    at = np.full(size, first)
    start = 0
    while True:
        for k in range(start, size):
            used[k + 1] = _added(laws[k], used[k], rows[at[k]], laws[k + 1])
        law, outcomes = laws[size], used[size]
        low, top = law[0], law[outcomes - 1]
        taken = low > EDGE and low >= top if rest else top <= EDGE or top <= low * (1 + 1e-9)
        last = _scores(law, outcomes, score) if taken else 0.0
        if last == np.inf:
            return np.inf
        if taken:
            _told(law[:outcomes], score[:outcomes], last, rate, ways, powers, found)
        start = size - 1
        while start > 0 and at[start] == knots - 1:
            start -= 1
        if start == 0:
            return 0.0
        at[start:] = at[start] + 1


@inlined
def _of_block(places: FloatArray, known: FloatArray, t: float, change: float) -> float:  # pragma: no cover (compiled)
    """A bound of log E exp(t score) of a block, where its last outcome makes no step, and ``change`` counts instead.

    log E exp, and (E exp − 1) / t², are convex in t: chords between two places are above them.
    """
    low, high, sign = 0, places.shape[0] - 1, 0 if t >= 0.0 else 1
    x = abs(t)
    if not x <= places[high]:
        return np.inf
    while high - low > 1:
        middle = (low + high) // 2
        if places[middle] <= x:
            low = middle
        else:
            high = middle
    part = (x - places[low]) / (places[high] - places[low])
    value = np.log1p(x * x * (known[low, 3 + sign] + part * (known[high, 3 + sign] - known[low, 3 + sign])))
    if low:
        value = min(value, known[low, sign] + part * (known[high, sign] - known[low, sign]))
    if change > 0.0:
        last = np.log(known[high, 2] if t > 0.0 else known[0, 2]) + change
        value += np.log1p(np.exp(last)) if last < 30.0 else last + 1e-9
    return float(value)


@inlined
def _raised(
    here: FloatArray,
    change: FloatArray,
    moved: FloatArray,
    outcomes: int,
    shares: tuple[float, float, int],
    places: FloatArray,
    known: FloatArray,
    rates: FloatArray,
    found: FloatArray,
) -> None:  # pragma: no cover (compiled)
    """Raise what is found to that of one law of one's own block, its change, and the steps made elsewhere for it."""
    part, share, blocks = shares
    logs, squares = np.empty(outcomes), 0.0
    for z in range(outcomes):
        if here[z] > 0.0:
            squares += ((part * change[z]) ** 2 + blocks * (share * moved[z]) ** 2 * known[0, 0]) / here[z]
        elif change[z] != 0.0 or moved[z] != 0.0:
            found[:] = np.inf
    found[0, 0] = max(found[0, 0], squares)
    for k in range(rates.shape[0]):
        for sign in range(2):
            rate, peak, total = -rates[k] if sign else rates[k], 0.0, 0.0
            for z in range(outcomes):
                if here[z] > 0.0:
                    way = rate * change[z] / here[z]
                    logs[z] = part * way
                    if blocks:
                        logs[z] += blocks * _of_block(places, known, rate * share * moved[z] / here[z], share * way)
                    peak = max(peak, logs[z])
            if not peak < np.inf:
                found[k + 1, sign] = np.inf
                continue
            for z in range(outcomes):
                if here[z] > 0.0:
                    total += here[z] * np.exp(logs[z] - peak)
            found[k + 1, sign] = max(found[k + 1, sign], peak + np.log(total))


@compiled
def own_scores(
    first: int,
    laws: tuple[FloatArray, FloatArray, FloatArray],
    size: int,
    shares: tuple[float, float, int],
    rest: tuple[FloatArray, FloatArray, FloatArray],
    rates: FloatArray,
    found: FloatArray,
) -> None:  # pragma: no cover (compiled)
    """Raise log E exp(±t S) of the score of a sum, by one's own block and by the rest, in the lower half of each cell.

    ``laws`` are those at the knots, how a cell's law changes, and where the steps are made of which this consists.
    ``shares`` are the part of a change that is made here, that of a block of others, and how many of these there are.
    ``rest`` are rates, from zero on, and what was found of a block at them, with (E exp(±t score) − 1) / t² besides;
    and the same of blocks seen from the other side, which step down. ``found[0]`` is E S².
    """
    rows, changes, steps = laws
    places, known, mirrored = rest
    knots, width = rows.shape
    room = (size + 1) * (width - 1) + 1
    sums, used = np.zeros((size + 1, room)), np.ones(size + 1, np.int64)
    sums[0, 0] = 1.0
    own, change, moved = np.zeros((2, room)), np.zeros(room), np.zeros(room)
    at, start = np.full(max(size, 1), first), 0
    while True:
        for k in range(start, size):
            used[k + 1] = _added(sums[k], used[k], rows[at[k]], sums[k + 1])
        for cell in range(knots - 1):
            _added(sums[size], used[size], rows[cell], own[0])
            outcomes = _added(sums[size], used[size], rows[cell + 1], own[1])
            _added(sums[size], used[size], changes[cell], change)
            _added(sums[size], used[size], steps[cell], moved)
            for z in range(outcomes):
                own[1, z] = 0.5 * (own[0, z] + own[1, z])
            for kind in range(2 if mirrored[1, 0] > 0.0 else 1):  # where others step up, and where they step down
                for z in range(outcomes - 1, -1, -1):
                    moved[z] = moved[z] if kind == 0 else -moved[z - 1] if z else 0.0
                for turn in range(2):
                    _raised(
                        own[turn], change, moved, outcomes, shares, places, mirrored if kind else known, rates, found
                    )
        start = size - 1
        while start > 0 and at[start] == knots - 1:
            start -= 1
        if start <= 0:
            return
        at[start:] = at[start] + 1
