"""Releases with many inputs, and whether they are easier to tell apart than a μ says, for the tests of this folder."""

from itertools import pairwise

import numpy as np

from rqm import private_mean
from rqm.verify.epsilon_bound import release_of
from rqm.verify.gaussian_bound import gaussian_delta
from rqm.verify.ledger_claims import read_claims
from tests.verify.ledgers import describe
from tests.verify.pmfs import delta_of

FAILURE = 1e-9


def claims_of(**values):
    return read_claims(describe(private_mean(delta=1e-6, rotate=False, **values)))


def release_mu(claims, honest, failure=FAILURE):
    with np.errstate(all="ignore"):
        return release_of(claims, honest).mu(failure)


def is_understated(p, q, mu, failure=FAILURE):
    """Whether two pmfs are easier to tell apart than N(0, 1) and N(μ, 1), at some ε."""
    epsilons = np.linspace(0, mu * mu / 2 + 5 * mu, 41)
    return any(delta_of(p, q, epsilon) > gaussian_delta(mu, epsilon) + failure + 1e-14 for epsilon in epsilons.tolist())


def vectors(dim, l2_clip):
    """Inputs within the clip and the L2 clip, many of them on the edge."""
    rng = np.random.default_rng(dim)
    directions = [*np.eye(dim), np.ones(dim), *rng.normal(size=(3, dim))]
    return [np.clip(v * (l2_clip or 9.0) / np.linalg.norm(v), -1, 1) for v in directions]


def neighbors(dim, l2_clip, neighboring):
    inputs = vectors(dim, l2_clip)
    if neighboring == "zero-out":
        return [(sign * x, 0 * x) for x in inputs for sign in (1, -1)]
    return [(x, -x) for x in inputs] + list(pairwise(inputs))
