"""Probability mass functions of sums of few messages, for the tests of this folder."""

from functools import reduce

import numpy as np


def joint(pmfs):
    """The pmf of independent outcomes together."""
    return reduce(lambda a, b: np.multiply.outer(a, b).ravel(), pmfs)


def message_sum(mechanism, inputs):
    """The pmf of the sum of messages with these inputs."""
    return reduce(np.convolve, [mechanism.pmf(x) for x in inputs], np.ones(1))


def noise_sum(mechanism, clients):
    """The pmf of the sum of clients' additive noise modulo all outcomes, as it is sampled, up to a shift."""
    pmf = np.array(mechanism.sampled_pmf(-mechanism.clip), dtype=np.float64)
    total = reduce(np.convolve, [pmf] * clients)
    return np.bincount(np.arange(len(total)) % len(pmf), total)


def rounded(noise, steps):
    """The pmf of noise and an input in steps, which is rounded at random."""
    level, fraction = int(steps // 1), steps % 1
    return (1 - fraction) * np.roll(noise, level) + fraction * np.roll(noise, level + 1)
