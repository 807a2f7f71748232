"""Probability mass functions of sums of few messages, and exact δ, for the tests of this folder."""

from functools import reduce
from math import exp

import numpy as np


def delta_of(p, q, epsilon):
    """The exact δ of two pmfs, the larger of both directions."""
    return max(float(np.maximum(a - exp(epsilon) * b, 0).sum()) for a, b in ((p, q), (q, p)))


def joint(pmfs):
    """The pmf of independent outcomes together."""
    return reduce(lambda a, b: np.multiply.outer(a, b).ravel(), pmfs)


def bernoulli_sum(probabilities):
    """The pmf of a sum of independent bits."""
    return reduce(np.convolve, [[1 - p, p] for p in probabilities], np.ones(1))


def message_sum(mechanism, inputs):
    """The pmf of the sum of messages with these inputs."""
    return reduce(np.convolve, [mechanism.pmf(x) for x in inputs], np.ones(1))


def modular_sum(pmf, count):
    """The pmf of the sum of outcomes modulo the number of outcomes."""
    total = np.eye(len(pmf))[0]
    for _ in range(count):
        full = np.convolve(total, pmf)
        total = np.append(full[len(pmf) :], 0.0) + full[: len(pmf)]
    return total


def noise_sum(mechanism, clients):
    """The pmf of the sum of clients' additive noise, as it is sampled, up to a shift of all outcomes."""
    return modular_sum(np.array(mechanism.sampled_pmf(-mechanism.clip), dtype=np.float64), clients)


def rounded(noise, steps):
    """The pmf of noise and an input in steps, which is rounded at random."""
    level, fraction = int(steps // 1), steps % 1
    return (1 - fraction) * np.roll(noise, level) + fraction * np.roll(noise, level + 1)
