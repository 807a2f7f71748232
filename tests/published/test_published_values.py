"""Published numerical values about differential privacy, each compared with what rqm computes.

A row states where its value was read, the convention that it was computed under, and how far rqm may be from it.
The rows are in the modules beside this one, by subject; all calls of rqm are in `ours.py`.
`python -m tests.published.test_published_values` prints the table.
"""

from collections import Counter
from collections.abc import Sequence

import pytest

from tests.published.discrete_values import DISCRETE, PROJECT
from tests.published.gaussian_values import GAUSSIAN
from tests.published.matrix_values import MATRICES
from tests.published.renyi_values import RENYI
from tests.published.rows import Row, agrees, ratio
from tests.published.sampled_values import SAMPLED

HEADS = ("source", "where", "quantity", "convention", "published", "rqm", "rqm / published − 1", "allowed", "reason")
ROWS = [*GAUSSIAN, *RENYI, *SAMPLED, *DISCRETE, *PROJECT, *MATRICES]


def _ids(rows: list[Row]) -> list[str]:
    """The project and a number for each row."""
    seen: Counter[str] = Counter()
    names = []
    for row in rows:
        name = row.source.split(" ")[0]
        seen[name] += 1
        names.append(f"{name}-{seen[name]}")
    return names


@pytest.mark.parametrize("row", ROWS, ids=_ids(ROWS))
def test_value_agrees(row):
    assert agrees(row), (
        f"{row.quantity}: ours / published = {ratio(row):.9f}, allowed {row.allowed.lower:.9f} to "
        f"{row.allowed.upper:.9f} ({row.allowed.reason}); {row.source}, {row.where}"
    )


@pytest.mark.parametrize("row", ROWS, ids=_ids(ROWS))
def test_a_change_of_five_percent_is_noticed(row):
    assert not agrees(row, 0.95)
    assert not agrees(row, 1.05)


def test_table_is_broad_and_mostly_computed_by_rqm():
    assert len(ROWS) >= 80
    assert len({row.source for row in ROWS}) >= 8
    assert sum(row.backend == "dp_accounting" for row in ROWS) <= len(ROWS) / 4


def test_no_value_is_listed_twice():
    rows = Counter((row.source, row.where, row.quantity, row.convention) for row in ROWS)
    assert [row for row, count in rows.items() if count > 1] == []


def markdown() -> str:
    """The table, for documents: the ratio rqm / published is given as its distance from 1."""
    lines: list[Sequence[str]] = [HEADS, ["---"] * len(HEADS)]
    for row in ROWS:
        lines.append(
            (
                row.source,
                row.where,
                row.quantity,
                row.convention,
                row.published if row.value is None else f"{row.published} = {row.number:.9g}",
                f"{ratio(row) * row.number:.9g}",
                f"{ratio(row) - 1:+.1e}",
                f"{row.allowed.lower - 1:+.1e} to {row.allowed.upper - 1:+.1e}",
                row.allowed.reason + ("; computed by dp_accounting" if row.backend == "dp_accounting" else ""),
            )
        )
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    print(markdown())
