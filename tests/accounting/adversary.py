"""An adversary of every statement: random mechanisms, settings and inputs, against enumerations of small releases.

    python -m tests.accounting.adversary 5000 [seed] [assembled]

draws statements of all kinds (`statements.py`, and with the last argument `assembled.py`). For each,
`attacks.py` computes what is attained over random and extreme inputs, each release chosen after seeing the
ones before. What is stated must not be below. The table says how near they are, and so which mistake of the library
would be noticed: the power of a kind is the smallest fraction by which all of its statements must shrink so that a
fifth of them are broken.
"""

import sys
from collections.abc import Callable
from math import isfinite, nan

import numpy as np

from tests.accounting.statements import KINDS, Statement

PLANTED = 0.02
"""The mistake that is planted: everything stated is smaller by this fraction."""
NOTICED = 0.2
"""The fraction of statements that a mistake must break to be noticed."""

Kinds = dict[str, tuple[Callable[[np.random.Generator], Statement], float]]
"""By name: what draws a statement, and the fraction of all statements that are of this kind."""
Statements = dict[str, list[Statement]]


def attack(count: int, seed: int = 0, kinds: Kinds = KINDS) -> Statements:
    """Statements of all kinds, by kind; each has its own seed."""
    statements = {}
    for number, (kind, (draw, fraction)) in enumerate(kinds.items()):
        seeds = ([seed, number, index] for index in range(max(1, round(fraction * count))))
        statements[kind] = [draw(np.random.default_rng(words)) for words in seeds]
    return statements


def finite(statements: list[Statement]) -> list[Statement]:
    """Those with an ε, μ or divergence that is finite and above zero."""
    return [statement for statement in statements if isfinite(statement.stated) and statement.stated > 0]


def power(statements: list[Statement], noticed: float = NOTICED) -> float:
    """The smallest shrinkage of what is stated that breaks at least a fifth of the finite statements."""
    shrinkages = sorted(1 - statement.attained / statement.stated for statement in finite(statements))
    return shrinkages[int(np.ceil(noticed * len(shrinkages))) - 1] if shrinkages else nan


def broken(statements: list[Statement], shrinkage: float = 0.0) -> list[Statement]:
    """Those that would be below what is attained if all were smaller by this fraction."""
    return [statement for statement in statements if statement.is_broken(shrinkage)]


def table(by_kind: Statements) -> str:
    """The number of statements, how many are broken, how near they are, and the power, by kind."""
    lines = [f"{'kind':32}{'finite':>8}{'broken':>8}{'closest':>10}{'within 2 %':>12}{'power':>9}"]
    rows = [*by_kind.items(), ("all", [statement for statements in by_kind.values() for statement in statements])]
    for kind, statements in rows:
        ratios = [statement.attained / statement.stated for statement in finite(statements)]
        caught_fraction = len(broken(statements, PLANTED)) / len(statements)
        lines.append(
            f"{kind:32}{len(ratios):8,}{len(broken(statements)):8}{max(ratios, default=0):10.6f}{caught_fraction:12.1%}"
            f"{power(statements):9.2%}"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table of some statements, and which are broken."""
    from tests.accounting.assembled import KINDS as ASSEMBLED

    numbers = [int(value) for value in sys.argv[1:] if value.isdigit()]
    count, seed = [*numbers, *(5000, 0)[len(numbers) :]]
    by_kind = attack(count, seed, ASSEMBLED if "assembled" in sys.argv else KINDS)
    print(table(by_kind))
    for statement in (statement for statements in by_kind.values() for statement in broken(statements)):
        print(f"broken: {statement.stated!r} < {statement.attained!r}: {statement.text}")


if __name__ == "__main__":
    main()
