"""Bounds on one release of a mechanism whose pmf is affine on the clip: rounding, RQM, PBM and vqSGD.

The pmf of the sum is m(1 + u·r) where the user's input is u clips. docs/verify.md has the proofs.
"""

from math import inf, log, log1p, pi, sqrt

import numpy as np
from scipy.special import ndtr, ndtri_exp

from .gaussian_bound import SLACK, best_tests, dominating_pmf, split_on_grid, tail_probability
from .integer_pmfs import LONG, TAIL, Array, end_pmfs, end_sums, missing_from_sum
from .ledger_claims import Claims
from .verification_report import Unverifiable


class AffineRelease:
    """One release of a mechanism whose pmf is affine on the clip.

    Attributes:
        claims: What a release is.
        honest: Honest clients in the sum, the user's included.
        low: The pmf of one trial of a message at −c.
        high: The pmf of one trial of a message at c.
        count: Trials of all coordinates.
        sums: The pmfs of one trial of the sum with the user's input at −c and at c, for each block of
            the other clients. Outcomes that were cut off count at the largest |r|.
        missing: Probability of these outcomes, at most.
    """

    def __init__(self, claims: Claims, honest: int) -> None:
        """The release.

        Args:
            claims: What a release is.
            honest: Honest clients in the sum, the user's included.

        Raises:
            Unverifiable: If the sums take too long.
        """
        self.claims = claims
        self.honest = honest
        self.low, self.high, trials = end_pmfs(claims.mechanism)
        self.count = claims.sent * trials
        length = len(self.low)
        if honest * (length - 1) ** 2 > 4 * 10**6:
            raise Unverifiable(f"{honest} honest clients of {length} outcomes: takes this verifier too long")
        self.missing = missing_from_sum(honest, TAIL) if honest * length >= LONG else 0.0
        is_possible = self.low + self.high > 0
        r = float((abs(self.high - self.low)[is_possible] / (self.high + self.low)[is_possible]).max())
        cut_off = self.missing * np.array([1 - r, 1 + r])
        self.sums = []
        for sums in end_sums(self.low, self.high, honest):
            down, up = (np.append(pmf, mass) for pmf, mass in zip(sums, (cut_off, cut_off[::-1]), strict=True))
            is_likely = np.maximum(down, up) > 1e-280
            self.sums.append((down[is_likely], up[is_likely]))

    def mu(self, failure: float) -> float:
        """Bound μ by slopes through zero, or by sums of scores. See docs/verify.md#lemma-1 and docs/verify.md#lemma-4.

        Args:
            failure: Probability of the outcomes that μ leaves out.

        Returns:
            μ, infinite if there is none.
        """
        claims = self.claims
        scale = self.count / claims.sent
        squares = claims.squared_distance * scale
        squares_anywhere = claims.distance_anywhere**2 * scale
        smallest = min(squares, squares_anywhere)
        by_scores = smallest * sum_of_scores_rate(
            self.low, self.high, self.honest, smallest / (1 if claims.is_zero_out else 4)
        )
        squared_mus = np.zeros(2)
        steepest = 0.0
        for down, up in self.sums:
            tests = best_tests(down, up, tail_probability(failure, self.count) - self.missing, self.missing)
            squared_mus = np.maximum(squared_mus, tests.squared_mus(claims.is_zero_out))
            steepest = max(steepest, tests.steepest)
        by_slopes = float((squared_mus * [squares, self.count]).min())
        return sqrt(min(by_slopes, by_scores, squares_anywhere * steepest**2) * SLACK)

    def divergence(self, alpha: float) -> float:
        """Bound D_α under the L2 bound. See docs/verify.md#lemma-8.

        Args:
            alpha: The order, at most 2 or at least 3.

        Returns:
            D_α, at most: exp((α − 1) D_α) − 1 of a coordinate is at most κ a², and κ is largest as a → 0, or at a = 1.
        """
        kappa = 0.0
        for down, up in self.sums:
            middle = (down + up) / 2
            pairs = [(middle, up), (middle, down)] if self.claims.is_zero_out else [(up, down), (down, up)]
            for pmf, neighbor in pairs:
                y = 1 - neighbor / pmf
                for power in (alpha, 1 - alpha):
                    at_zero = power * (power - 1) / 2 * float(pmf @ y**2)
                    kappa = max(kappa, at_zero, moment_excess(pmf, y, power))
        return self.count / (alpha - 1) * log1p(kappa * self.claims.squared_length / self.claims.sent)

    @property
    def largest_loss(self) -> float:
        """The largest privacy loss of one trial of a coordinate."""
        return max(float(abs(np.log(up / down)).max()) for down, up in self.sums) * SLACK

    def profile(self, epsilons: Array) -> Array:
        """δ of one trial of a coordinate, the worst of all blocks and both directions.

        Args:
            epsilons: Increasing values of ε.

        Returns:
            δ at each of them.
        """
        x = np.exp(epsilons)
        deltas = np.zeros(len(x))
        for sums in self.sums:
            for p, q in (sums, sums[::-1]):
                order = np.argsort(q / p)  # the largest losses first
                count_above = np.searchsorted((q / p)[order], 1 / x, side="left")
                mass_p, mass_q = (np.concatenate([[0.0], np.cumsum(pmf[order])]) for pmf in (p, q))
                deltas = np.maximum(deltas, mass_p[count_above] - x * mass_q[count_above])
        return np.asarray(deltas + 2e-13)  # more than the rounding errors


def moment_excess(pmf: Array, y: Array, power: float) -> float:
    """E[(1 − y)^p] − 1 for outcomes of a pmf, where E[y] = 0; infinite if it is no number."""
    excess = float(pmf @ (np.expm1(power * np.log1p(-y)) + power * y))
    return excess if excess < inf else inf


