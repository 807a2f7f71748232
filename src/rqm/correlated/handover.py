"""Likelihood ratios of a run with correlated noise, round by round.

A client adds transient noise F and `gain` times residual noise E to its message, and cancels all
of it but E one round later. So the server sees y_t = R_t + A_t − A_{t−1} + E_{t−1} with A = gain
· E + F, where R is the sum of rounded inputs. A change of one unit in round s looks, to an
adversary who sees all y, like noise that is shifted along a path: F by one unit in every round
until the shift is handed over, either to E (E by 1 and F by 1 − gain) or to the rounding of the
other clients (by one unit). The path ends at random. Its likelihood ratio obeys

    Y_t = e ρ_E ρ_{1−gain} + c ρ_R + (1 − e − c) ρ_1 Y_{t+1},

where e and c are the probabilities that it ends here, ρ_E and ρ_R the ratios for a shift by one,
and ρ_k the ratio for F shifted by k; ρ_1 and ρ_{1−gain} belong to the same F
(docs/proofs/correlated.md). In the last round before the user may take part again the path must
end.

A ratio may be replaced by one that is larger in the Blackwell order: values may be split between
two others with the mean kept, and rare values between 0 and outcomes that only the shift can
give.
"""

from collections.abc import Iterator
from math import ceil, inf, log, sqrt
from typing import NamedTuple

import numpy as np
from numba import njit

from rqm._util.checks import FloatArray

NEGLIGIBLE_MASS = 1e-28
"""Probabilities below this are moved to where the shift reveals everything."""


def pmf_variance(pmf: FloatArray) -> float:
    """The variance of a pmf of total mass 1."""
    z = np.arange(len(pmf))
    return float(pmf @ (z - pmf @ z) ** 2)


# -- the probabilities of a path ------------------------------------------------------------------


class PathStep(NamedTuple):
    """One round of a path: the probabilities that it ends by residual noise, by rounding, or goes
    on, and its μ²."""

    residual: float
    rounding: float
    onward: float
    squared_mu: float


def best_step(residual: float, transient: float, gain: int, rounding: float, later: float) -> PathStep:
    """The step with the least μ² if all noise were Gaussian.

    It minimizes e²/residual + (1 − c − gain · e)²/transient + c²/rounding + later · (1 − e − c)².
    Any step gives a valid bound; this one is nearly the best.

    See docs/proofs/correlated.md#lemma-7.

    Args:
        residual: Variance of the residual noise E, 0 if there is none.
        transient: Variance of the transient noise F.
        gain: How many times E is added at first.
        rounding: Variance of the other clients' rounding, 0 if it does not count.
        later: μ² of the path if it goes on; infinite if it must end.

    Returns:
        The step.
    """

    def step(e: float, c: float) -> PathStep:
        onward = max(0.0, 1 - e - c) if later < inf else 0.0
        squared = (e**2 / residual if e else 0.0) + (1 - c - gain * e) ** 2 / transient
        if c:
            squared += c**2 / rounding if rounding else inf
        return PathStep(e, c, onward, squared + (later * onward**2 if onward else 0.0))

    if not residual:
        if later == inf:
            return step(0.0, 1.0)
        ahead = rounding * (1 / transient + later)
        return step(0.0, ahead / (1 + ahead))
    e_of_last = 1 / (1 + rounding * (1 / residual + (gain - 1) ** 2 / transient))
    if later == inf:
        return step(e_of_last, 1 - e_of_last)
    own_weight = 1 / residual + gain**2 / transient + later
    across = gain / transient + later
    only = 1 / transient + later
    determinant = own_weight + rounding * (own_weight * only - across**2)
    c = rounding * (own_weight * only - across**2) / determinant
    if c <= 0:
        return step(min(1.0, across / own_weight), 0.0)
    e = across / determinant
    return step(e, c) if e + c <= 1 else step(e_of_last, 1 - e_of_last)


