"""The alias table and the placement of inputs, in integers."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rqm import PBM, RQM, SeededRandom, StochasticRounding, renyi
from rqm.kernels.integer_sampler import ALIAS_BITS, POSITION_BITS, TABLE_BITS, alias_table, grid_sampler


def units_of(entries, columns):
    """How many of the 2**40 draws give each outcome, counted from the entries."""
    capacity = 1 << (TABLE_BITS - columns)
    units = [0] * (1 << columns)
    for column, entry in enumerate(entries.tolist()):
        threshold, alias = entry >> ALIAS_BITS, entry % 2**ALIAS_BITS
        assert 0 <= threshold <= capacity
        units[column] += threshold
        units[alias] += capacity - threshold
    return units


@given(levels=st.integers(2, 40), keep=st.floats(1e-6, 1 - 1e-6), margin=st.floats(0.01, 50))
def test_entries_draw_from_the_integer_table_exactly(levels, keep, margin):
    mech = RQM(levels=levels, keep=keep, margin=margin)
    sampler = mech.sampler
    width = 1 << sampler.column_bits
    for j, row in enumerate(mech.table.tolist()):
        units = units_of(sampler.entries[j * width : (j + 1) * width], sampler.column_bits)
        assert units == row + [0] * (width - levels)


@given(weights=st.lists(st.integers(0, 2**30), min_size=1, max_size=70).filter(any))
def test_entries_draw_from_any_row_exactly(weights):
    units = [w * (2**TABLE_BITS // sum(weights)) for w in weights]
    units[weights.index(max(weights))] += 2**TABLE_BITS - sum(units)
    entries, columns = alias_table(np.array([units]))
    assert units_of(entries, columns) == units + [0] * ((1 << columns) - len(units))


@pytest.mark.parametrize("levels", [256, 1000])
def test_entries_of_large_tables(levels):
    mech = RQM(levels=levels, keep=0.05)
    sampler = mech.sampler
    width = 1 << sampler.column_bits
    for j in (0, 1, levels // 2, levels - 1):
        units = units_of(sampler.entries[j * width : (j + 1) * width], sampler.column_bits)
        assert units[:levels] == mech.table[j].tolist()


@given(
    x=st.floats(-1, 1),
    clip=st.floats(1e-30, 1e30),
    margin=st.floats(0.01, 100),
    levels=st.sampled_from([2, 3, 16, 255, 65536]),
)
@example(x=1.0, clip=1.0, margin=2.0, levels=2)
def test_a_position_is_the_nearest_integer_or_next_to_it(x, clip, margin, levels):
    mech = StochasticRounding(clip=clip, margin=margin, levels=levels)
    exact = Fraction(levels - 1, 2) * (1 + Fraction(x * clip) / (Fraction(clip) * mech.output_range)) * 2**POSITION_BITS
    position = int(mech.position(x * clip))
    clamped = position in (mech.sampler.low, mech.sampler.high)  # inwards, by less than one
    assert abs(position - exact) <= (1 if clamped else Fraction(1, 2)) + Fraction(1, 2**8)


def test_a_recipe_says_how_many_words_and_bytes_it_takes():
    assert RQM().sampler.words_per_coordinate == 1
    assert [PBM(levels=levels).sampler.words_per_coordinate for levels in (2, 9, 10, 16)] == [3, 3, 6, 6]
    assert RQM(levels=256).sampler.dtype is np.uint8
    assert RQM(levels=257).sampler.dtype is np.uint16
    assert len(StochasticRounding(levels=65536).sampler.entries) == 1


@pytest.mark.parametrize("margin", [1e-12, 1e-9, 1e-8, 1e-6])
def test_a_margin_however_small_keeps_inputs_off_the_outer_levels(margin):
    mech = RQM(margin=margin)
    assert mech.sampler.low >= 1
    assert min(mech.sampled_pmf(-1.0)) > 0
    sampled, paper = (renyi(mech, np.inf, 1, distribution=name).upper for name in ("sampled", "paper"))
    assert sampled <= paper * (1 + 1e-9)


def test_a_margin_that_leaves_no_positions_for_the_clip_is_refused():
    assert RQM(margin=1e5).encode([0.0], SeededRandom(1)).shape == (1,)
    with pytest.raises(ValueError, match="clips from 0: must be at most 245760"):
        RQM(margin=1e9).encode([0.0], SeededRandom(1))
    with pytest.raises(ValueError, match=r"clip = 1e\+300"):
        RQM(clip=1e300)


def test_tables_beyond_sixteen_bits_are_refused():
    with pytest.raises(ValueError, match="modulus"):
        grid_sampler(1.0, Fraction(2), 16, np.array([[2**TABLE_BITS]]), modulus=65537)
