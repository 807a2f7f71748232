"""Plain floats against blocks: the same divergences where floats reach, and no answer where they do not."""

import numpy as np
import pytest

from rqm import RQM
from rqm.privacy.cells import Cells, stack
from rqm.privacy.compiled import EMPTY, evaluate
from rqm.privacy.divergence import Sum, all_pairs
from rqm.privacy.flat import evaluate_flat

ORDERS = np.array([1.0, 1.0001, 1.5, 2.0, 2.5, 3.0, 8.0, 33.0, np.inf])


def random_laws(rng, laws, outcomes):
    return [Sum.of(np.log(rng.dirichlet(np.full(outcomes, 3.0)))) for _ in range(laws)]


def places_of(first, second):
    return np.array(
        [[i, j, len(a.exponent), len(b.exponent)] for i, a in enumerate(first) for j, b in enumerate(second)]
    )


def both(first, second, own, orders, log_tail=-np.inf):
    """The tables by blocks and by floats, of all pairs of one's own laws."""
    pairs = all_pairs(len(own))
    asked = np.broadcast_to(orders, (len(pairs), len(orders))).copy()
    least = EMPTY if log_tail == -np.inf else int(log_tail / np.log(2))
    places, tables = places_of(first, second), []
    for fill in (evaluate, evaluate_flat):
        table = np.full((len(places), len(pairs), len(orders)), -np.inf)
        fill(places, stack(first), stack(second), stack(own), (pairs, asked), least, table)
        tables.append(table)
    return tables


@pytest.mark.parametrize("outcomes", [2, 16, 17, 45])
@pytest.mark.parametrize("log_tail", [-np.inf, -60.0])
def test_floats_and_blocks_say_the_same(outcomes, log_tail):
    rng = np.random.default_rng(outcomes)
    first, second = ([one.times(n) for n, one in enumerate(random_laws(rng, 4, outcomes))] for _ in range(2))
    blocks, flat = both(first, second, random_laws(rng, 3, outcomes), ORDERS, log_tail)
    np.testing.assert_allclose(flat, blocks, rtol=1e-11, atol=1e-14)
    assert not np.allclose(flat, blocks * 1.000001, rtol=1e-11, atol=1e-14)


def test_an_order_that_is_not_asked_for_stays_as_it_was():
    own = random_laws(np.random.default_rng(0), 2, 5)
    _, flat = both([Sum.nothing()], [Sum.nothing()], own, np.array([2.0, np.nan]))
    assert np.isfinite(flat[..., 0]).all()
    assert (flat[..., 1] == -np.inf).all()


@pytest.mark.parametrize(
    ("log_law", "order"),
    [
        ([np.log(0.5), -np.inf, np.log(0.5)], 2.0),  # an outcome that cannot be
        ([0.0, -700.0, -1400.0], 2.0),  # tails below all floats
        ([0.0, *[-30.0] * 15, *[-1500.0] * 16], 2.0),  # and whole blocks of them
        ([0.0, -50.0, -100.0], 64.0),  # a power beyond all floats
    ],
)
def test_what_floats_do_not_reach_is_left_to_the_blocks(log_law, order):
    law = np.array(log_law)
    own, orders = [Sum.of(law), Sum.of(law[::-1].copy())], np.array([order])
    base = [Sum.nothing()]
    blocks, flat = both(base, base, own, orders)
    assert np.isnan(flat).all()
    cells = Cells(-np.inf)
    table = cells.table(places_of(base, base), (stack(base), stack(base)), own, all_pairs(2), np.full((2, 1), order))
    np.testing.assert_array_equal(table, np.moveaxis(blocks, 0, 2))
    assert not cells.flat  # and is not tried again


def far_apart(near):
    """So many outcomes of which each is a 32nd of the one before, and sixteen more from 2**-700 on."""
    return Sum.of(np.log(2) * np.array([*range(0, -5 * near, -5), *range(-700, -780, -5)]))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (far_apart(16), far_apart(17)),  # the last block of their sum is zero in floats, and no tail to be cut
        (Sum.of(np.log(2) * np.array([*np.linspace(0, -850, 41), -1190])), Sum.nothing()),  # the last outcome is
    ],
)
def test_a_tail_that_floats_lose_is_not_taken_for_the_end(first, second):
    own = random_laws(np.random.default_rng(1), 2, 5)
    blocks, flat = both([first], [second], own, np.array([2.0]), log_tail=-1500.0)
    assert np.isnan(flat).all()
    assert np.isfinite(blocks).all()


def test_a_table_is_the_same_whoever_fills_it():
    """RQM's own laws, many cells: several threads; the largest of all pairs is that of each."""
    own = [Sum.of(row) for row in RQM().knot_laws("paper")]
    first = [own[0].times(n, -80.0) for n in range(12)]
    second = [own[-1].times(n, -80.0) for n in range(12)]
    pairs, halves, places = all_pairs(len(own)), (stack(first), stack(second)), places_of(first, second)
    asked = np.full((len(pairs), 1), 2.0)
    each = Cells(-80.0).table(places, halves, own, pairs, asked)
    whole = Cells(-80.0).largest(places, halves, own, pairs, asked)
    np.testing.assert_array_equal(each.max(axis=0, keepdims=True), whole)
    slow = Cells(-80.0)
    slow.flat = False
    np.testing.assert_allclose(slow.table(places, halves, own, pairs, asked), each, rtol=1e-11)
