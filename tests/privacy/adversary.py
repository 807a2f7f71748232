"""An adversary of every statement: random mechanisms, settings and inputs, against enumerations of small releases.

    python -m tests.privacy.adversary 5000 [seed]

draws so many statements of all kinds (``statements.py``). For each, ``attacks.py`` finds what is attained: over random
and extreme inputs of everybody, each release chosen after seeing the ones before. What is stated must not be below. The
table says how near they are, and so which mistake of the library would be seen: one of 2 %, where something comes
within 2 %.
"""

import sys
from collections.abc import Callable
from math import isfinite

import numpy as np

from tests.privacy.statements import KINDS, Statement

PLANTED = 0.98
"""The mistake that is planted: everything stated times this."""

Kinds = dict[str, tuple[Callable[[np.random.Generator], Statement], float]]


def attack(count, seed=0, kinds: Kinds = KINDS):
    """So many statements of all kinds, by kind; each has a seed of its own."""
    found = {}
    for number, (kind, (draw, share)) in enumerate(kinds.items()):
        seeds = ([seed, number, turn] for turn in range(max(1, round(share * count))))
        found[kind] = [draw(np.random.default_rng(one)) for one in seeds]
    return found


def table(found):
    """What was found, in words."""
    lines = [f"{'kind':24}{'statements':>11}{'broken':>8}{'closest':>10}{'within 2 %':>12}{'planted 2 %':>13}"]
    for kind, statements in [*found.items(), ("all", [one for some in found.values() for one in some])]:
        ratios = [one.attained / one.stated for one in statements if isfinite(one.stated) and one.stated > 0]
        broken, planted = (sum(one.broken(mistake) for one in statements) for mistake in (1.0, PLANTED))
        near = sum(ratio > PLANTED for ratio in ratios) / len(statements)
        lines.append(f"{kind:24}{len(statements):11,}{broken:8}{max(ratios, default=0):10.6f}{near:12.1%}{planted:13,}")
    return "\n".join(lines)


def main():
    """The table of so many statements, and what is broken."""
    count, seed = [*map(int, sys.argv[1:]), *(5000, 0)[len(sys.argv) - 1 :]]
    found = attack(count, seed)
    print(table(found))
    for one in (one for some in found.values() for one in some if one.broken()):
        print(f"broken: {one.stated!r} < {one.attained!r}: {one.what}")


if __name__ == "__main__":
    main()
