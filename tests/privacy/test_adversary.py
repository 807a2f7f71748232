"""No statement of any kind is below what the adversary attains; were all of them 2 % smaller, many would be."""

import pytest

from tests.privacy.adversary import PLANTED, attack, table
from tests.privacy.statements import KINDS

LOOSE = {"ε, outsider"}
"""Kinds of whom few statements come within 2 %: in a quick run there may be none."""


AGAIN = "ε, a round done again"


def check(found, loose):
    for kind, statements in found.items():
        broken = [one for one in statements if one.broken()]
        assert not broken, f"{kind}: {broken[0]}\n{table(found)}"
        if kind not in loose:
            assert any(one.broken(PLANTED) for one in statements), f"{kind}: 2 % would not be seen\n{table(found)}"


REST = {kind: draw for kind, draw in KINDS.items() if kind != AGAIN}


def test_nothing_is_stated_below_what_is_attained():
    check(attack(150, kinds=REST), LOOSE)


@pytest.mark.slow
def test_nothing_is_stated_below_what_is_attained_in_thousands():
    found = attack(5200, kinds=REST)
    assert sum(map(len, found.values())) >= 4990
    check(found, set())


@pytest.mark.xfail(strict=True, reason="who is honest is drawn once, and mixed as if it were drawn for each release")
def test_a_round_that_is_done_again_has_the_same_clients():
    check(attack(1000, kinds={AGAIN: KINDS[AGAIN]}), set())


@pytest.mark.parametrize("mistake", [0.98, 0.9, 0.5])
def test_a_statement_is_broken_by_what_is_above_it(mistake):
    """The verdict itself."""
    from tests.privacy.statements import Statement

    assert not Statement(1.0, 1.0, "").broken()
    assert not Statement(1.0, mistake - 0.01, "").broken(mistake)
    assert Statement(1.0, 1.0, "").broken(mistake)
    assert set(KINDS) >= LOOSE
