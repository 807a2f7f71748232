"""Additive integer noise: bounds of one coordinate and of vectors against sums that are enumerated."""

from itertools import product
from math import inf

import numpy as np
import pytest

from rqm.bounds import gaussian_deltas
from rqm.certify.shifts import shift_divergences, shift_range, shifted_gdp, shifted_gdp_anywhere, shifted_rdp
from rqm.mechanisms.additive import Binomial, DiscreteGaussian, Skellam
from tests.certify.oracle import largest_normal_gap, plain_divergences

MECHANISMS = [DiscreteGaussian(scale=0.4, steps=5, bits=6), Skellam(scale=1.0, steps=3, bits=5)]
MECHANISMS = [*MECHANISMS, Binomial(scale=0.5, steps=5, bits=6)]
ORDERS = [1.25, 2.0, 8.0, 64.0]


def sum_pmf(mechanism, inputs):
    """The pmf of a sum of clients modulo 2**bits, of the noise as it is sampled."""
    spectrum = np.ones(2**mechanism.bits, dtype=complex)
    for x in inputs:
        spectrum = spectrum * np.fft.fft(np.array(mechanism.sampled_pmf(x), dtype=float).ravel())
    return np.maximum(np.fft.ifft(spectrum).real, 1e-300)


def vectors_within(l2_clip, rng, count):
    """Vectors of two coordinates within an L2 bound and the clip, some at its ends."""
    yield np.array([min(1.0, l2_clip), 0.0])
    for _ in range(count):
        v = rng.normal(size=2)
        yield np.clip(v * l2_clip / np.linalg.norm(v), -1, 1)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.kind)
@pytest.mark.parametrize("honest", [1, 3])
def test_divergences_of_shifts_are_exact(mechanism, honest):
    noise = mechanism.summed(honest).astype(np.longdouble)
    table = shift_divergences(mechanism, (1.0, *ORDERS, np.inf), honest)
    assert (table[0] == 0).all()
    for k, (column, alpha) in product(range(1, mechanism.steps + 1), enumerate((1.0, *ORDERS, np.inf))):
        shifted = np.roll(noise, k)
        exact = max(float(plain_divergences(p, q, alpha)) for p, q in ((noise, shifted), (shifted, noise)))
        assert exact <= table[k, column] <= exact * (1 + 1e-4) + 1e-12


WIDE = [kind(scale=1.0, steps=5, bits=8) for kind in (DiscreteGaussian, Skellam, Binomial)]


@pytest.mark.parametrize("mechanism", [*MECHANISMS, *WIDE], ids=lambda mechanism: f"{mechanism.kind} {mechanism.scale}")
@pytest.mark.parametrize("neighboring", ["replace-one", "zero-out"])
def test_no_pair_of_vectors_leaks_more(mechanism, neighboring):
    """Two coordinates; any inputs of the user and of the others, by Rényi divergences and (ε, δ)."""
    rng, closest, failure = np.random.default_rng(1), np.zeros(2), 1e-6
    for honest, l2_clip in product((1, 3), (0.4, 1.0, 1.3)):
        farthest, squared = shift_range(mechanism, l2_clip, neighboring)
        options = {"honest": honest, "dim": 2, "farthest": farthest, "squared": squared}
        rdp, mu = shifted_rdp(mechanism, ORDERS, **options), shifted_gdp(mechanism, **options, failure=failure)
        for x in vectors_within(l2_clip, rng, 6):
            y = -x if neighboring == "replace-one" else np.zeros(2)
            others = rng.uniform(-1, 1, (honest - 1, 2))
            pairs = [[sum_pmf(mechanism, [v[j], *others[:, j]]) for v in (x, y)] for j in (0, 1)]
            exact = sum(np.array([plain_divergences(*np.array(p, np.longdouble), a) for a in ORDERS]) for p in pairs)
            assert (exact <= rdp * (1 + 1e-6)).all()
            p, q = (np.multiply.outer(pairs[0][k], pairs[1][k]).ravel() for k in (0, 1))
            closest[0] = max(closest[0], (exact / rdp).max())
            for eps in (0.0, 0.5, 2.0, 5.0) if mu < inf else ():
                allowed = gaussian_deltas(mu, np.array([eps]))[0] + failure
                delta = np.maximum(p - np.exp(eps) * q, 0).sum()
                assert delta <= allowed + 1e-12
                closest[1] = max(closest[1], delta / allowed)
    assert closest[0] > 0.7
    assert closest[1] > 0.6 or mechanism not in WIDE


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.kind)
def test_no_pair_that_moves_by_the_sensitivity_is_easier_to_distinguish(mechanism):
    rng, closest = np.random.default_rng(2), 0.0
    for honest, sensitivity in product((1, 3), (0.2, 1.0, 2.0)):
        mu = shifted_gdp_anywhere(mechanism, honest=honest, dim=1, sensitivity=sensitivity)
        for x in (-1.0, *rng.uniform(-1, 1, 6)):
            y = min(x + sensitivity, 1.0)
            others = rng.uniform(-1, 1, honest - 1)
            gap = largest_normal_gap(*(sum_pmf(mechanism, [v, *others]) for v in (x, y)))
            assert gap <= mu * (1 + 1e-6)
            closest = max(closest, gap / mu)
    assert closest > 0.7
