"""What an adversary attains, by other means than the library's: the pmfs that are deployed, enumerated.

Of a mechanism nothing is used but `sampled_pmf`, the pmf of what a client sends, at its breakpoints; an input between
two breakpoints is rounded to one of them at random. Probabilities are sums of positive numbers, so that small ones
keep their digits.
"""

from itertools import combinations_with_replacement, product
from math import comb, inf

import mpmath
import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr
from scipy.stats import binom

from rqm import PBM

SMALLEST_DELTA = 1e-10
"""Below this a δ is not turned into a μ: floats cannot tell it from zero."""
RAREST = 1e-18
"""Rarer outcomes of correlated noise are left out, which only hides differences."""


class Client:
    """The pmf of what a client sends of a coordinate, by its input in units of the clip."""

    def __init__(self, mech):
        self.trials = mech.levels - 1 if isinstance(mech, PBM) else 0
        self.modulus = mech.levels if mech.is_modular else None
        unit = mech.unit if self.trials else mech
        self.breakpoints = unit.breakpoints / unit.clip
        self.rows = np.array(unit.sampled_pmf(unit.breakpoints), dtype=float)

    def pmf(self, u):
        cell = int(np.clip(np.searchsorted(self.breakpoints, u, side="right") - 1, 0, len(self.breakpoints) - 2))
        fraction = (u - self.breakpoints[cell]) / (self.breakpoints[cell + 1] - self.breakpoints[cell])
        mixed = (1 - fraction) * self.rows[cell] + fraction * self.rows[cell + 1]
        return binom.pmf(np.arange(self.trials + 1), self.trials, mixed[1]) if self.trials else mixed

    def plus(self, first, second):
        total = np.convolve(first, second)
        return total if self.modulus is None else folded(total, self.modulus)

    def summed(self, inputs):
        """The pmf of the sum of what clients with these inputs send."""
        total = np.ones(1)
        for u in inputs:
            total = self.plus(total, self.pmf(u))
        return total

    def release(self, vectors):
        """The pmf of a whole release of clients with these vectors: a product over coordinates."""
        joint = np.ones(1)
        for inputs in np.transpose(vectors):
            joint = np.multiply.outer(joint, self.summed(inputs)).ravel()
        return joint

    def crowds(self, count):
        """The other clients at all breakpoints, in all ways; at the ends and the middle if these are too many."""
        points = self.breakpoints
        points = points if len(points) ** count < 2000 else points[[0, len(points) // 2, -1]]
        return [np.array(crowd) for crowd in combinations_with_replacement(points, count)]


def folded(pmf, modulus, start=0):
    """The pmf modulo a number; its first outcome is `start`."""
    total = np.zeros(modulus)
    np.add.at(total, np.arange(start, start + len(pmf)) % modulus, pmf)
    return total


def renyi(p, q, alpha):
    """D_α of pmfs, the last axis of both, in long doubles."""
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
    """Pairs of pmfs, one of which the adversary chooses, in either direction."""

    def __init__(self, pairs):
        self.p = np.array([pmf for p, q in pairs for pmf in (p, q)])
        swapped = np.array([pmf for p, q in pairs for pmf in (q, p)])
        with np.errstate(divide="ignore", invalid="ignore"):
            self.loss = np.where(self.p > 0, np.log(self.p) - np.log(swapped), 0.0)

    def ranked(self, epsilon):
        """Indices of pairs and directions, those with the largest δ at ε first."""
        deltas = (self.p * -np.expm1(np.minimum(epsilon - self.loss, 0))).sum(axis=1)
        return np.argsort(-deltas, kind="stable")

    def best(self, epsilons, count):
        """The `count` of them that give the largest δ at some ε."""
        rankings = np.array([self.ranked(epsilon) for epsilon in epsilons])
        rankings_used = list(dict.fromkeys(rankings.T.ravel().tolist()))[:count]
        subset = Choice.__new__(Choice)
        subset.p, subset.loss = self.p[rankings_used], self.loss[rankings_used]
        return subset


def delta(stages, epsilon):
    """The largest δ at some ε of several releases, each chosen after seeing the ones before.

    Each is a list of (probability, Choice): the honest clients are drawn anew for each release, and the adversary
    learns who they are before it chooses.
    """
    if not stages:
        return -np.expm1(np.minimum(epsilon, 0))
    total = np.zeros(len(epsilon))
    for weight, choice in stages[0]:
        left = delta(stages[1:], (epsilon[:, None, None] - choice.loss).ravel())
        total += weight * (choice.p * left.reshape(len(epsilon), *choice.p.shape)).sum(axis=-1).max(axis=-1)
    return total


def delta_of_repeated_round(stages, epsilon):
    """The same if all releases have the same clients: the honest ones are drawn once."""
    return sum(weight * delta([[(1.0, choice)]] * len(stages), epsilon) for weight, choice in stages[0])


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


def marked_counts(total, marked, draws):
    """How many of a sample are marked, with their probabilities."""
    counts = range(max(0, draws - (total - marked)), min(marked, draws) + 1)
    return [(comb(marked, k) * comb(total - marked, draws - k) / comb(total, draws), k) for k in counts]


def honest_counts(population, users, clients, is_user_in):
    """How many honest clients a round holds, if any, with their probabilities; the user may be known to be in it."""
    counts = marked_counts(population - is_user_in, users - is_user_in, clients - is_user_in)
    return [(weight, k + is_user_in) for weight, k in counts if k + is_user_in]


def repeated(pmf, copies):
    """The joint pmf of independent copies."""
    joint = np.ones(1)
    for _ in range(copies):
        joint = np.multiply.outer(joint, pmf).ravel()
    return joint


def seen_by_outsider(client, pair, ends, high, users, population, clients, copies=1):
    """Both pmfs of all that models and colluders show: the number of honest clients (1, 2, …) and their sum.

    Args:
        client: A `Client`.
        pair: Two vectors of the user.
        ends: Two vectors of other users.
        high: How many other honest users hold the second of them.
        users: Honest users, with the user.
        population: All users.
        clients: Clients of a round.
        times: How often the round was released, with the same clients.
    """
    worlds = []
    for user_pmf in pair:
        views = []
        for weight, k in honest_counts(population, users, clients, is_user_in=False):
            total = 0.0
            for fraction, takes_part in ((k / users, 1), (1 - k / users, 0)):
                for mix, h in marked_counts(users - 1, high, k - takes_part) if k - takes_part < users else ():
                    crowd = [user_pmf] * takes_part + [ends[1]] * h + [ends[0]] * (k - takes_part - h)
                    total = total + fraction * mix * repeated(client.release(crowd), copies)
            views.append(weight * total)
        worlds.append(np.concatenate(views))
    return worlds


# -- correlated noise ------------------------------------------------------------------------------


def joint_noise(noise, clients):
    """The pmf of what some clients' correlated noise adds, and of what cancels later: {(added, canceled): p}.

    Args:
        noise: A `CorrelatedNoise`, of which only the tables that are sampled are used.
        clients: How many clients.
    """

    def table(units):
        return list(zip(range(-(len(units) // 2), len(units) // 2 + 1), (units / units.sum()).tolist(), strict=True))

    single: dict[tuple[int, int], float] = {}
    for residual, q in table(noise.residual.units) if noise.residual else [(0, 1.0)]:
        for transient, p in table(noise.transient.units):
            shifted = transient + noise.gain * residual, transient + (noise.gain - 1) * residual
            single[shifted] = single.get(shifted, 0.0) + p * q
    total = {(0, 0): 1.0}
    for _ in range(clients):
        longer: dict[tuple[int, int], float] = {}
        for ((a, b), p), ((c, d), q) in product(total.items(), single.items()):
            if p * q > RAREST:
                longer[a + c, b + d] = longer.get((a + c, b + d), 0.0) + p * q
        total = longer
    return total


def added_pmf(noise, clients):
    """The pmf of what some clients' correlated noise adds to a sum, up to a public constant.

    Args:
        noise: A `CorrelatedNoise`.
        clients: How many clients.
    """
    total: dict[int, float] = {}
    for (added, _), probability in joint_noise(noise, clients).items():
        total[added] = total.get(added, 0.0) + probability
    return np.array([total.get(value, 0.0) for value in range(min(total), max(total) + 1)])


def seen_of_correlated(rounding, noise, modulus):
    """The pmf of all sums of one coordinate in a run: each has new noise, and cancels that of the round before.

    Args:
        rounding: The pmf of each round's sum without correlated noise, from 0 on.
        noise: What `joint_noise` returned, the same in each round.
        modulus: Sums are revealed modulo this number.
    """
    canceled = sorted({b for _, b in noise})
    states, pending = np.ones((1, 1)), [0]  # views, noise that is still to be canceled
    for pmf in rounding[:-1]:
        updated = np.zeros((len(states), modulus, len(canceled)))
        for i, earlier in enumerate(pending):
            for (added, later), probability in noise.items():
                shown = folded(pmf, modulus, added - earlier)
                updated[:, :, canceled.index(later)] += (probability * states[:, i])[:, None] * shown
        states, pending = updated.reshape(-1, len(canceled)), canceled
    shown = np.zeros((len(pending), modulus))  # the noise of the last round is never canceled
    for i, earlier in enumerate(pending):
        for (added, _), probability in noise.items():
            shown[i] += probability * folded(rounding[-1], modulus, added - earlier)
    return np.einsum("si,im->sm", states, shown).ravel()


# -- Gaussians -------------------------------------------------------------------------------------


def gaussian_delta(mu, epsilon):
    """In floats."""
    return ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))


def gaussian_epsilon(mu, limit, rate=1.0):
    """The exact ε of a Gaussian on a uniform sample of users who all hold the same, in 40 digits."""
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
    """The pmfs of N(0, 1) and N(μ, 1), rounded to bins, which only hides differences."""
    edges = np.concatenate([[-np.inf], np.linspace(-7, 7 + mu, bins - 1), [np.inf]])
    pmfs = []
    for m in (0.0, mu):
        below, above = np.diff(ndtr(edges - m)), -np.diff(ndtr(m - edges))
        pmfs.append(np.where(edges[1:] <= m, below, above))
    return pmfs


def smallest_mu(p, q, failure):
    """The smallest μ for which no test of one pmf against the other beats a Gaussian's by more than `failure`."""
    choice = Choice([(p, q)])

    def needed(epsilon):
        gaps = np.minimum(epsilon[:, None, None] - choice.loss, 0)
        deltas = (choice.p * -np.expm1(gaps)).sum(axis=-1).max(axis=-1) - failure
        is_visible = deltas > max(SMALLEST_DELTA, failure * 1e-3)
        low, high = np.full(len(epsilon), 1e-6), np.full(len(epsilon), 64.0)
        for _ in range(48):
            middle = np.sqrt(low * high)
            is_enough = gaussian_delta(middle, epsilon) >= deltas
            low, high = np.where(is_enough, low, middle), np.where(is_enough, middle, high)
        return np.where(is_visible, low, 0.0)

    finite = choice.loss[np.isfinite(choice.loss)]
    grid = np.linspace(0, min(max(float(finite.max()), 1e-6), 60.0), 33)
    for _ in range(2):
        mus = needed(grid)
        best = int(mus.argmax())
        grid = np.linspace(grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)], 17)
    return float(max(mus.max(), needed(grid).max()))
