"""The samplers once more, in plain NumPy: from given words, as the proofs describe them."""

from fractions import Fraction

import numpy as np

from rqm.kernels.integer_sampler import ALIAS_BITS, POSITION_BITS, TABLE_BITS, grid_sampler


def outcomes(sampler, position, rounding, table_bits):
    """The outcome for each position, 24 bits that round and 40 bits that draw."""
    position, rounding, table_bits = (np.asarray(values).astype(object) for values in (position, rounding, table_bits))
    out = np.empty(position.shape, dtype=np.int64)
    low_bits = TABLE_BITS - sampler.column_bits
    for index in np.ndindex(position.shape):
        level, fraction = divmod(int(position[index]), 2**POSITION_BITS)
        level += int(rounding[index]) >= 2**POSITION_BITS - fraction
        column = int(table_bits[index]) >> low_bits
        entry = int(sampler.entries[(level << sampler.column_bits | column) if sampler.has_row_per_level else column])
        is_column = int(table_bits[index]) % 2**low_bits < entry >> ALIAS_BITS
        drawn = column if is_column else entry % 2**ALIAS_BITS
        out[index] = drawn if sampler.has_row_per_level else (level + drawn) % sampler.modulus
    return out


def additive(levels=9, modulus=64, reach=Fraction(3, 2), clip=1.0, columns=None):
    """A sampler with noise: a made-up law on 0..modulus−1, added to the rounded level modulo ``modulus``."""
    weights = np.random.default_rng(modulus).integers(1, 1000, size=columns or modulus)
    units = weights * (2**TABLE_BITS // weights.sum())
    units[0] += 2**TABLE_BITS - units.sum()
    return grid_sampler(clip, reach, levels, units[None], modulus=modulus)


def additive_law(sampler, position):
    """The law of an additive sampler at one position."""
    low_bits = TABLE_BITS - sampler.column_bits
    noise = np.zeros(max(sampler.modulus, 1 << sampler.column_bits))
    for column, entry in enumerate(sampler.entries.tolist()):
        noise[column] += entry >> ALIAS_BITS
        noise[entry % 2**ALIAS_BITS] += 2**low_bits - (entry >> ALIAS_BITS)
    noise = noise[: sampler.modulus] / 2**TABLE_BITS
    level, fraction = divmod(position, 2**POSITION_BITS)
    fraction /= 2**POSITION_BITS
    return (1 - fraction) * np.roll(noise, level) + fraction * np.roll(noise, level + 1)