def path_length(
    separation: int, residual: float, transient: float, gain: int, rounding: float, worthwhile: float = 1e-4
) -> tuple[int, float]:
    """For how many rounds a path should go on at most, and its μ² if all noise were Gaussian.

    See docs/proofs/correlated.md#lemma-7.

    Args:
        separation: Rounds from one participation of a user to the next, at least.
        residual: Variance of the residual noise.
        transient: Variance of the transient noise.
        gain: How many times the residual noise is added at first.
        rounding: Variance of the other clients' rounding.
        worthwhile: More rounds are not used if all of them together gain less than this part of μ².

    Returns:
        A number of rounds up to `separation`, and μ² of a shift by one unit.

    >>> rounds, squared_mu = path_length(3, 0.0, 100.0, 1, 100.0)
    >>> rounds, round(squared_mu, 6)
    (3, 0.00625)
    """
    squared, previous, rounds = inf, inf, 0
    while rounds < separation:
        squared, previous, rounds = (
            best_step(residual, transient, gain, rounding, squared).squared_mu,
            squared,
            rounds + 1,
        )
        if previous - squared <= max(worthwhile / rounds, 1e-12) * squared:
            break
    return rounds, squared


def gaussian_squared_mu(separation: int, residual: float, transient: float, gain: int, rounding: float) -> float:
    """μ² of a shift by one unit if all noise were Gaussian of these variances: no certificate is far
    below it.

    See docs/proofs/correlated.md#lemma-12.

    Args:
        separation: Rounds from one participation of a user to the next, at least.
        residual: Variance of the residual noise, 0 if there is none.
        transient: Variance of the transient noise.
        gain: How many times the residual noise is added at first.
        rounding: Variance of the other clients' rounding.

    Returns:
        μ².
    """
    return path_length(separation, residual, transient, gain, rounding, 0.0)[1]


# -- likelihood ratios of one round ---------------------------------------------------------------


class Ratio(NamedTuple):
    """The likelihood ratio of shifted noise over noise: its values and their probabilities under the
    noise.

    `singular` is the probability, under the shifted noise, of outcomes that the noise cannot have.
    """

    values: FloatArray
    probabilities: FloatArray
    singular: float

    @property
    def variance(self) -> float:
        """The variance under the noise."""
        return float(self.probabilities @ (self.values - self.probabilities @ self.values) ** 2)


class ShiftRatios(NamedTuple):
    """The ratios of F for a shift by one (`up`) and by 1 − gain (`down`), with their joint
    probabilities.

    `singular_up` and `singular_down` are the probabilities of outcomes that only the shifted F can have.
    """

    up: FloatArray
    down: FloatArray
    probabilities: FloatArray
    singular_up: float
    singular_down: float


def ratio_above(pmfs: list[FloatArray], variance: float, points: int = 16, rare: float = 1e-35) -> Ratio:
    """The likelihood ratio for a shift by one, larger in the Blackwell order than that of each pmf.

    Its curve, sup over events of W(E) − q N(E), is the highest of theirs at some points q and
    straight in between.

    See docs/proofs/correlated.md#lemma-5.

    Args:
        pmfs: Pmfs of noise, such as the other clients' rounding for each split of them.
        variance: The smallest of their variances, which sets the distance of the points.
        points: Points of the curve in a standard deviation of the ratio, up to 12 of them; then they
            spread out.
        rare: Where the curve is lower than this it ends.

    Returns:
        The ratio.
    """
    q = _curve_points(min(1 / sqrt(variance), 1.0) / points if variance else 1 / points, points)
    puts = np.zeros(len(q))
    calls = np.zeros(len(q))
    for pmf in pmfs:
        noise = np.append(pmf, 0.0)
        shifted = np.append(0.0, pmf)
        values = np.divide(shifted, noise, out=np.full(len(noise), inf), where=noise > 0)
        by_value = np.argsort(values, kind="stable")
        noise, shifted = noise[by_value], shifted[by_value]
        at = np.searchsorted(values[by_value], q, side="right")
        below = [np.append(0.0, np.cumsum(pmf_part))[at] for pmf_part in (noise, shifted)]
        above = [np.append(np.cumsum(pmf_part[::-1])[::-1], 0.0)[at] for pmf_part in (noise, shifted)]
        puts = np.maximum(puts, q * below[0] - below[1])
        calls = np.maximum(calls, above[1] - q * above[0])
    return _ratio_of_curve(q, puts, calls, rare)


