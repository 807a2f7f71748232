"""RQM's pmf in fractions, by its definition."""

from fractions import Fraction

from rqm import RQM


def exact_rqm(mech: RQM, x: Fraction) -> list[Fraction]:
    """Algorithm 2: over all pairs of the nearest kept levels below and above x."""
    position = Fraction(mech.levels - 1, 2) * (1 + x / (Fraction(mech.clip) * mech.output_range))
    return exact_rqm_at(mech, position)


def exact_rqm_at(mech: RQM, position: Fraction) -> list[Fraction]:
    """The pmf at a position from 0 to levels − 1."""
    keep = [Fraction(q) for q in mech.keeps]
    pmf = [Fraction(0)] * mech.levels
    level = min(int(position), mech.levels - 2)
    low_dropped = Fraction(1)
    for low in range(level, -1, -1):
        high_dropped = Fraction(1)
        for high in range(level + 1, mech.levels):
            chance = low_dropped * keep[low] * high_dropped * keep[high]
            up = (position - low) / (high - low)
            pmf[low] += chance * (1 - up)
            pmf[high] += chance * up
            high_dropped *= 1 - keep[high]
        low_dropped *= 1 - keep[low]
    return pmf
