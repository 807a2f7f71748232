"""Sums of clients by other means: 50 digits of mpmath, and long doubles over every placement of the other clients."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import combinations_with_replacement

import numpy as np
from mpmath import mp, mpf
from scipy.stats import norm

from rqm import RQM
from rqm.mechanisms.discrete import DiscreteMechanism
from tests.mechanisms.oracle import exact_rqm

# -- 50 digits ------------------------------------------------------------------------------------


def exact_pmf(mechanism, x):
    """The pmf of RQM or PBM at x from the parameters alone, in mpmath."""
    if isinstance(mechanism, RQM):
        return [mpf(p.numerator) / mpf(p.denominator) for p in exact_rqm(mechanism, Fraction(float(x)))]
    p = mpf(1) / 2 + mpf(mechanism.theta) * mpf(float(x)) / mpf(mechanism.clip)
    n = mechanism.levels - 1
    return [mp.binomial(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]


def convolve(a, b):
    """The pmf of a sum, in mpmath."""
    out = [mpf(0)] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            out[i + j] += x * y
    return out


def divergence(p, q, alpha):
    """D_α in mpmath."""
    if alpha == 1:
        return mp.fsum(a * mp.log(a / b) for a, b in zip(p, q, strict=True))
    if alpha == mp.inf:
        return max(mp.log(a / b) for a, b in zip(p, q, strict=True))
    alpha = mpf(alpha)
    return mp.log(mp.fsum(a**alpha * b ** (1 - alpha) for a, b in zip(p, q, strict=True))) / (alpha - 1)


# -- long doubles: a range of 10^±4932 -----------------------------------------------------------


def plain_sum(pmfs):
    """The pmf of the sum of clients with these pmfs."""
    return reduce(np.convolve, (np.asarray(pmf, np.longdouble) for pmf in pmfs), np.ones(1, np.longdouble))


def plain_divergences(p, q, alpha):
    """D_α(P ‖ Q) of pmfs along the last axis; infinite where P has an outcome that Q has not."""
    with np.errstate(divide="ignore", invalid="ignore"):
        loss = np.where(p > 0, np.log(p) - np.log(q), -np.inf)
        if np.isinf(alpha):
            return loss.max(axis=-1).astype(np.float64)
        if alpha < 1 + 1e-6:  # the sum of powers would cancel
            return np.where(p > 0, p * loss, 0).sum(axis=-1).astype(np.float64)
        terms = np.where(p > 0, np.log(p), 0) + (alpha - 1) * loss
        top = terms.max(axis=-1, keepdims=True)
        total = np.where(np.isinf(top), np.inf, np.exp(terms - top)).sum(axis=-1)
        return ((top[..., 0] + np.log(total)) / (alpha - 1)).astype(np.float64)


def plain_divergence(pmfs, pair, others, alpha):
    """D_α between the sums of one client with either pmf of a pair and the others; all are indices of pmfs."""
    base = plain_sum(pmfs[v] for v in others)
    p, q = (np.convolve(np.asarray(pmfs[v], np.longdouble), base) for v in pair)
    return float(plain_divergences(p, q, alpha))


def all_sums(own_pmfs, others, count) -> Iterator[np.ndarray]:
    """For every multiset of pmfs of the other clients: the sums with each of a client's own pmfs, one row each."""
    for choice in combinations_with_replacement(range(len(others)), count):
        base = plain_sum(others[v] for v in choice)
        yield np.array([np.convolve(np.asarray(pmf, np.longdouble), base) for pmf in own_pmfs])


def largest_divergences(own_pmfs, others, count, orders):
    """For each order, the largest D_α over all pairs of a client's own pmfs and all placements of the other clients."""
    largest = np.zeros(len(orders))
    for sums in all_sums(own_pmfs, others, count):
        table = [plain_divergences(sums[:, None], sums[None], alpha).max() for alpha in orders]
        largest = np.maximum(largest, table)
    return largest


