"""The two apps of the live benchmark, and what is read from what they say; the federation itself takes minutes."""

import ast
import json

import pytest

from benchmarks import live


def test_one_app_does_nothing_and_the_other_is_the_example_timed(tmp_path):
    nothing, ours = live.apps(tmp_path)
    for app in (nothing, ours):
        for name in ("client_app.py", "server_app.py"):
            ast.parse((app / "app" / name).read_text())
    assert "rqm" not in (nothing / "app" / "client_app.py").read_text()
    example = (live.EXAMPLE / "app" / "server_app.py").read_text()
    assert (ours / "app" / "server_app.py").read_text() == example + live.TIMED


class Said:
    def __init__(self, code, *lines):
        self.code, self.lines = code, lines

    def run(self, _config, _limit, _app):
        print(*self.lines, sep="\n")
        return self.code


def test_times_are_read_from_the_log(tmp_path):
    told = [["nothing", 4, 3.5], ["nothing", 4, 3.25]]
    lines = [f"\x1b[92mINFO\x1b[0m: {live.TIMING_PREFIX}{json.dumps(one)}" for one in told]
    assert live.timed(Said(0, "starting", *lines), tmp_path) == [tuple(one) for one in told]
    with pytest.raises(RuntimeError, match="did not come to its end"):
        live.timed(Said(1, "starting"), tmp_path)


def test_exchanges_are_compared_by_purpose_and_without_the_first():
    empty = [["nothing", 4, seconds] for seconds in (60, 3, 3, 6)]
    vectors, ends = (["arrays", "config", "rqm", "rqm-plan"], ["config", "rqm", "rqm-next", "rqm-plan"])
    ours = [
        [["config", "rqm-plan"], 4, 50],
        [vectors, 4, 5],
        [[], 0, 0.1],
        [ends, 4, 3],
        [vectors, 4, 3],
        [ends, 3, 60],
    ]
    comparison = live.compared(empty, ours)
    assert comparison["ratios"] == {"vectors": pytest.approx(4 / 3), live.PURPOSES[tuple(ends)]: pytest.approx(1)}
    assert comparison["ratios_of_means"]["vectors"] == pytest.approx(1)
