"""Rényi divergences under a budget, of laws with kinks inside the clip: above all pairs of vectors, and near them."""

from itertools import product

import numpy as np
import pytest

from rqm import RQM, Rounding
from rqm.privacy.accountant import spent
from rqm.privacy.attained import attained_epsilon
from rqm.privacy.budget import budget_rdp
from rqm.privacy.event import Event
from rqm.privacy.setting import Setting

SMALL = [RQM(levels=6, margin=0.5, keep=0.4), RQM(levels=8, margin=1.0, keep=(0.3, 0.5, 0.6, 0.6, 0.4, 0.2))]


def divergence(p, q, alpha):
    """D_α of two laws."""
    return np.log((p**alpha * q ** (1 - alpha)).sum()) / (alpha - 1)


@pytest.mark.parametrize("mech", SMALL)
@pytest.mark.parametrize("alpha", [1.3, 2.0])
def test_no_pair_of_inputs_tells_more(mech, alpha):
    """All pairs on a fine grid, near zero too; the other three anywhere at some knots."""
    rate = budget_rdp(mech, [alpha], honest=4, squared=1.0, law="paper")[0]
    grid = np.concatenate([np.linspace(-1, 1, 41), [-0.01, 0.01, -1e-3, 1e-3]])
    laws, knots = mech.pmf(grid), mech.pmf(mech.knots)
    tightest = 0.0
    for choice in product(range(0, len(knots), 2), repeat=3):
        base = np.ones(1)
        for knot in choice:
            base = np.convolve(base, knots[knot])
        sums = [np.convolve(law, base) for law in laws]
        for (x, p), (y, q) in product(zip(grid, sums, strict=True), repeat=2):
            if x != y:
                tightest = max(tightest, divergence(p, q, alpha) / (x * x + y * y) / rate)
    assert 0.2 < tightest <= 1  # of so few others blocks know little


def test_a_law_with_less_noise_tells_more():
    mech, other = RQM(levels=6, margin=0.5, keep=0.4), RQM(levels=6, margin=0.5, keep=0.5)
    rates = [budget_rdp(one, [1.5], honest=6, squared=1.0, law="paper")[0] for one in (mech, other)]
    assert rates[1] > 1.05 * rates[0]


def test_where_nothing_is_known_it_is_infinite():
    """An order above two; a knot at zero, around which two cells meet; one client; a law that shows its input."""
    assert np.isinf(budget_rdp(RQM(), [3.0], honest=5, squared=1.0, law="paper")).all()
    nearly = RQM(levels=11, margin=0.4999999999999998)  # whose middle level is at 2·10⁻¹⁶
    for mech, honest in ((RQM(levels=7, margin=0.5), 5), (nearly, 5), (RQM(), 1), (Rounding(levels=6, margin=0.5), 5)):
        assert np.isinf(budget_rdp(mech, [2.0], honest=honest, squared=1.0, law="paper")).all()


@pytest.mark.slow
@pytest.mark.parametrize(("margin", "keep"), [(1.0, 0.42), (2.0, 0.57), (0.66, 0.33)])
def test_a_thousand_coordinates_of_forty_clients_are_within_a_tenth_of_attained(margin, keep):
    mech = RQM(margin=margin, keep=keep)
    found = spent(Event(mech, 1024, 8.0), Setting(clients=40, rounds=1, participations=1, delta=1e-5)).epsilon
    reached = attained_epsilon(mech, 40, 1024, 8.0, 1e-5)
    assert reached <= found <= 1.1 * reached
