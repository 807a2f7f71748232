"""The verifier's Gaussian bound: against exact δ of whole small releases, each beside a bound that is 2 % too small."""

import json
from itertools import pairwise, product
from math import comb, exp

import numpy as np
import pytest

from rqm import PBM, RQM, PrivateMean, Rounding
from rqm.mechanisms.additive import Binomial, DiscreteGaussian, Skellam
from rqm.verify import bound, laws, reader, verify
from rqm.verify.gaussian import best_tests, epsilon_of, leaks, mu_of
from tests.verify.ledgers import about, written

LOST = 1e-9
AFFINE = [
    Rounding(levels=2, margin=0.4),
    Rounding(levels=2, margin=5.0),
    RQM(levels=4, margin=9.0, keep=0.3),
    PBM(theta=0.3, levels=3),
]


def promised(**parts):
    return reader._promise(about(PrivateMean(delta=1e-6, rotate=False, **parts)))


def leaked(p, q, epsilon):
    """The exact δ of two laws, the worse direction."""
    return max(float(np.maximum(a - exp(epsilon) * b, 0).sum()) for a, b in ((p, q), (q, p)))


def understated(p, q, mu, lost=LOST):
    """Whether two laws can be told apart better than N(0, 1) and N(μ, 1), at some ε."""
    every = np.linspace(0, mu * mu / 2 + 5 * mu, 41)
    return any(leaked(p, q, epsilon) > leaks(mu, epsilon) + lost + 1e-14 for epsilon in every.tolist())


def vectors(dim, l2_clip):
    """Inputs within the clip and the ball, many of them on its edge."""
    rng = np.random.default_rng(dim)
    some = [*np.eye(dim), np.ones(dim), *rng.normal(size=(3, dim))]
    return [np.clip(v * (l2_clip or 9.0) / np.linalg.norm(v), -1, 1) for v in some]


def pairs(dim, l2_clip, neighbours):
    every = vectors(dim, l2_clip)
    if neighbours == "zero-out":
        return [(sign * x, 0 * x) for x in every for sign in (1, -1)]
    return [(x, -x) for x in every] + list(pairwise(every))


def summed(mech, inputs):
    law = np.ones(1)
    for x in inputs:
        law = np.convolve(law, mech.pmf(x))
    return law


def affine_releases(mech, honest, dim, l2_clip, neighbours):
    """Laws of whole releases with one vector and with another, beside others at the ends."""
    for others in product((-1, 1), repeat=honest - 1):
        for pair in pairs(dim, l2_clip, neighbours):
            each = [[summed(mech, [u, *others]) for u in vector] for vector in pair]
            yield tuple(one[0] if dim == 1 else np.outer(*one).ravel() for one in each)


@pytest.mark.parametrize("mech", AFFINE, ids=repr)
@pytest.mark.parametrize("neighbours", ["replace", "zero-out"])
@pytest.mark.parametrize("l2_clip", [None, 1.0, 0.6])
def test_no_affine_release_is_easier_to_tell_apart(mech, neighbours, l2_clip):
    caught = False
    for honest, dim in product((1, 3), (1, 2)):
        said = promised(dim=dim, clients=honest, mechanism=mech, l2_clip=l2_clip, neighbours=neighbours)
        mu = mu_of(said, honest, LOST)
        for p, q in affine_releases(mech, honest, dim, l2_clip, neighbours):
            assert not understated(p, q, mu)
            caught = caught or understated(p, q, 0.98 * mu)
    # Nobody sees the trials of PBM one by one; and what inputs at the ends leak is looked at where none reaches them.
    assert caught or isinstance(mech, PBM) or l2_clip == 0.6


