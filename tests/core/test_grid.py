"""Calibration arrives, or says what is possible: every mechanism, ten users to 10,000, one coordinate to a million."""

import re
from itertools import product

import pytest

from rqm import advise, calibrate
from rqm.registry import BUILT_IN

KINDS = [
    one.kind for one in BUILT_IN if one.adds_noise and one.kind != "table"
]  # of a table there is nothing to adjust
CLIENTS, DIMS, EPSILONS = (10, 100, 1000, 10_000), (1, 64, 1024, 2**16, 2**20), (0.5, 1, 3, 8, 10)
POSSIBLE = re.compile(r"(?:must be at least|possible is) ([\d.e+-]+)$")
SAMPLE = [(10, 64, 3), (100, 1024, 1), (1000, 2**20, 10), (10, 1, 8)]


def missed(kind, clients, dim, epsilon):
    """What is wrong with one cell, or None."""
    who = {"clients": clients, "population": max(10**6, clients), "rounds": 1, "delta": 1e-6, "dim": dim}
    try:
        reached = calibrate(kind, epsilon=epsilon, **who).epsilon
    except ValueError as error:
        named = POSSIBLE.search(str(error))
        return None if named and float(named[1]) > 0 else f"{kind} {who} {epsilon}: {error}"
    return None if 0.98 * epsilon <= reached <= epsilon else f"{kind} {who} {epsilon}: {reached}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_of_the_grid(kind):
    assert [what for cell in SAMPLE if (what := missed(kind, *cell))] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clients", CLIENTS)
def test_the_whole_grid(kind, clients):
    assert [what for cell in product(DIMS, EPSILONS) if (what := missed(kind, clients, *cell))] == []


@pytest.mark.slow
def test_what_is_named_as_possible_is():
    who = {"clients": 1000, "population": 10**6, "rounds": 1, "delta": 1e-6, "dim": 1}
    with pytest.raises(ValueError, match=r"cannot be adjusted so finely; possible is") as refused:
        calibrate("binomial", epsilon=10, **who)
    named = float(POSSIBLE.search(str(refused.value))[1])
    assert 0.98 * named <= calibrate("binomial", epsilon=named, **who).epsilon <= named


@pytest.mark.parametrize(
    ("clients", "dim", "epsilon"),
    [(10, 64, 3), (1000, 2**20, 10), pytest.param(100, 1024, 1, marks=pytest.mark.slow)],
)
def test_the_adviser_compares_at_equal_epsilon(clients, dim, epsilon):
    found = advise(clients=clients, population=10**6, dim=dim, epsilon=epsilon, delta=1e-6).candidates
    assert {"RQM, wide margin", "PBM", "1 bit"} <= {one.name for one in found}
    assert [one for one in found if not 0.99 * epsilon <= one.epsilon <= epsilon] == []