def _curve_points(step: float, points: int) -> FloatArray:
    """0, even steps around 1, and beyond them steps that grow with their distance from 1."""
    even_steps, last_point = 12 * points, 1e4
    below = np.arange(-min(even_steps, int((1 - 1e-9) / step)), 0) * step
    close_to_one = np.arange(1, even_steps + 1) * step
    growth = 1 + 1 / even_steps
    growing = close_to_one[-1] * growth ** np.arange(1, ceil(log(last_point / close_to_one[-1]) / log(growth)) + 1)
    return np.concatenate([[0.0], 1 + below, [1.0], 1 + close_to_one, 1 + growing])


def _ratio_of_curve(q: FloatArray, puts: FloatArray, calls: FloatArray, rare: float) -> Ratio:
    """The ratio ρ whose E max(q − ρ, 0) below 1, and E max(ρ − q, 0) above, are as given; 1 is one
    of the points.

    A curve that ends early lacks less than rare · q / spacing of W at its last point q.

    See docs/proofs/correlated.md#lemma-5.
    """
    center = int(np.searchsorted(q, 1.0))
    rises = np.diff(puts[: center + 1]) / np.diff(q[: center + 1])  # probabilities to lie below
    falls = np.append(-np.diff(calls[center:]) / np.diff(q[center:]), 0.0)  # probabilities to lie above
    masses = np.concatenate([rises[:1], np.diff(rises), [1 - rises[-1] - falls[0]], falls[:-1] - falls[1:]])
    last = int(np.flatnonzero(np.append(True, calls[:-1] > rare))[-1])
    masses[last] += falls[last - center]  # what lies beyond it
    return Ratio(q[: last + 1], np.maximum(masses[: last + 1], 0.0), float(calls[last]))


def shift_ratios(pmf: FloatArray, gain: int) -> ShiftRatios:
    """Both ratios of F on few points, larger in the Blackwell order.

    As the ratio for a shift by one rises, that for a shift by 1 − gain falls, ever more slowly.
    This line is cut into pieces, and each outcome of a piece is split between three corners that
    enclose the piece, with both means kept: its ends, and the corner below them. Outcomes far in
    the tails count as if they revealed everything.

    See docs/proofs/correlated.md#lemma-10.

    Args:
        pmf: The pmf of F.
        gain: How many times the residual noise is added at first, at least 2.

    Returns:
        The points and their probabilities.
    """
    pmf, z = pmf / pmf.sum(), np.arange(len(pmf))
    deviation = sqrt(pmf_variance(pmf))
    mean = float(pmf @ z)
    first = max(1, int(mean - 10 * deviation))
    last = min(len(pmf) - gain, int(mean + 10 * deviation) + 1)
    if last - first < 2:
        return ShiftRatios(np.zeros(1), np.zeros(1), np.ones(1), 1.0, 1.0)
    noise = pmf[first : last + 1]
    up = pmf[first - 1 : last] / noise
    down = pmf[first + gain - 1 : last + gain] / noise
    outside = float(pmf[:first].sum() + pmf[last + 1 :].sum())
    singular_up = float(pmf[: first - 1].sum() + pmf[last:].sum())
    singular_down = float(pmf[: first + gain - 1].sum() + pmf[last + gain :].sum())
    cuts = np.unique(np.append(np.arange(0, len(noise), max(1, int(deviation / 2))), len(noise) - 1))
    points: list[tuple[float, float, float]] = []
    for a, b in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        piece = slice(a, b + (b == cuts[-1]))
        weights = _corner_weights(up[piece], down[piece], (up[a], up[b]), (down[a], down[b]))
        if weights is None:
            outside += float(noise[piece].sum())
            singular_up += float(noise[piece] @ up[piece])
            singular_down += float(noise[piece] @ down[piece])
        else:
            masses = (weights @ noise[piece]).tolist()
            points += [(up[a], down[a], masses[0]), (up[b], down[b], masses[1]), (up[a], down[b], masses[2])]
    columns = np.array([*points, (0.0, 0.0, outside)]).T
    return ShiftRatios(columns[0], columns[1], columns[2], singular_up, singular_down)


