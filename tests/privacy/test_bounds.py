"""What is stated against the project's own bounds for the same release: of every mechanism, all sizes, both neighbours.

The statement is ε by ``spent``, which asks for one bound after the other and stops where another cannot be better by
much. It is compared with the least of all three, each worked out here whether ``spent`` would have asked for it or not:
a bound alone may be far above (Rényi divergences of a long vector always are), the statement may not. The divergences
of a vector are compared with those of its coordinates, each on its own.
"""

from math import inf, isfinite

import numpy as np
import pytest

from rqm.mechanisms.registry import BUILT_IN
from rqm.privacy import accountant
from rqm.privacy.accountant import Spent, gaussian_noise, profile_of, spent
from rqm.privacy.calibrate import _alike, coordinate_clip, proposed
from rqm.privacy.event import Event
from rqm.privacy.setting import Setting
from rqm.privacy.vector import vector_rdp
from rqm.privacy.worst_case import renyi

KINDS = [one.kind for one in BUILT_IN if one.private and one.integers and one.kind != "table"]
CLIENTS, DIMS, EPSILONS = (10, 1000, 100_000), (1, 64, 1024, 2**16, 2**20), (0.5, 3, 10)
ORDERS = (2.0, 32.0, 256.0)


def releases(kind, clients, dim, epsilon, neighbours):
    """Each way in which a mechanism proposes itself, with the noise that a Gaussian needs for ε; and the setting."""
    setting = Setting(clients, 1, 1e-6, max(10**6, clients), neighbours=neighbours)
    clip = coordinate_clip(1.0, dim)
    variance = gaussian_noise(setting, epsilon) ** 2 / clients
    for first in proposed(kind, {}, epsilon, setting, dim=dim, l2_clip=1.0, clip=clip):
        mech = first.with_noise(first.least_noise + _alike(first, first.least_noise, variance))
        yield Event(mech, dim, 1.0), setting


def bounds(event, setting):
    """ε by every bound that there is, by name."""
    event, setting = accountant._told(event, setting)
    asked = (event, setting, profile_of(setting, None), False)
    return {
        "gaussian": accountant._by_gaussian(*asked),
        "pld": accountant._by_losses(*asked),
        "rdp": accountant._by_divergences(*asked).epsilon,
    }


def wrong(kind, clients, dim, epsilon, neighbours):
    """What is wrong with the statements of one cell."""
    found = []
    for event, setting in releases(kind, clients, dim, epsilon, neighbours):
        stated, least = spent(event, setting).epsilon, bounds(event, setting)
        if not stated <= 1.1 * min(least.values()) or not isfinite(stated):
            found.append(f"{event.mechanism!r}, {clients} clients, {dim} coordinates, {neighbours}: {stated}, {least}")
    return found


def loose(kind, clients, dim, epsilon):
    """Orders at which a vector's divergence is infinite, or more than 1.1 times that of its coordinates one by one."""
    for event, setting in releases(kind, clients, dim, epsilon, "replace"):
        mech = event.mechanism.channel
        vector = vector_rdp(mech, ORDERS, honest=setting.clients, dim=dim, l2_clip=1.0, law="sampled")
        each = dim * np.array([bound.upper for bound in renyi(mech, ORDERS, clients, law="sampled")])
        if not (vector <= 1.1 * each).all() or not np.isfinite(vector).all():
            yield f"{mech!r}, {clients} clients, {dim} coordinates: {vector}, {each}"


SAMPLE = [(10, 64, 3, "replace"), (40, 2**20, 10, "zero-out"), (10, 1, 0.5, "zero-out")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_of_statements_is_near_the_best_bound(kind):
    assert [what for cell in SAMPLE for what in wrong(kind, *cell)] == []


@pytest.mark.slow
@pytest.mark.parametrize("neighbours", ["replace", "zero-out"])
@pytest.mark.parametrize("clients", CLIENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_statement_is_near_the_best_bound(kind, clients, neighbours):
    cells = [(dim, epsilon) for dim in DIMS for epsilon in EPSILONS]
    assert [what for cell in cells for what in wrong(kind, clients, *cell, neighbours)] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_of_vectors_leaks_no_more_than_its_coordinates(kind):
    assert [what for cell in [(10, 64, 3), (40, 1024, 3)] for what in loose(kind, *cell)] == []


@pytest.mark.slow
@pytest.mark.parametrize("clients", CLIENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_vector_leaks_more_than_its_coordinates(kind, clients):
    assert [what for dim in DIMS for what in loose(kind, clients, dim, 3)] == []


def test_a_bound_left_out_is_noticed(monkeypatch):
    """Power: by the Gaussian certificate alone the statement of one bit and one coordinate is too large."""
    monkeypatch.setattr(accountant, "_by_losses", lambda *_: inf)
    monkeypatch.setattr(accountant, "_by_divergences", lambda *_: Spent(inf, "rdp", None))
    event, setting = next(releases("randomized-response", 10, 1, 3, "replace"))
    stated = spent(event, setting).epsilon
    monkeypatch.undo()
    assert stated > 1.1 * min(bounds(event, setting).values())
