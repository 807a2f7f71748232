"""What an adversary attains, by other means than the library's: laws as they are deployed, enumerated.

Of a mechanism nothing is used but ``sampled_pmf``, the law of what a client sends, at its knots; what is between them
is a coin between neighbours. Probabilities are sums of positive numbers, so small ones keep their digits.
"""

from itertools import combinations_with_replacement
from math import comb, inf

import mpmath
import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr
from scipy.stats import binom

from rqm import PBM

LITTLE = 1e-10
"""Below this a δ is not turned into a μ: floats do not tell it."""


class Client:
    """The law of what a client sends of a coordinate, by its input in units of the clip."""

    def __init__(self, mech):
        self.trials = mech.levels - 1 if isinstance(mech, PBM) else 0
        self.modulus = mech.levels if mech.modular else None
        unit = mech.unit if self.trials else mech
        self.knots = unit.knots / unit.clip
        self.rows = np.array(unit.sampled_pmf(unit.knots), dtype=float)

    def law(self, u):
        cell = int(np.clip(np.searchsorted(self.knots, u, side="right") - 1, 0, len(self.knots) - 2))
        part = (u - self.knots[cell]) / (self.knots[cell + 1] - self.knots[cell])
        found = (1 - part) * self.rows[cell] + part * self.rows[cell + 1]
        return binom.pmf(np.arange(self.trials + 1), self.trials, found[1]) if self.trials else found

    def plus(self, one, other):
        total = np.convolve(one, other)
        if self.modulus is None:
            return total
        folded = np.zeros(-(-len(total) // self.modulus) * self.modulus)
        folded[: len(total)] = total
        return folded.reshape(-1, self.modulus).sum(axis=0)

    def summed(self, inputs):
        """The law of the sum of what clients with these inputs send."""
        found = np.ones(1)
        for u in inputs:
            found = self.plus(found, self.law(u))
        return found

    def release(self, own, others):
        """The law of a whole release: a product over coordinates. One row of ``others`` for each coordinate."""
        found = np.ones(1)
        for u, rest in zip(own, others, strict=True):
            found = np.multiply.outer(found, self.summed([u, *rest])).ravel()
        return found

    def crowds(self, count):
        """Others at all knots, in all ways; at the ends and the middle if these are too many."""
        knots = self.knots if len(self.knots) ** count < 2000 else self.knots[[0, len(self.knots) // 2, -1]]
        return [np.array(crowd) for crowd in combinations_with_replacement(knots, count)]


def renyi(p, q, alpha):
    """D_α of laws, the last axis of both, in long doubles."""
    p, q = np.asarray(p, dtype=np.longdouble), np.asarray(q, dtype=np.longdouble)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(p > 0, np.log(p) - np.log(q), -np.inf)
        if alpha == inf:
            return np.asarray(ratio.max(axis=-1), dtype=float)
        if alpha == 1:
            return np.asarray(np.where(p > 0, p * ratio, 0).sum(axis=-1), dtype=float)
        total = np.where(p > 0, p * np.expm1((alpha - 1) * ratio), 0).sum(axis=-1)
        return np.asarray(np.log1p(total) / (alpha - 1), dtype=float)


class Choice:
    """Pairs of laws, one of which the adversary chooses, in either direction."""

    def __init__(self, pairs):
        self.p = np.array([law for p, q in pairs for law in (p, q)])
        other = np.array([law for p, q in pairs for law in (q, p)])
        with np.errstate(divide="ignore", invalid="ignore"):
            self.loss = np.where(self.p > 0, np.log(self.p) - np.log(other), 0.0)

    def ranked(self, epsilon):
        """Places of pairs and directions, those with the largest δ at ε first."""
        found = (self.p * -np.expm1(np.minimum(epsilon - self.loss, 0))).sum(axis=1)
        return np.argsort(-found, kind="stable")

    def best(self, epsilons, most):
        """Those few that give the largest δ at some ε."""
        orders = np.array([self.ranked(epsilon) for epsilon in epsilons])
        kept = list(dict.fromkeys(orders.T.ravel().tolist()))[:most]
        few = Choice.__new__(Choice)
        few.p, few.loss = self.p[kept], self.loss[kept]
        return few


def delta(stages, epsilon):
    """The largest δ at some ε of several releases, each chosen after seeing the ones before.

    Each is a list of (chance, Choice): who is honest is drawn anew for each release, and told before the choice.
    """
    if not stages:
        return -np.expm1(np.minimum(epsilon, 0))
    total = np.zeros(len(epsilon))
    for chance, choice in stages[0]:
        left = delta(stages[1:], (epsilon[:, None, None] - choice.loss).ravel())
        total += chance * (choice.p * left.reshape(len(epsilon), *choice.p.shape)).sum(axis=-1).max(axis=-1)
    return total


def together(stages, epsilon):
    """The same if all releases have the same clients: who is honest is drawn once."""
    return sum(chance * delta([[(1.0, choice)]] * len(stages), epsilon) for chance, choice in stages[0])


def smallest_epsilon(profile, limit):
    """The smallest ε at which a falling profile is at most δ."""

    def excess(epsilon):
        return float(profile(np.array([epsilon]))[0]) - limit

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
        if high > 1e4:
            return inf
    return float(brentq(excess, 0.0, high, xtol=1e-12, rtol=1e-12))


def ways(total, marked, taken):
    """How many marked ones are among those taken from all, and the chance of each."""
    counts = range(max(0, taken - (total - marked)), min(marked, taken) + 1)
    return [(comb(marked, k) * comb(total - marked, taken - k) / comb(total, taken), k) for k in counts]


def drawn(population, users, clients, own):
    """How many honest clients a round holds, if any, and the chance of each; if ``own``, the user is among them."""
    found = [(chance, k + own) for chance, k in ways(population - own, users - own, clients - own)]
    return [(chance, k) for chance, k in found if k]


def repeated(law, times):
    """The law of so many independent copies, side by side."""
    found = np.ones(1)
    for _ in range(times):
        found = np.multiply.outer(found, law).ravel()
    return found


def seen_by_an_outsider(client, pair, rest, population, clients, times=1):
    """Both laws of all that models and colluders show: the number of honest clients (1, 2, …) and their sum.

    ``rest`` are the other honest users' inputs: two values at most. All samples are counted. A round that is done
    again has the same clients.
    """
    users, values = len(rest) + 1, sorted(set(rest)) or [0.0]
    high = sum(u == values[-1] for u in rest)
    worlds = []
    for own in pair:
        seen = []
        for chance, k in drawn(population, users, clients, False):
            law = 0.0
            for part, there in ((k / users, 1), (1 - k / users, 0)):
                for weight, h in ways(users - 1, high, k - there) if k - there < users else ():
                    crowd = [own] * there + [values[-1]] * h + [values[0]] * (k - there - h)
                    law = law + part * weight * repeated(client.summed(crowd), times)
            seen.append(chance * law)
        worlds.append(np.concatenate(seen))
    return worlds


# -- Gaussians -------------------------------------------------------------------------------------


def gaussian_delta(mu, epsilon):
    """In floats."""
    return ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))


def gaussian_epsilon(mu, limit, rate=1.0):
    """The exact ε of a Gaussian, drawn at a rate from users who all hold the same, in 40 digits."""
    with mpmath.workdps(40):
        mu, limit, rate = mpmath.mpf(mu), mpmath.mpf(limit), mpmath.mpf(rate)

        def excess(epsilon):
            e = mpmath.log(1 + mpmath.expm1(epsilon) / rate)
            return rate * (mpmath.ncdf(mu / 2 - e / mu) - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu)) - limit

        low, high = mpmath.mpf(0), mpmath.mpf(1)
        if excess(low) <= 0:
            return 0.0
        while excess(high) > 0:
            low, high = high, 2 * high
        for _ in range(45):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
        return float(low)


def in_bins(mu, bins):
    """Laws of N(0, 1) and N(μ, 1), rounded to bins: what is told apart so is told apart."""
    edges = np.concatenate([[-np.inf], np.linspace(-7, 7 + mu, bins - 1), [np.inf]])
    laws = []
    for m in (0.0, mu):
        below, above = np.diff(ndtr(edges - m)), -np.diff(ndtr(m - edges))
        laws.append(np.where(edges[1:] <= m, below, above))
    return laws


def told_apart(p, q, lost):
    """The least μ for which no test of one law against the other is better than a Gaussian's, but for ``lost``."""
    choice = Choice([(p, q)])

    def needed(epsilon):
        gaps = np.minimum(epsilon[:, None, None] - choice.loss, 0)
        wanted = (choice.p * -np.expm1(gaps)).sum(axis=-1).max(axis=-1) - lost
        told = wanted > max(LITTLE, lost * 1e-3)
        low, high = np.full(len(epsilon), 1e-6), np.full(len(epsilon), 64.0)
        for _ in range(48):
            middle = np.sqrt(low * high)
            enough = gaussian_delta(middle, epsilon) >= wanted
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return np.where(told, low, 0.0)

    finite = choice.loss[np.isfinite(choice.loss)]
    grid = np.linspace(0, min(max(float(finite.max()), 1e-6), 60.0), 33)
    for _ in range(2):
        found = needed(grid)
        at = int(found.argmax())
        grid = np.linspace(grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)], 17)
    return float(max(found.max(), needed(grid).max()))
