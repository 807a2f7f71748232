"""Bounds on one release with additive noise: discrete Gaussian, Skellam and binomial.

docs/verify.md#lemma-5 and docs/verify.md#lemma-8 have the proofs.
"""

from functools import cached_property
from math import ceil, exp, inf, log, sqrt

import numpy as np
from scipy.optimize import minimize_scalar

from .affine_bound import moment_excess
from .gaussian_bound import SLACK, BestTests, best_tests, tail_probability
from .integer_pmfs import Array, modular_noise, step_std, unbounded_noise
from .ledger_claims import Claims
from .verification_report import Unverifiable


class AdditiveRelease:
    """One release with additive noise.

    Attributes:
        claims: What a release is.
        honest: Honest clients, or silos, in the sum, the user's included.
        last: The largest distance of two inputs of a coordinate, in steps.
    """

    def __init__(self, claims: Claims, honest: int) -> None:
        """The release.

        Args:
            claims: What a release is.
            honest: Honest clients, or silos, in the sum, the user's included.
        """
        self.claims = claims
        self.honest = honest
        self.last = claims.mechanism["steps"] / (2 if claims.is_zero_out else 1)

    @cached_property
    def modular(self) -> Array:
        """The pmf of the noise modulo 2^bits."""
        return modular_noise(self.claims.mechanism, self.honest)

    def anywhere_mu(self) -> float:
        """μ where a vector may lie anywhere, and moves by a known distance. See docs/verify.md#lemma-5.

        Returns:
            μ, infinite if the distance is not known.

        Raises:
            Unverifiable: If the noise takes too long.
        """
        mechanism = self.claims.mechanism
        if self.claims.distance_anywhere == inf:
            return inf
        if self.honest * 20 * step_std(mechanism) > 60_000:
            raise Unverifiable(
                f"{self.honest} honest silos or clients, steps = {mechanism['steps']}: takes this verifier too long"
            )
        slope = best_tests(self.modular, np.roll(self.modular, 1), 0.0, 0.0).steepest
        return float(slope * self.claims.distance_anywhere * mechanism["steps"] * SLACK)

    def mu(self, failure: float) -> float:
        """Bound μ: whole steps exactly, a fraction of a step by the steepest slope.

        Outcomes far in the tails of the noise, shifted by any distance of two inputs, are merged into one on
        either side. See docs/verify.md#lemma-5.

        Args:
            failure: Probability of the outcomes that μ leaves out.

        Returns:
            μ, infinite if there is none.
        """
        claims = self.claims
        anywhere = self.anywhere_mu()
        pmf, missing = unbounded_noise(claims.mechanism, self.honest)
        tail = tail_probability(failure, claims.sent) - missing
        if not tail > missing:
            return anywhere
        room = ceil(self.last)  # levels that the inputs of a pair span
        start = int(np.searchsorted(np.cumsum(pmf), tail, side="right")) - room
        stop = len(pmf) - int(np.searchsorted(np.cumsum(pmf[::-1]), tail, side="right")) + room

        def tests(shift: int) -> BestTests:
            return best_tests(
                _merge_tails(pmf, start, stop), _merge_tails(pmf, start - shift, stop - shift), 0.0, missing
            )

        slope = 2 * tests(1).steepest
        if not 0 < slope < inf:
            return anywhere
        rises = [float(tests(shift).rise(0, 2).max(initial=0)) for shift in range(1, room + 1)]
        whole = np.maximum.accumulate(np.minimum([0.0, *rises], slope * np.arange(room + 1)))
        distances = np.append(0.0, np.geomspace(1e-4, 1, 8000))  # over the largest; between two, the larger one counts
        shifts = self.last * distances[1:]
        above = np.ceil(shifts).astype(int)
        mus = np.minimum(whole[above - 1] + slope * (shifts - above + 1), whole[above])
        return min(anywhere, sqrt(worst_sum(distances, mus**2, claims.sent, claims.squared_length) * SLACK))

    def divergence(self, alpha: float) -> float:
        """Bound D_α under the L2 bound. See docs/verify.md#lemma-8.

        Args:
            alpha: The order.

        Returns:
            D_α, at most: of noise shifted by k for inputs k steps apart, and linear in between.

        Raises:
            Unverifiable: If it takes too long.
        """
        steps, bits = self.claims.mechanism["steps"], self.claims.mechanism["bits"]
        if steps << bits > 2**25:
            raise Unverifiable(f"steps = {steps}, bits = {bits}: takes this verifier too long")
        pmf = self.modular  # symmetric, so both directions reveal as much
        excesses = [0.0]
        for k in range(1, ceil(self.last) + 1):
            shifted = np.roll(pmf, k)
            excesses.append(moment_excess(shifted, 1 - pmf / shifted, alpha))
        shifts = np.arange(round(48 * self.last) + 1) / 48  # noise is taken at its worst on each part of a step
        excess = np.interp(shifts[1:], np.arange(len(excesses)), np.maximum.accumulate(excesses))
        values = np.log1p(excess) / (alpha - 1)
        return worst_sum(shifts / self.last, values, self.claims.sent, self.claims.squared_length)


def _merge_tails(pmf: Array, start: int, stop: int) -> Array:
    """A pmf from one outcome up to another: those before in one, and those after."""
    low = max(start, 0)
    high = min(stop, len(pmf))
    padded = np.pad(pmf[low:high], (low - start, stop - high))
    return np.concatenate([[pmf[:low].sum()], padded, [pmf[high:].sum()]])


def worst_sum(distances: Array, values: Array, count: int, squares: float) -> float:
    """The largest sum of a function of each coordinate's distance, under a bound on the sum of squared distances.

    Any price of a squared distance gives a bound. See docs/verify.md#lemma-5.

    Args:
        distances: Increasing distances, over the largest, from 0 to 1.
        values: An increasing function of the distance, at all of them but the first.
        count: The number of coordinates.
        squares: The largest sum of their squared distances, in units of the largest distance.

    Returns:
        The sum, at most.
    """
    farthest = float(values[-1])
    if not 0 < farthest < inf:
        return count * farthest
    starts = distances[:-1] ** 2

    def bound(log_price: float) -> float:
        price = exp(log_price)
        return price * squares / count + float((values - price * starts).max())

    nearby = log(farthest)
    best = minimize_scalar(bound, bounds=(nearby - 8, nearby + 8), method="bounded")
    return count * min(float(best.fun), farthest)