def _corner_weights(
    x: FloatArray, y: FloatArray, ends: tuple[float, float], heights: tuple[float, float]
) -> FloatArray | None:
    """The weights of a piece's outcomes at its ends and at the corner below; None if they are not
    within these."""
    width = ends[1] - ends[0]
    height = heights[0] - heights[1]
    if not (0 < width < inf and 0 < height < inf):
        return None
    second = (x - ends[0]) / width
    first = (y - heights[1]) / height
    third = 1 - first - second
    off = max(-width * float(second.min()) / ends[1], -height * float(min(first.min(), third.min())) / heights[0])
    if not off <= 1e-12:  # less than is charged for rounding errors of a round
        return None
    second = np.clip(second, 0.0, 1.0)
    third = np.clip(third, 0.0, 1.0)
    third = np.minimum(third, 1 - second)
    return np.stack([1 - second - third, second, third])


def without_rare(ratio: Ratio, rare: float = NEGLIGIBLE_MASS) -> Ratio:
    """A slightly larger ratio with fewer values: rare ones become 0, or count as infinite.

    See docs/proofs/correlated.md#lemma-5.

    Args:
        ratio: The ratio; its first value is 0.
        rare: Probabilities below this are moved.

    Returns:
        The ratio with fewer values and the same mean.
    """
    is_rare = ratio.probabilities < rare
    is_rare[0] = False
    values, probabilities = ratio.values[~is_rare], ratio.probabilities[~is_rare]
    probabilities[0] += ratio.probabilities[is_rare].sum()
    return Ratio(values, probabilities, ratio.singular + float(ratio.probabilities[is_rare] @ ratio.values[is_rare]))


# -- the likelihood ratio of a path ---------------------------------------------------------------


class _GridPmf(NamedTuple):
    """Probabilities of the whole numbers of grid steps from `first` on."""

    first: int
    probabilities: FloatArray

    @classmethod
    def from_values(cls, values: FloatArray, probabilities: FloatArray) -> "_GridPmf":
        """The pmf of values that are split between the two whole numbers around them, which keeps the mean.

        Args:
            values: The values, in steps.
            probabilities: Their probabilities.

        Returns:
            The pmf on whole numbers.
        """
        left = np.floor(values).astype(np.int64)
        first = int(left.min())
        fraction = values - left
        masses = np.bincount(left - first, probabilities * (1 - fraction), int(left.max()) - first + 2)
        masses[1:] += np.bincount(left - first, probabilities * fraction)
        return cls(first, masses.astype(np.float64))

    @property
    def values(self) -> FloatArray:
        """The whole numbers, as floats."""
        return self.first + np.arange(float(len(self.probabilities)))

    def plus(self, addend: "_GridPmf") -> "_GridPmf":
        """The pmf of the sum of two independent values."""
        total = np.zeros(len(self.probabilities) + len(addend.probabilities) - 1)
        for i, masses in self._segments():
            for j, addend_masses in addend._segments():
                _add_convolution(masses, addend_masses, total[i + j :])
        return _GridPmf(self.first + addend.first, total)

    def _segments(self) -> Iterator[tuple[int, FloatArray]]:
        """The first probability and the rest, without the zeros in between: ratios have an atom at 0, far below."""
        used = np.flatnonzero(self.probabilities)
        for a, b in ((used[:1], used[:1]), (used[1:2], used[-1:])):
            if len(a):
                yield int(a[0]), self.probabilities[a[0] : b[0] + 1]

    def within(self, lowest: int, highest: int) -> tuple["_GridPmf", float, float]:
        """The part between two whole numbers.

        Args:
            lowest: The first number of the part.
            highest: The last number.

        Returns:
            The part, the probability outside it, and that times the mean outside it.
        """
        a = max(lowest - self.first, 0)
        b = max(highest + 1 - self.first, 0)
        probability = mean = 0.0
        for start, outside in ((0, self.probabilities[:a]), (b, self.probabilities[b:])):
            mass = float(outside.sum())
            probability += mass
            mean += (self.first + start) * mass + float((outside * np.arange(len(outside))).sum())
        return _GridPmf(max(lowest, self.first), self.probabilities[a:b]), probability, mean


