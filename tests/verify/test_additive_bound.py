"""Bounds of additive noise: against the exact δ of small releases, beside a bound that is 2 % too small."""

from itertools import product

import numpy as np
import pytest

from rqm import DiscreteGaussian, Skellam
from rqm.mechanisms.additive import Binomial
from tests.verify.pmfs import joint, noise_sum, rounded
from tests.verify.releases import claims_of, is_understated, neighbors, release_mu


@pytest.mark.parametrize("kind", [DiscreteGaussian, Skellam, Binomial])
@pytest.mark.parametrize("neighboring", ["replace-one", "zero-out"])
@pytest.mark.parametrize("l2_clip", [None, 1.0])
def test_no_release_with_additive_noise_is_easier_to_tell_apart(kind, neighboring, l2_clip):
    is_caught = False
    for honest, dim, scale in product((3, 6), (1, 2), (2.5, 4.0)):
        mechanism = kind(scale=scale, steps=3, bits=7)
        claims = claims_of(dim=dim, clients=honest, mechanism=mechanism, l2_clip=l2_clip, neighboring=neighboring)
        mu, noise = release_mu(claims, honest), noise_sum(mechanism, honest)
        assert mu < np.inf
        for pair in neighbors(dim, l2_clip, neighboring):
            p, q = (joint([rounded(noise, 1.5 * (1 + u)) for u in vector]) for vector in pair)
            assert not is_understated(p, q, mu)
            is_caught = is_caught or is_understated(p, q, 0.98 * mu)
    # Whole steps are exact; for parts of one, and so under an L2 clip, the noise of rounding is not counted.
    assert is_caught or l2_clip is not None or neighboring == "zero-out"


@pytest.mark.parametrize(
    ("mechanism", "failure"),
    [
        (DiscreteGaussian(scale=1.5, steps=3, bits=6), 1e-4),
        (DiscreteGaussian(scale=2.5, steps=3, bits=6), 1e-6),
        (Skellam(scale=1.5, steps=3, bits=6), 1e-6),
        (Skellam(scale=2.5, steps=3, bits=6), 1e-8),
        (Binomial(scale=2.5, steps=3, bits=6), 1e-6),
        (Binomial(scale=4.0, steps=3, bits=7), 1e-8),
    ],
    ids=repr,
)
def test_no_narrow_noise_of_one_client_is_easier_to_tell_apart(mechanism, failure):
    """Noise that ends few steps beyond what the bound leaves out; any two inputs, also between levels."""
    noise, inputs = noise_sum(mechanism, 1), np.linspace(-1, 1, 13)
    for neighboring, l2_clip in product(("replace-one", "zero-out"), (None, 0.75, 0.5, 0.25)):
        claims = claims_of(dim=1, clients=1, mechanism=mechanism, l2_clip=l2_clip, neighboring=neighboring)
        mu = release_mu(claims, 1, failure)
        assert mu < np.inf
        for x, y in product(inputs, inputs if neighboring == "replace-one" else [0.0]):
            if max(abs(x), abs(y)) <= (l2_clip or 1):
                assert not is_understated(rounded(noise, 1.5 * (1 + x)), rounded(noise, 1.5 * (1 + y)), mu, failure)


def test_noise_that_is_too_narrow_has_no_bound():
    """What lies beyond the last outcome of the noise reveals the input, and is more than may be left out."""
    mechanism = DiscreteGaussian(scale=1.0, steps=3, bits=6)
    assert release_mu(claims_of(dim=1, clients=1, mechanism=mechanism), 1) == np.inf
