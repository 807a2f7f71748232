"""Flower's own simulation engine: the model improves, ε is logged, and all nodes take part."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("ray")


@pytest.mark.slow  # Ray starts a dozen processes
def test_ten_clients_in_the_simulation_engine(tmp_path):
    root = Path(__file__).parents[2]
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "FLWR_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.flower.simulated", str(tmp_path)],
        cwd=root,
        env={**os.environ, **quiet},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, done.stdout[-3000:] + done.stderr[-3000:]
    outcome = json.loads(lines[-1].removeprefix("FOUND "))
    assert outcome["survivors"] == [10, 10]
    assert outcome["loss"][2] < outcome["loss"][0] - 0.1
    assert 0 < outcome["epsilon"][0] < outcome["epsilon"][1]
    assert "certified, after 2 rounds" in done.stdout + done.stderr