def largest_deltas(own_pmfs, others, count, epsilons):
    """For each ε, the largest hockey-stick divergence over all pairs of pmfs and all placements of the others."""
    largest = np.zeros(len(epsilons))
    for sums in all_sums(own_pmfs, others, count):
        table = [
            np.maximum(sums[:, None] - np.exp(np.longdouble(e)) * sums[None], 0).sum(axis=-1).max() for e in epsilons
        ]
        largest = np.maximum(largest, np.array(table, dtype=np.float64))
    return largest


def largest_epsilon(own_pmfs, others, count, delta):
    """The smallest ε at which no pair and no placement has a larger δ than this, by bisection."""
    low, high = 0.0, 1.0
    while largest_deltas(own_pmfs, others, count, [high])[0] > delta:
        low, high = high, 2 * high
    if low == 0 and largest_deltas(own_pmfs, others, count, [0.0])[0] <= delta:
        return 0.0
    for _ in range(50):
        middle = (low + high) / 2
        if largest_deltas(own_pmfs, others, count, [middle])[0] > delta:
            low = middle
        else:
            high = middle
    return low


# -- whole releases -------------------------------------------------------------------------------


def sum_pmf(mechanism, inputs):
    """The pmf of a sum of clients with these inputs of a coordinate."""
    return reduce(np.convolve, [mechanism.pmf(x) for x in inputs], np.ones(1))


def release_pmf(mechanism, own_pmfs, others):
    """The pmf of a whole release: a product over coordinates; others' vectors are rows."""
    pmf = np.ones(1)
    for j, x in enumerate(own_pmfs):
        pmf = np.multiply.outer(pmf, sum_pmf(mechanism, [x, *others[:, j]])).ravel()
    return pmf


def largest_normal_gap(p, q):
    """The largest Φ⁻¹(power) − Φ⁻¹(level) of all best tests, both ways: the smallest μ."""
    largest = 0.0
    for first, second in ((p, q), (q, p)):
        order = np.argsort(-first / second, kind="stable")
        power, level = np.cumsum(first[order])[:-1], np.cumsum(second[order])[:-1]
        power_outside, level_outside = np.cumsum(first[order][::-1])[-2::-1], np.cumsum(second[order][::-1])[-2::-1]
        z = [
            np.where(inside < outside, norm.ppf(inside), -norm.ppf(outside))
            for inside, outside in ((power, power_outside), (level, level_outside))
        ]
        largest = max(largest, float((z[0] - z[1]).max()))
    return largest


# -- any table of pmfs as a mechanism -------------------------------------------------------------


@dataclass(frozen=True)
class TableMechanism(DiscreteMechanism):
    """A mechanism by its pmfs at some breakpoints from −1 to 1, affine in between."""

    rows: tuple[tuple[float, ...], ...]
    points: tuple[float, ...]
    clip: float = 1.0

    kind = "table of a test"
    output_range = Fraction(1)

    @classmethod
    def of(cls, pmfs, breakpoints=None):
        """From an array with one row for each breakpoint; without breakpoints they are evenly spaced."""
        breakpoints = np.linspace(-1, 1, len(pmfs)) if breakpoints is None else breakpoints
        return cls(tuple(map(tuple, np.asarray(pmfs).tolist())), tuple(map(float, breakpoints)))

    @property
    def levels(self):
        return len(self.rows[0])

    @property
    def breakpoints(self):
        return np.array(self.points)

    def log_pmf(self, x):
        x = np.asarray(x, dtype=np.float64)
        columns = [np.interp(x, self.points, column) for column in zip(*self.rows, strict=True)]
        with np.errstate(divide="ignore"):
            return np.log(np.stack(columns, axis=-1))

    def log_pmf_at(self, x, kind="paper"):
        return self.log_pmf(x)

    def to_dict(self):
        return {"rows": [list(row) for row in self.rows], "points": list(self.points)}

    variance_max = sampler = None

    def sampled_pmf_at(self, position):
        raise NotImplementedError
