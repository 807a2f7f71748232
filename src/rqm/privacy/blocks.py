"""All ways in which a block of clients stand at the knots, and how much their sum tells of a step: compiled loops.

The score of a block is what the law of its sum changes by, relatively, when the sum moves up by one: seen from where it
comes, or from where it goes. What counts is E exp(t score), for some rates t; its largest value over all ways is kept
(``docs/proofs/inside.md``).
"""

import numpy as np

from rqm._util.checks import FloatArray
from rqm.privacy.compiled import IntArray, compiled, inlined

PARTS = 5
"""Scores between the two kinds that are looked at, both included."""
TOLD, AGAINST, EDGE, EDGE_AGAINST, CURVE, CURVE_AGAINST = range(6)
"""What is known of a block at a rate t: log E exp(±t score), bounds of log P(an end) exp(±t score), and
(E exp(±t score) − 1) / t²."""


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
def _scores(law: FloatArray, size: int, part: float, out: FloatArray) -> float:  # pragma: no cover (compiled)
    """Write what a step tells, by a part of those from below and a part of those to above; the mass at both ends.

    From below all but the last outcome move up; those to above come from all but the first. Infinite if something comes
    to be that could not be.
    """
    for z in range(size):
        if law[z] == 0.0:
            return np.inf
    for z in range(size):
        below = (law[z - 1] if z else 0.0) - (law[z] if z < size - 1 else 0.0)
        above = (law[z] if z else 0.0) - (law[z + 1] if z < size - 1 else 0.0)
        out[z] = (part * below + (1.0 - part) * above) / law[z]
    return float(law[0] + law[size - 1])


