"""Random mechanisms to attack, with parameters from one end of what is allowed to the other."""

import numpy as np

from rqm import PBM, RQM, StochasticRounding
from rqm.mechanisms.additive import Binomial, DiscreteGaussian, Skellam
from rqm.related.randomized_response import RandomizedResponse


def log_uniform(rng, low, high):
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def bit(rng):
    return StochasticRounding(levels=2, margin=log_uniform(rng, 0.01, 30))


def wide(rng):
    levels = int(rng.choice([2, 4, 6]))
    margin = (levels - 2) + log_uniform(rng, 0.01, 20)
    if rng.random() < 0.2:
        return StochasticRounding(levels=4, margin=2 + log_uniform(rng, 0.01, 20))
    keep = rng.uniform(0.02, 0.98, levels - 2) if rng.random() < 0.3 else rng.choice([0.02, 0.3, 0.6, 0.98, 0.999])
    mech = RQM(levels=levels, margin=margin, keep=float(keep) if np.ndim(keep) == 0 else tuple(keep.tolist()))
    return mech.with_noise(float(rng.uniform(1.02, levels + 2))) if rng.random() < 0.3 and levels > 2 else mech


def trials(rng):
    return PBM(theta=float(rng.uniform(0.02, 0.49)), levels=int(rng.integers(2, 6)))


def response(rng):
    return RandomizedResponse(levels=2, epsilon=log_uniform(rng, 0.1, 6))


def additive(rng, bits=(3, 6), narrowest=0.3):
    while True:
        width = int(rng.integers(bits[0], bits[1] + 1))
        steps = int(rng.choice([s for s in (1, 3, 5, 7) if s < 2**width]))
        deviation = log_uniform(rng, narrowest, 2**width / 5)
        kind = rng.choice([DiscreteGaussian, Skellam, Binomial])
        try:
            mech = kind(scale=2 * deviation / steps, steps=steps, bits=width)
            mech.sampled_pmf(0.0)
        except ValueError:
            continue
        return mech


def levelled(rng):
    """With levels inside the clip."""
    return RQM(levels=int(rng.integers(3, 7)), margin=log_uniform(rng, 0.05, 2), keep=float(rng.uniform(0.05, 0.95)))


def one_of(rng, *kinds):
    return kinds[int(rng.integers(len(kinds)))](rng)


def affine(rng):
    return one_of(rng, bit, wide, wide, response)
