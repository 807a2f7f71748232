"""The benchmark in Flower's engine: its ratios, and what it says without the engine. Its rounds are run by hand."""

import pytest

from benchmarks import flower
from rqm.secagg import security


def test_ratios_are_theirs_over_ours(monkeypatch):
    times = {("ours", 39): 2.0, ("ours", 12): 1.0, ("theirs", 39): 20.0, ("theirs", 5): 3.0}
    monkeypatch.setattr(flower, "rounds", lambda who, shares: [times[who, shares]] * 2)
    monkeypatch.setattr(flower, "find_spec", lambda name: name)
    result = flower.bench()
    assert result.ratios == {
        "Flower SecAgg+, 39 shares": pytest.approx(10),
        "our 39 shares, its 5": pytest.approx(1.5),
        "our 12 shares, its 5": pytest.approx(3),
    }


def test_the_shares_are_those_that_suffice():
    assert security(flower.CLIENTS, 38, 2)[0] == flower.CONTENDERS["ours, 12 shares"][1]


def test_what_is_aimed_at_is_checked(monkeypatch):
    monkeypatch.setattr(flower, "rounds", lambda who, shares: [1.0 if who == "ours" else shares])
    monkeypatch.setattr(flower, "find_spec", lambda name: name)
    result = flower.bench()
    assert all(check["measured"] >= check["wanted"] for check in result.checks.values())


def test_without_the_engine_it_says_so(monkeypatch):
    monkeypatch.setattr(flower, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="make setup"):
        flower.bench()


@pytest.mark.slow
def test_small_rounds_of_both_in_the_engine():
    pytest.importorskip("ray")
    for who, shares in (("ours", 5), ("theirs", 5)):
        (seconds,) = flower.rounds(who, shares, clients=6, count=1000, round_count=3)
        assert seconds > 0