@inlined
def _told(
    law: FloatArray,
    score: FloatArray,
    ends: float,
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
    found[0, TOLD], found[0, EDGE] = max(found[0, TOLD], squares), max(found[0, EDGE], np.log(ends))
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
            far = ways[k, 0] * rate * peak
            found[k + 1, TOLD + sign] = max(found[k + 1, TOLD + sign], far + np.log(total))
            found[k + 1, EDGE + sign] = max(found[k + 1, EDGE + sign], far + np.log(ends))


@compiled
def others_scores(
    first: int, rows: FloatArray, size: int, rate: float, ways: IntArray, found: FloatArray
) -> float:  # pragma: no cover (compiled)
    """Of all blocks of ``size`` clients whose lowest knot is ``first``, raise what is found to the largest.

    Rates are multiples of ``rate``: 1, and from then on of sums of two before, as told by ``ways``. ``found`` has a row
    for each part of both kinds of scores, and in it one for each rate; the first is E score² and the ends'. Infinity is
    returned if some outcome tells all.
    """
    knots, width = rows.shape
    room = size * (width - 1) + 1
    laws, used = np.zeros((size + 1, room)), np.ones(size + 1, np.int64)
    laws[0, 0] = 1.0
    score, powers = np.zeros(room), np.zeros((ways.shape[0], room))
    at, start = np.full(size, first), 0
    while True:
        for k in range(start, size):
            used[k + 1] = _added(laws[k], used[k], rows[at[k]], laws[k + 1])
        law = laws[size, : used[size]]
        for part in range(found.shape[0]):
            ends = _scores(law, law.shape[0], part / (found.shape[0] - 1), score)
            if ends == np.inf:
                return np.inf
            _told(law, score[: law.shape[0]], ends, rate, ways, powers, found[part])
        start = size - 1
        while start > 0 and at[start] == knots - 1:
            start -= 1
        if start == 0:
            return 0.0
        at[start:] = at[start] + 1


@compiled
def _of_block(
    places: FloatArray, known: FloatArray, below: float, above: float, rate: float, change: float
) -> float:  # pragma: no cover (compiled)
    """A bound of log E exp(rate (below · score from below + above · score to above)) of a block.

    Where it is at an end, and makes no step, ``change`` counts instead. Steps of different signs, which hardly ever
    are, are parted by Cauchy and Schwarz.
    """
    if below * above >= 0.0:
        way = rate if below + above >= 0.0 else -rate
        return float(_alike(places, known, abs(below), abs(above), way, change))
    one = _alike(places, known, 2 * abs(below), 0.0, rate if below > 0.0 else -rate, 2 * change)
    return float(0.5 * (one + _alike(places, known, 0.0, 2 * abs(above), rate if above > 0.0 else -rate, 0.0)))


@compiled
def _alike(
    places: FloatArray, known: FloatArray, below: float, above: float, rate: float, change: float
) -> float:  # pragma: no cover (compiled)
    """The same where both are positive.

    What is known is convex in the rate, and in the part of either kind: chords between two places are above it.
    """
    whole = below + above
    if not whole > 0.0:
        return 0.0
    x, sign = abs(rate) * whole, 0 if rate > 0.0 else 1
    low, high = 0, places.shape[0] - 1
    if not x <= places[high]:
        return np.inf
    while high - low > 1:
        middle = (low + high) // 2
        if places[middle] <= x:
            low = middle
        else:
            high = middle
    way = (x - places[low]) / (places[high] - places[low])
    place = below / whole * (known.shape[0] - 1)
    first = min(int(place), known.shape[0] - 2)
    value, edge = 0.0, 0.0
    for part in range(first, first + 2):
        weight = 1.0 - abs(place - part)
        one, other = known[part, low], known[part, high]
        here = np.log1p(x * x * (one[CURVE + sign] + way * (other[CURVE + sign] - one[CURVE + sign])))
        if low:
            here = min(here, one[TOLD + sign] + way * (other[TOLD + sign] - one[TOLD + sign]))
        value += weight * here
        edge += weight * (one[EDGE + sign] + way * (other[EDGE + sign] - one[EDGE + sign]))
    if change > 0.0:
        far = edge - value
        more = far + change
        value += np.log1p(np.exp(far) * np.expm1(change)) if more < 30.0 and change < 600.0 else more + 1e-9
    return float(value)


@compiled
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
    logs, squares, own = np.empty(outcomes), 0.0, 0.0
    parts = known.shape[0]
    for z in range(outcomes):
        if here[z] == 0.0:
            found[:] = np.inf
            return
        below, above = moved[z], moved[z - 1] if z else 0.0
        told = 2 * (below**2 * known[parts - 1, 0, TOLD] + above**2 * known[0, 0, TOLD])
        if below * above >= 0.0 and below + above != 0.0:
            place = below / (below + above) * (parts - 1)
            first = min(int(place), parts - 2)
            told = known[first, 0, TOLD] + (place - first) * (known[first + 1, 0, TOLD] - known[first, 0, TOLD])
            told *= (below + above) ** 2
        squares += ((part * change[z]) ** 2 + blocks * (share / 2) ** 2 * told) / here[z]
        own += change[z] ** 2 / here[z]
    found[0, 0], found[0, 1] = max(found[0, 0], squares), max(found[0, 1], own)
    for k in range(rates.shape[0]):
        for sign in range(2):
            rate, peak, total = -rates[k] if sign else rates[k], 0.0, 0.0
            for z in range(outcomes):
                way, scale = rate * change[z] / here[z], rate * share / 2 / here[z]
                logs[z] = part * way
                if blocks:
                    above = moved[z - 1] if z else 0.0
                    logs[z] += blocks * _of_block(places, known, moved[z], above, scale, share / 2 * way)
                peak = max(peak, logs[z])
            if not peak < np.inf:
                found[k + 1, sign] = np.inf
                continue
            for z in range(outcomes):
                total += here[z] * np.exp(logs[z] - peak)
            found[k + 1, sign] = max(found[k + 1, sign], peak + np.log(total))


@compiled
def own_scores(
    first: int,
    laws: tuple[FloatArray, FloatArray, FloatArray],
    size: int,
    shares: tuple[float, float, int],
    rest: tuple[FloatArray, FloatArray],
    rates: FloatArray,
    found: FloatArray,
) -> None:  # pragma: no cover (compiled)
    """Raise log E exp(±t S) of the score of a sum, by one's own block and by the rest, at both ends of each cell.

    ``laws`` are those at the knots, how a cell's law changes, and where the steps are made of which this consists.
    ``shares`` are the part of a change that is made here, that of a block of others, and how many of
    these there are. ``rest`` are rates, from zero on, and what is known of a block at them. ``found[0]`` is E S², but
    for where a block is at an end, and the same of the change.
    """
    rows, changes, steps = laws
    places, known = rest
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
            for turn in range(2):
                _raised(own[turn], change, moved, outcomes, shares, places, known, rates, found)
        start = size - 1
        while start > 0 and at[start] == knots - 1:
            start -= 1
        if start <= 0:
            return
        at[start:] = at[start] + 1