def path_ratio(
    transient: ShiftRatios,
    residual: Ratio | None,
    rounding: Ratio,
    variances: tuple[float, float, float],
    gain: int,
    rounds: int,
    points: int = 74,
    rare: float = NEGLIGIBLE_MASS,
) -> Ratio:
    """The likelihood ratio Y of a path of fewer than `rounds` rounds, computed from its last round
    back.

    See docs/proofs/correlated.md#lemma-9.

    Args:
        transient: The ratios of F.
        residual: The ratio of E for a shift by one; None if there is no residual noise.
        rounding: The ratio of the other clients' rounding for a shift by one.
        variances: Variances of E (0 if there is none), of F and of the rounding, which choose the
            steps of the path.
        gain: How many times E is added at first.
        rounds: Rounds after which the path must have ended.
        points: Points of the grid in a standard deviation of Y.
        rare: Probabilities below this are not carried on.

    Returns:
        The ratio; its mean and `singular` add up to 1.
    """
    residual = Ratio(np.zeros(1), np.ones(1), 0.0) if residual is None else without_rare(residual, rare)
    rounding = without_rare(rounding, rare)
    is_used = transient.probabilities > rare
    order = np.lexsort(transient[:2])
    up, down, weights = (values[order][is_used[order]] for values in transient[:3])
    dropped, dropped_up, dropped_down = (
        float(transient.probabilities[~is_used] @ values[~is_used])
        for values in (np.ones(len(is_used)), transient.up, transient.down)
    )
    singular_up = transient.singular_up + dropped_up
    singular_down = transient.singular_down + dropped_down
    grid = _GridPmf(1, np.ones(1))
    step = 1.0
    zero = 0.0
    singular_mass = 0.0
    later = inf
    for _ in range(rounds):
        e, c, onward, later = best_step(variances[0], variances[1], gain, variances[2], later)
        previous_step = step
        step = min(sqrt(later), 1 / 3) / points
        lowest = max(1, round(1 / step) - 12 * points)
        highest = round(1 / step) + 80 * points
        product = np.zeros(highest + 1)
        handed = np.append(0.0, onward * previous_step / step * grid.values)
        ended = e / step * residual.values
        probabilities = np.append(zero, grid.probabilities)
        beyond, beyond_mean = _add_products(
            up, down, weights, handed, probabilities, ended, residual.probabilities, product
        )
        if not product.any():
            return Ratio(np.zeros(1), np.ones(1), 1.0)  # everything is revealed
        zero = dropped + beyond
        by_rounding = _GridPmf.from_values(c / step * rounding.values, rounding.probabilities)
        grid, outside, outside_mean = _GridPmf(0, product).plus(by_rounding).within(lowest, highest)
        missing = step * (beyond_mean + outside_mean) + zero * c * float(rounding.values @ rounding.probabilities)
        singular_mass = (
            missing
            + e * _either(residual.singular, singular_down)
            + onward * _either(singular_up, singular_mass)
            + c * rounding.singular
        )
        likely = np.append(np.flatnonzero(grid.probabilities > rare), int(grid.probabilities.argmax()))
        grid, at_ends, end_mean = grid.within(grid.first + int(likely.min()), grid.first + int(likely.max()))
        zero += outside + at_ends
        singular_mass += step * end_mean
    return Ratio(np.append(0.0, step * grid.values), np.append(zero, grid.probabilities), singular_mass)


