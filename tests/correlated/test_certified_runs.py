"""The certificate of correlated noise, against whole runs that are enumerated."""

from dataclasses import dataclass
from math import sqrt

import numpy as np
import pytest

from rqm.correlated.certificate import Coordinate, coordinate_gdp
from tests.correlated.enumeration import Scheme, always, joint_pmf, smallest_mu, sum_pmf, transient_only
from tests.correlated.test_enumeration import random_case, splits

FAILURE = 1e-9


@dataclass(frozen=True, eq=False)
class GivenNoise:
    """Transient noise by the pmf of its sum, in place of a discrete Gaussian."""

    pmf: np.ndarray

    def summed(self, honest):
        return self.pmf, 0.0


def exact_over_certified(scheme, rounds, low, high, separation):
    """The exact μ between the ends of the clip over the certified one."""
    noise = GivenNoise(sum_pmf([scheme.noise[key] for key in sorted(scheme.noise)], scheme.honest[0]))
    ends, honest = ((1 - low, low), (1 - high, high)), len(scheme.others[0])
    coordinate = Coordinate(ends, noise, None, 1, honest, separation, "replace-one", FAILURE / 2 / len(rounds))
    exact = smallest_mu(*joint_pmf(scheme, [dict.fromkeys(rounds, always(v)) for v in (low, high)]), FAILURE)
    return exact / sqrt(len(rounds) * coordinate_gdp(coordinate).largest)


def test_others_at_either_end_are_covered():
    """A split and its mirror image are two directions of the same shift; a server chooses either."""
    low, high, rng, largest = 0.084, 0.916, np.random.default_rng(0), 0.0
    noise = transient_only([0.003, 0.169, 0.656, 0.169, 0.003])
    for _ in range(60):
        table = rng.integers(0, 2, (3, 9))
        scheme = Scheme(
            noise,
            [1, 1, 1, 0],
            [splits(1, low, high)] * 3 + [[np.ones(1)]],
            choose=lambda t, past, table=table: table[t % 3][past.sum(axis=1) % 9] * (t < 3),
        )
        largest = max(largest, exact_over_certified(scheme, [0], low, high, 3))
    assert 0.8 < largest <= 1 + 1e-6


@pytest.mark.parametrize(
    ("participations", "count"), [(1, 40), *(pytest.param(k, 150, marks=pytest.mark.slow) for k in (1, 2))]
)
def test_no_run_reveals_more_than_is_certified(participations, count):
    rng, largest = np.random.default_rng(11 + participations), 0.0
    for _ in range(count):
        scheme, rounds, _, _ = random_case(rng, 1, participations)
        others, is_revealed = len(scheme.others[0]) - 1, scheme.honest[-1] == 0
        low, high = (float(1 - scheme.others[0][split][0] ** (1 / others)) for split in (0, others))
        remaining = len(scheme.honest) - is_revealed - int(rounds[-1])  # rounds from the last participation on
        gap = int(np.diff(rounds).min()) if participations > 1 else remaining
        separation = min(gap, remaining) if is_revealed else gap
        largest = max(largest, exact_over_certified(scheme, rounds, low, high, separation))
        assert largest <= 1 + 1e-6
    assert largest > 0.9