def noisy(law, x):
    """Noise and an input in steps, rounded by a coin."""
    level, part = int(x // 1), x % 1
    return (1 - part) * np.roll(law, level) + part * np.roll(law, level + 1)


@pytest.mark.parametrize("kind", [DiscreteGaussian, Skellam, Binomial])
@pytest.mark.parametrize("neighbours", ["replace", "zero-out"])
@pytest.mark.parametrize("l2_clip", [None, 1.0])
def test_no_noise_lets_more_through(kind, neighbours, l2_clip):
    caught = False
    for honest, dim, scale in product((3, 6), (1, 2), (2.5, 4.0)):
        mech = kind(scale=scale, steps=3, bits=7)
        said = promised(dim=dim, clients=honest, mechanism=mech, l2_clip=l2_clip, neighbours=neighbours)
        mu, law = mu_of(said, honest, LOST), mech.summed(honest)
        assert mu < np.inf
        for pair in pairs(dim, l2_clip, neighbours):
            each = [[noisy(law, 1.5 * (1 + u)) for u in vector] for vector in pair]
            p, q = (one[0] if dim == 1 else np.outer(*one).ravel() for one in each)
            assert not understated(p, q, mu)
            caught = caught or understated(p, q, 0.98 * mu)
    # Whole steps are exact; for a part of one, and so under a budget, the coin's own noise is not counted.
    assert caught or l2_clip is not None or neighbours == "zero-out"


@pytest.mark.parametrize(
    ("mech", "lost"),
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
def test_no_noise_that_hardly_reaches_far_enough_lets_more_through(mech, lost):
    """A client alone, whose noise ends few steps beyond what may be lost: any two inputs, between levels, too."""
    law, inputs = mech.summed(1), np.linspace(-1, 1, 13)
    for neighbours, l2_clip in product(("replace", "zero-out"), (None, 0.75, 0.5, 0.25)):
        said = promised(dim=1, clients=1, mechanism=mech, l2_clip=l2_clip, neighbours=neighbours)
        mu = mu_of(said, 1, lost)
        assert mu < np.inf
        for x, y in product(inputs, inputs if neighbours == "replace" else [0.0]):
            if max(abs(x), abs(y)) <= (l2_clip or 1):
                assert not understated(noisy(law, 1.5 * (1 + x)), noisy(law, 1.5 * (1 + y)), mu, lost)


def test_noise_that_is_too_narrow_has_no_bound():
    """A client alone: what is beyond the last outcome of the noise tells all, and is more than may be lost."""
    mech = DiscreteGaussian(scale=1.0, steps=3, bits=6)
    assert mu_of(promised(dim=1, clients=1, mechanism=mech), 1, LOST) == np.inf


def test_a_sum_that_lost_too_much_has_no_bound():
    low, high = laws.ends(Rounding(levels=2, margin=1.0).to_dict())[:2]
    assert best_tests(low, high, 1e-9, lost=0.0) is not None
    assert best_tests(low, high, 1e-9, lost=1e-9) is None


@pytest.mark.parametrize(("mu", "delta"), [(1e-4, 1e-6), (0.1, 1e-9), (1.0, 1e-5), (12.0, 1e-7), (300.0, 1e-6)])
def test_the_gaussians_own_epsilon_is_exact(mu, delta):
    mpmath = pytest.importorskip("mpmath")
    above, below = epsilon_of(mu, delta)

    def exact(epsilon):
        with mpmath.workdps(80):
            a, b = (mpmath.ncdf(sign * mpmath.mpf(mu) / 2 - epsilon / mpmath.mpf(mu)) for sign in (1, -1))
            return a - mpmath.exp(epsilon) * b

    assert exact(above) <= delta
    assert above - below < 1e-5 * above + 1e-12
    assert below == 0 or exact(below) >= delta


# -- a fraction of honest clients -----------------------------------------------------------------

POPULATION, CLIENTS, MARGIN, DELTA = 20, 4, 1.0, 1e-2


def lucky(others, releases):
    """The laws of releases that also show how many are honest; ``others``: their inputs for each such number."""
    good = POPULATION // 2 - 1
    each = []
    for u in (-1, 1):
        parts = []
        for h, inputs in enumerate(others):
            chance = comb(good, h) * comb(POPULATION - 1 - good, CLIENTS - 1 - h) / comb(POPULATION - 1, CLIENTS - 1)
            parts.append(chance * summed(Rounding(levels=2, margin=MARGIN), [u, *inputs]))
        one = np.concatenate(parts)
        each.append(one if releases == 1 else np.outer(one, one).ravel())
    return each


@pytest.mark.parametrize("releases", [1, 2])
@pytest.mark.parametrize("few", [0, 1000])
def test_epsilon_is_that_of_all_numbers_of_honest_clients(check, monkeypatch, releases, few):
    """Exactly: who is told how many are honest. By Gaussians alone, too, which are further off for so few clients."""
    monkeypatch.setattr(bound, "FEW", few)
    mean = PrivateMean(
        dim=1,
        clients=CLIENTS,
        mechanism=Rounding(levels=2, margin=MARGIN),
        delta=DELTA,
        rotate=False,
        l2_clip=1.0,
        rounds=releases,
        honest=0.5,
        population=POPULATION,
    )
    found = check(written(range(releases), about(mean)))
    every = list(product(*([(-1,) * k + (1,) * (h - k) for k in range(h + 1)] for h in range(CLIENTS))))
    truth = [lucky(others, releases) for others in every]
    assert max(leaked(p, q, found.epsilon) for p, q in truth) <= DELTA
    if few:
        assert max(leaked(p, q, 0.98 * found.epsilon) for p, q in truth) > DELTA
    assert max(leaked(p, q, found.lower) for p, q in truth) >= DELTA


# -- statements that are not true -----------------------------------------------------------------

CHARGED = PrivateMean(
    dim=2000,
    clients=40,
    mechanism=Rounding(clip=0.1, levels=2, margin=9.0),
    delta=1e-6,
    l2_clip=None,
    rotate=False,
    rounds=4,
    honest=20,
)


@pytest.mark.parametrize(
    "wrong", [{"dim": 1500}, {"delta": 1e-4}, {"honest": 28}, {"honest": 0.7, "population": 4000}, {"rounds": 3}]
)
def test_an_epsilon_of_something_else_is_not_confirmed(tmp_path, wrong):
    """Written by an accountant who took a wrong dimension, δ, number of honest clients or of rounds."""
    (tmp_path / "ledger.jsonl").write_bytes(written(range(4), about(CHARGED)))
    for mean, status in ((CHARGED, {"verified"}), (CHARGED.with_(**wrong), {"wrong", "cannot verify"})):
        stated = mean.spent(dict.fromkeys(range(mean.rounds), 1)).epsilon
        (tmp_path / "summary.json").write_text(json.dumps({"epsilon": stated}))
        assert verify(tmp_path).status in status
