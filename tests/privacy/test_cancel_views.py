"""The certificate of noise that cancels, against whole runs that were enumerated."""

import numpy as np
import pytest

from tests.privacy.test_views import case, splits, summed
from tests.privacy.views import Scheme, always, seen, smallest_mu, taken_back

cancel = pytest.importorskip("rqm.privacy.cancel")


def compared(scheme, turns, low, high, separation):
    """Exact μ over the stated one."""
    noise = summed([scheme.noise[place] for place in sorted(scheme.noise)], scheme.honest[0])
    ends, others = np.array([[1 - low, low], [1 - high, high]]), len(scheme.others[0]) - 1
    stated = cancel.view(ends, noise, others, separation)
    exact = smallest_mu(*seen(scheme, [dict.fromkeys(turns, always(v)) for v in (low, high)]), 1e-9)
    return exact / (smallest_mu(stated[0], stated[1], 1e-9) * np.sqrt(len(turns)))


def test_others_at_either_end_are_looked_at():
    """A split and its mirror image are two directions of the same shift; a server has them as it likes."""
    low, high, rng, nearest = 0.084, 0.916, np.random.default_rng(0), 0.0
    noise = taken_back([0.003, 0.169, 0.656, 0.169, 0.003])
    for _ in range(60):
        table = rng.integers(0, 2, (3, 9))
        scheme = Scheme(
            noise,
            [1, 1, 1, 0],
            [splits(1, low, high)] * 3 + [[np.ones(1)]],
            choose=lambda turn, past, table=table: table[turn % 3][past.sum(axis=1) % 9] * (turn < 3),
        )
        nearest = max(nearest, compared(scheme, [0], low, high, 3))
    assert 0.8 < nearest <= 1 + 1e-6


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_no_run_tells_more_than_is_stated(times):
    rng, nearest = np.random.default_rng(11 + times), 0.0
    for _ in range(150):
        scheme, turns, _, _ = case(rng, 1, times)
        others, shown = len(scheme.others[0]) - 1, scheme.honest[-1] == 0
        low, high = (float(1 - scheme.others[0][way][0] ** (1 / others)) for way in (0, others))
        left = len(scheme.honest) - shown - int(turns[-1])  # rounds from the last participation on
        gap = int(np.diff(turns).min()) if times > 1 else left
        nearest = max(nearest, compared(scheme, turns, low, high, min(gap, left) if shown else gap))
        assert nearest <= 1 + 1e-6
    assert nearest > 0.9
