"""Laws with kinks inside the clip: what is certified at (ε, δ) is above all that can be enumerated, and near it."""

from itertools import combinations_with_replacement, product

import numpy as np
import pytest

from rqm import RQM
from rqm.mechanisms.response import RandomizedResponse
from rqm.mechanisms.rounding import Rounding
from rqm.privacy.accountant import spent
from rqm.privacy.attained import attained_epsilon
from rqm.privacy.event import Event
from rqm.privacy.figures import PAPER
from rqm.privacy.gaussian import gaussian_delta, vector_gdp
from rqm.privacy.inner import attained_deltas, coordinate_delta, coordinate_epsilon, inner_gdp
from rqm.privacy.setting import Setting

SMALL = [
    RQM(levels=6, margin=0.5, keep=0.4),
    RQM(levels=5, margin=0.3, keep=(0.3, 0.6, 0.4)),
    RandomizedResponse(levels=4),
]


def bases(mech, others):
    """Laws of the others' sum for every choice of knots."""
    laws = mech.pmf(mech.knots)
    for choice in combinations_with_replacement(range(len(laws)), others):
        total = np.ones(1)
        for knot in choice:
            total = np.convolve(total, laws[knot])
        yield total


def true_delta(mech, epsilon, clients):
    """The largest δ over all inputs of everybody, every choice tried; inputs between knots cannot be worse."""
    own = mech.pmf(mech.knots)
    sums = [np.array([np.convolve(law, base) for law in own]) for base in bases(mech, clients - 1)]
    return max(np.maximum(laws[:, None] - np.exp(epsilon) * laws[None], 0).sum(axis=2).max() for laws in sums)


@pytest.mark.parametrize("mech", SMALL)
@pytest.mark.parametrize(("clients", "epsilon"), [(1, 0.5), (2, 0.0), (4, 0.3), (5, 1.5)])
def test_a_coordinates_delta_is_above_the_truth_and_near_it(mech, clients, epsilon):
    truth, found = true_delta(mech, epsilon, clients), coordinate_delta(mech, epsilon, clients, "paper")
    assert truth <= found <= 1.15 * truth + 1e-12
    assert attained_deltas(mech, np.array([epsilon]), clients, "paper")[0] <= truth * (1 + 1e-9)


def test_a_law_with_less_noise_is_above_that_bound():
    mech, other = RQM(levels=6, margin=0.5, keep=0.4), RQM(levels=6, margin=0.5, keep=0.43)
    assert true_delta(other, 1.0, 4) > coordinate_delta(mech, 1.0, 4, "paper")


def paper():
    """The nine settings of the paper, two of them quick."""
    for pairs in PAPER.values():
        for margin, keep in pairs[1]:
            quick = (margin, keep) in ((2.0, 0.57), (0.429, 0.49))
            yield pytest.param(margin, keep, marks=[] if quick else [pytest.mark.slow])


@pytest.mark.parametrize(("margin", "keep"), list(paper()))
def test_the_papers_settings_are_stated_within_two_per_cent(margin, keep):
    mech = RQM(margin=margin, keep=keep)
    found = spent(Event(mech, 1, 1.0), Setting(clients=40, rounds=1, participations=1, delta=1e-5))
    assert found.accountant == "pld"
    at_least = coordinate_epsilon(mech, 1e-5, 40, "sampled", quick=True)
    assert at_least * (1 - 2e-4) <= found.epsilon <= 1.02 * at_least


def test_where_hardly_anything_is_told_there_is_an_epsilon_still():
    """δ between the total variation that is attained and the one that is certified."""
    mech = RQM(levels=7, margin=1.2, keep=0.25)
    assert 0 < coordinate_epsilon(mech, 0.2032, 9) < 0.1


def test_what_exposes_an_input_has_no_epsilon():
    mech = Rounding(levels=5, margin=0.5)
    assert coordinate_epsilon(mech, 1e-5, 3) == np.inf
    assert vector_gdp(mech, honest=3, dim=4, l2_clip=1.0, lost=1e-9) == np.inf


def hockey_stick(first, second, epsilon):
    """Of two vectors of laws, a row each: of their products."""
    p, q = (np.multiply.outer(law[0], law[1]).ravel() for law in (first, second))
    return np.maximum(p - np.exp(epsilon) * q, 0).sum()


@pytest.mark.parametrize("mech", [RQM(levels=6, margin=2.0, keep=0.3), RQM(levels=7, margin=1.2, keep=0.25)])
def test_a_vectors_bound_is_above_every_pair_of_vectors(mech):
    """Two coordinates, three clients; all vectors on a grid within the budget, the others' inputs at some knots."""
    l2_clip, lost = 1.2, 1e-4
    mu = vector_gdp(mech, honest=3, dim=2, l2_clip=l2_clip, lost=lost)
    assert mu < np.inf
    grid = np.concatenate([mech.knots, [0.3]])
    laws = dict(zip(grid.tolist(), mech.pmf(grid), strict=True))
    vectors = [x for x in product(grid.tolist(), repeat=2) if np.hypot(*x) <= l2_clip]
    others = [np.convolve(mech.pmf(x), mech.pmf(x)) for x in mech.knots[[0, len(mech.knots) // 2, -1]]]
    tightest = 0.0
    for epsilon in (0.2, 1.0, 3.0):
        limit = gaussian_delta(mu, epsilon) + lost
        for x, y in product(vectors, repeat=2):
            for one, two in product(others, repeat=2):
                pair = [[np.convolve(laws[z[0]], one), np.convolve(laws[z[1]], two)] for z in (x, y)]
                tightest = max(tightest, hockey_stick(*pair, epsilon) / limit)
    assert 0.2 < tightest <= 1


@pytest.mark.slow
@pytest.mark.parametrize(("margin", "keep"), [(1.0, 0.42), (2.0, 0.57), (0.66, 0.33)])
def test_a_thousand_coordinates_of_a_thousand_clients_are_within_a_tenth_of_attained(margin, keep):
    mech = RQM(margin=margin, keep=keep)
    found = spent(Event(mech, 1024, 8.0), Setting(clients=1000, rounds=1, participations=1, delta=1e-5)).epsilon
    reached = attained_epsilon(mech, 1000, 1024, 8.0, 1e-5)
    assert reached <= found <= 1.1 * reached


def test_a_quick_look_is_near():
    asked = {"honest": 12, "dim": 64, "squared": 16.0, "furthest": 4.0, "lost": 1e-8, "law": "paper"}
    mech = RQM(levels=6, margin=1.5, keep=0.4)
    assert inner_gdp(mech, **asked, quick=True) == pytest.approx(inner_gdp(mech, **asked), rel=0.4)