def threshold_epsilon(claims: Claims, releases: int, honest: int) -> float:
    """A lower bound: what a threshold on the sum of everything reveals, by the Berry-Esseen theorem.

    The others send zeros. The user's vector is flat; rotated, its signs differ, so the larger of two variances counts.

    See docs/verify.md#lemma-10.

    Args:
        claims: What a release is.
        releases: The releases that the user is part of.
        honest: Honest clients in the sum, at most.

    Returns:
        ε, at least.
    """
    low, high, trials = end_pmfs(claims.mechanism)
    outcomes = np.arange(len(low))
    a = 0.99 * claims.attained * sqrt(claims.squared_length / claims.sent)
    inputs = np.array([0, a, -a])[:, None]
    pmfs = ((1 - inputs) * low + (1 + inputs) * high) / 2
    means = pmfs @ outcomes
    variances = (pmfs * (outcomes - means[:, None]) ** 2).sum(axis=1)
    count = float(claims.sent * trials * releases)
    stds = np.sqrt(count * (variances + (honest - 1) * variances[0]))
    distance = count * (means[1] - means[0 if claims.is_zero_out else 2]) / stds.max()
    error = 0.56 * (len(low) - 1) / stds.min()
    thresholds = np.linspace(0, 1, 21)
    p = ndtr((1 - thresholds) * distance) - error
    q = ndtr(-thresholds * distance) + error
    return float(np.log(np.maximum((p - claims.delta) / q, 1)).max())


# -- sums of scores -------------------------------------------------------------------------------


def sum_of_scores_rate(low: Array, high: Array, honest: int, squares: float, max_terms: int = 512) -> float:
    """Bound μ² of a whole release over the squared distance of two vectors. See docs/verify.md#lemma-4.

    Args:
        low: The pmf of a message at −c.
        high: The pmf of a message at c.
        honest: Honest clients in the sum, the user's included.
        squares: The largest squared distance, in units of the largest of one coordinate.
        max_terms: Scores that are added up at most.

    Returns:
        The rate, infinite where sums are not exact, or are not worth computing.
    """
    smaller = np.minimum(low, high)
    rarest = float(smaller[low + high > 0].min())
    # Of so few outcomes nothing is cut off, here or by the accountant; so likely ones are no subnormal floats.
    is_whole = honest * (len(low) - 1) < 112 or float(smaller[[0, -1]].min()) ** honest > TAIL
    is_exact = rarest > 0 and is_whole and -honest * log(rarest) < 650
    smallest = inf
    if honest > 32 or squares < 2 or not is_exact:  # of more clients, one coordinate is nearly normal
        return smallest
    pmf, unit = dominating_score(low, high, honest)
    points = len(pmf) // 2
    at_ends = 0.0  # this part of the sum lies as far out as such a sum can be
    terms = 1
    while terms <= min(squares, max_terms):
        scale = unit * normal_scale(pmf, at_ends, points * terms)
        # Coordinates in blocks of so many, sorted: each block but the first counts for no more than the one before.
        rate = scale**2 / terms * (1 + (terms - 1) / squares)
        if rate > smallest:
            break
        smallest = rate
        terms = 2 * terms
        pmf = np.convolve(pmf, pmf)
        pmf = (pmf + pmf[::-1]) / 2
        cut = int(np.argmax(pmf > 1e-199))
        at_ends = 2 * at_ends + 2 * float(pmf[:cut].sum()) + len(pmf) * 1e-300
        pmf = pmf[cut : len(pmf) - cut]
    return smallest * SLACK


def dominating_score(low: Array, high: Array, honest: int) -> tuple[Array, float]:
    """Return a symmetric pmf on a grid that is above every score and its opposite in convex order, and the grid's unit.

    The curve E(s − τ)₊ is convex in the user's input, so it is largest at an end of the clip.

    Args:
        low: The pmf of a message at −c.
        high: The pmf of a message at c.
        honest: Honest clients in the sum, the user's included.

    Returns:
        The pmf, and the unit of the grid.
    """
    points = 24  # on either side of zero
    scores = []
    for down, up in end_sums(low, high, honest):
        for pmf in (down, up):
            scores.append(((up - down)[pmf > 0] / (2 * pmf[pmf > 0]), pmf[pmf > 0]))
    unit = max(float(abs(score).max()) for score, _ in scores) * (1 + 1e-9) / points
    pmfs = [
        (split_on_grid(points + sign * score / unit, pmf, 2 * points + 1), 0.0)
        for score, pmf in scores
        for sign in (1, -1)
    ]
    pmf, _ = dominating_pmf(pmfs, points)
    moved = 1.01e-7  # to the ends: more than the rounding errors
    pmf = (1 - moved) * (pmf + pmf[::-1]) / 2
    pmf[[0, -1]] += moved / 2
    return pmf, unit


def normal_scale(pmf: Array, at_ends: float, farthest: int) -> float:
    """Return the least s for which a symmetric pmf is below s·Z in convex order, with Z normal.

    Args:
        pmf: The pmf.
        at_ends: Probability of values even farther out.
        farthest: The largest of these values.

    Returns:
        s, by the expectation over the largest values at each probability.
    """
    above = np.arange(len(pmf) // 2, 0, -1)
    masses = np.append(at_ends / 2, pmf[: len(above)])
    probability = np.cumsum(masses)
    mean = np.cumsum(masses * np.append(farthest, above))
    z = ndtri_exp(np.log(probability[probability > 0]))
    return float((mean[probability > 0] * np.exp(z * z / 2)).max()) * sqrt(2 * pi)