def _either(p: float, q: float) -> float:
    """The probability of one or the other of two independent events."""
    return p + q - p * q


_compiled = njit(cache=True, nogil=True, fastmath={"contract"})  # sums of positive numbers


@_compiled
def _add_convolution(masses, others, out):  # type: ignore[no-untyped-def]
    """Add the convolution of two arrays to `out`, on a single thread, as np.convolve is not for long arrays."""
    for i in range(len(masses)):
        window = out[i : i + len(others)]
        for j in range(len(others)):
            window[j] += masses[i] * others[j]


@_compiled
def _add_products(ups, downs, weights, handed, probabilities, ended, others, out):  # type: ignore[no-untyped-def]
    """Add the pmf of up · x + down · y to `out`, with x and y of two pmfs and (up, down) of a third, where equal values
    of `downs` follow one another.

    Returns the probability of what lies beyond the last point, and its mean times that.
    """
    beyond = 0.0
    beyond_mean = 0.0
    top = len(out) - 1
    k = 0
    total = np.zeros(2 * top + 12)
    index = np.arange(2 * top + 12)
    while k < len(ups):
        transient_part = np.zeros(top + 8)
        residual_part = np.zeros(top + 8)
        down = downs[k]
        near_beyond, near_rest = _split_to_grid(down, ended, others, 1.0, residual_part[3 : top + 5])
        far_beyond, far_rest = 0.0, 0.0
        while k < len(ups) and downs[k] == down:
            outside, outside_mean = _split_to_grid(ups[k], handed, probabilities, weights[k], transient_part[: top + 2])
            far_beyond += outside
            far_rest += outside_mean
            k += 1
        if near_beyond + far_beyond > 0.0:
            mass = transient_part.sum()
            mean = (transient_part * index[: top + 8]).sum()
            near_mass = residual_part.sum()
            near_mean = (residual_part[3:] * index[: top + 5]).sum()
            beyond += mass * near_beyond + far_beyond * (near_mass + near_beyond)
            beyond_mean += mass * near_rest + near_beyond * (mean + far_rest) + far_beyond * (near_mean + near_rest)
            beyond_mean += far_rest * near_mass
        start = int(min(down * ended[0], top))
        stop = int(min(down * ended[-1], top)) + 5
        padded = residual_part[start : stop + 3]
        for i in range(0, top + 2, 4):  # four at a time, so that sums stay in registers
            first = transient_part[i]
            second = transient_part[i + 1]
            third = transient_part[i + 2]
            fourth = transient_part[i + 3]
            if first + second + third + fourth == 0.0:  # between 0 and the next value
                continue
            window = total[i + start : i + stop]
            for j in range(stop - start):
                window[j] += first * padded[j + 3] + second * padded[j + 2] + third * padded[j + 1] + fourth * padded[j]
    out += total[: top + 1]
    tail = total[top + 1 :]
    return beyond + tail.sum(), beyond_mean + (tail * index[top + 1 :]).sum()


@_compiled
def _split_to_grid(scale, values, probabilities, weight, masses):  # type: ignore[no-untyped-def]
    """Add the probabilities of scaled values, none negative, to the two whole numbers around each.

    Returns the probability of those beyond the last but one, and their mean times that.
    """
    beyond = 0.0
    beyond_mean = 0.0
    top = len(masses) - 2
    for i in range(len(values)):
        value = scale * values[i]
        if value > top:
            beyond += weight * probabilities[i]
            beyond_mean += weight * probabilities[i] * value
            continue
        left = int(value)
        fraction = value - left
        masses[left] += weight * probabilities[i] * (1 - fraction)
        masses[left + 1] += weight * probabilities[i] * fraction
    return beyond, beyond_mean
