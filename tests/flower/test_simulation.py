"""Flower's own simulation engine: the model improves, ε is logged, and all nodes take part."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("ray")
from tests.commands import rqm


@pytest.mark.slow  # Ray starts a dozen processes
def test_ten_clients_in_the_simulation_engine(tmp_path):
    root = Path(__file__).parents[2]
    assert rqm("init", "--policy", "--trust-server", tmp_path).returncode == 0
    environment = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "FLWR_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.flower.simulated"],
        cwd=root,
        env={**os.environ, **environment, "RQM_STATE": str(tmp_path)},
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
    log = done.stdout + done.stderr
    assert "2 of 2 charged rounds were released" in log
    assert "all nodes trust the server (simulated): nothing in this run was protected from it" in log
