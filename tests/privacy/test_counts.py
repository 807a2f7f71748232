"""Looking closely only where it matters finds the same maximum as looking everywhere."""

import numpy as np
import pytest

from rqm import PBM, RQM, Rounding, renyi
from rqm.mechanisms.additive import Binomial, DiscreteGaussian, Skellam
from rqm.mechanisms.response import RandomizedResponse
from rqm.privacy import certificate, counts
from rqm.privacy.certificate import needed_tail
from rqm.privacy.counts import Shapes, Spread, thinning, worst_spread
from rqm.privacy.divergence import Sum, all_pairs, pair_divergences
from rqm.privacy.measures import Renyi
from rqm.privacy.shapes import partition
from rqm.privacy.vector import vector_rdp


def brute(groups, count, laws, pairs, alpha):
    """The largest mean over all spreads of so many clients over three groups, every count computed."""
    value = {}
    for a in range(count + 1):
        for b in range(count + 1 - a):
            for c in range(count + 1 - a - b):
                base = groups[0].shape.times(a) + groups[1].shape.times(b) + groups[2].shape.times(c)
                value[a, b, c] = np.exp((alpha - 1) * pair_divergences(base, laws, pairs, np.array([alpha])).max())
    thin = [thinning(count, group.weight, 1) for group in groups]
    best = 0.0
    for i in range(count + 1):
        for j in range(count + 1 - i):
            k = count - i - j
            best = max(
                best,
                sum(thin[0][i, a] * thin[1][j, b] * thin[2][k, c] * value.get((a, b, c), 0) for a, b, c in value),
            )
    return np.log(best) / (alpha - 1)


@pytest.mark.parametrize("alpha", [2.0, 8.0])
@pytest.mark.parametrize("lattice", [2, 100])
def test_the_same_maximum_as_everywhere(alpha, lattice, monkeypatch):
    monkeypatch.setattr(counts, "LATTICE", lattice)
    monkeypatch.setattr(counts, "LITTLE", 0.5)  # where nothing adds so much, less must do
    logs = RQM(levels=8, margin=0.5, keep=0.4).knot_laws()
    laws, pairs, count = [Sum.of(row) for row in logs], all_pairs(len(logs))[:6], 5
    groups = partition(logs, 3)
    alone = pair_divergences(Sum.nothing(), laws, pairs, np.array([alpha])).max()
    found = worst_spread(
        [
            lambda: Spread(
                Shapes(groups, 1, count, -np.inf),
                groups,
                0,
                count,
                count,
                block=1,
                measure=Renyi(laws, pairs, alpha, alone),
                attained=0.0,
            )
        ],
        attained=0.0,
    )
    assert found == pytest.approx(brute(groups, count, laws, pairs, alpha), rel=1e-9)


def test_thinning_is_the_binomial_law():
    for steps, weight, block in ((9, 0.87, 1), (6, 0.4, 5)):
        matrix = thinning(steps, weight, block)
        np.testing.assert_allclose(matrix.sum(axis=1), 1, rtol=1e-12)
        rng = np.random.default_rng(0)
        drawn = rng.binomial(block * steps, weight, 200_000) // block
        seen = np.bincount(drawn, minlength=steps + 1) / 200_000
        assert abs(seen - matrix[steps]).max() < 5e-3


def test_almost_certain_shapes_are_no_error():
    """Powers of what is left over fall below all normal floats, which Python calls an overflow."""
    matrix = thinning(39, 0.9999999997260477, 1)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, rtol=1e-12)
    assert (np.diag(matrix) > 1 - 1e-7).all()


def test_lost_tails_are_paid_for(monkeypatch):
    """With tails cut far too early the bound may get loose, but never falls below the truth."""
    mech = Rounding(levels=2, margin=1.0)
    truth = renyi(mech, [2, 16], 3000)
    for nothing in (20.0, 5.0, 1.0):
        monkeypatch.setattr(certificate, "NEGLIGIBLE", nothing)
        laws = mech.knot_laws()
        found = certificate.certify(laws, laws, 2999, [2.0, 16.0], [0.0, 0.0])
        assert all(found >= [one.lower * (1 - 1e-9) for one in truth])
    assert needed_tail(2.0, 1.0) == -2.0


AFFINE = [Rounding(levels=2, margin=1.0), Rounding(levels=2, margin=20.0), RQM(margin=20.0), PBM()]


OTHERS = [
    RandomizedResponse(levels=2, epsilon=1.0),
    RandomizedResponse(levels=2, epsilon=4.0),
    *(kind(scale=1.0, steps=15, bits=12) for kind in (Skellam, DiscreteGaussian, Binomial)),
]
MANY = [pytest.param(clients, marks=pytest.mark.slow) for clients in (10, 1000, 10_000, 100_000)]


@pytest.mark.parametrize("mech", [*AFFINE, *(pytest.param(one, marks=pytest.mark.slow) for one in OTHERS)], ids=repr)
@pytest.mark.parametrize("clients", [40, 1500, *MANY])
def test_bounds_of_one_release_agree(mech, clients):
    orders, law = [2.0, 32.0, 256.0], "paper" if mech.additive is None else "sampled"
    one = np.array([bound.upper for bound in renyi(mech, orders, clients, law=law)])
    vector = vector_rdp(mech, orders, honest=clients, dim=1, l2_clip=mech.clip, law=law)
    assert np.isfinite(one).all()
    assert np.isfinite(vector).all()
    assert (vector <= 1.1 * one).all()
    assert (one <= 1.1 * vector).all()


@pytest.mark.parametrize("mech", [Rounding(levels=2, margin=1.0), PBM(levels=4)], ids=repr)
def test_more_clients_never_leak_more_far_out(mech):
    orders = [2.0, 256.0]
    before = np.full(2, np.inf)
    for clients in (1, 100, 3684, 3700, 4097, 5000, 20_000):
        now = np.array([bound.upper for bound in renyi(mech, orders, clients)])
        assert (now <= before * (1 + 1e-9)).all()
        before = now
