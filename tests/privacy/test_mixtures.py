"""A mixture of Gaussians is above the scores it was made for, alone and in sums; one with less variance is not."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from rqm.privacy.mixtures import Mixture


def summed(law, times):
    """A symmetric law, of the sum of so many, with its values: far out there is hardly anything."""
    total = np.ones(1)
    for _ in range(times):
        total = np.convolve(total, law / law.sum())
    return np.arange(len(total)) - len(total) // 2, total


LAWS = {
    "even": summed(np.ones(5), 16),
    "peaked": summed(np.exp(-abs(np.arange(-4, 5.0))), 10),
    "binomial": summed(np.array([1.0, 2.0, 1.0]), 20),
}


def missing(values, law, tau):
    return float(np.maximum(values - tau, 0) @ law)


def made(name):
    values, law = LAWS[name]
    law = law / law.sum()
    places = np.linspace(0, values[-1], 4 * int(values[-1]) + 1)
    return values, law, Mixture.over(places, np.array([missing(values, law, tau) for tau in places]))


def mixed(mixture, tau):
    deviations = np.sqrt(mixture.variances)
    return float(
        mixture.weights @ [d * (stats.norm.pdf(tau / d) - tau / d * stats.norm.sf(tau / d)) for d in deviations]
    )


@pytest.mark.parametrize("name", LAWS)
def test_it_is_above_in_convex_order(name):
    values, law, mixture = made(name)
    less = replace(mixture, variances=0.9 * mixture.variances)
    grid = np.linspace(0, values[-1], 97)
    out = mixture.out * mixture.furthest
    assert all(missing(values, law, tau) <= mixed(mixture, tau) + out for tau in grid)
    assert any(missing(values, law, tau) > mixed(less, tau) + out for tau in grid)
    variance = float(law @ values**2)
    assert variance <= mixture.mean <= 1.6 * variance


@pytest.mark.parametrize("count", [1, 4, 16])
@pytest.mark.parametrize("name", LAWS)
def test_sums_are_no_easier_to_tell_than_it_says(name, count):
    """E[S; its best p] over φ(Φ⁻¹(p)) of a sum of so many scores, computed."""
    _, law, mixture = made(name)
    at, total = summed(law, count)
    chance, mean = np.cumsum(total[::-1]), np.cumsum((total * at)[::-1])
    seen = (chance >= 1e-8) & (chance <= 0.5)
    truth = float((mean[seen] / stats.norm.pdf(stats.norm.ppf(chance[seen]))).max())
    found = np.sqrt(count * mixture.factor(count, count, 1e-8))
    assert truth <= found
    assert found <= 1.2 * truth
