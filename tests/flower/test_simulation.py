"""The generated app in Flower's own simulation engine: the model improves, and ε is logged."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("ray")


@pytest.mark.slow  # Ray starts a dozen processes
def test_the_generated_app_runs_in_the_simulation_engine(tmp_path):
    programs = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_HOME": str(tmp_path / "home"),
        "RQM_LEDGER": str(tmp_path / "ledger"),
    }
    options = {"env": environment, "capture_output": True, "text": True}
    written = subprocess.run(
        [sys.executable, "-m", "rqm", "init", "--flower", tmp_path / "mine"], check=True, **options
    )
    command = written.stdout.splitlines()[-1]  # as it is printed
    done = subprocess.run(["bash", "-c", command], check=True, **options)
    output = re.sub("\x1b\\[[0-9;]*m", "", done.stdout + done.stderr)
    assert output.count("'survivors': 50") >= 5, output[-4000:]
    accuracies = [float(value) for value in re.findall(r"'accuracy': '([\d.e+-]+)'", output)]
    assert accuracies[-1] > accuracies[0] + 0.2
    pattern = r"\(ε = ([\d.]+), δ = 1e-05\) for every user against the server, certified, after 5 rounds"
    (epsilon,) = re.findall(pattern, output)
    assert 7.5 < float(epsilon) <= 8
    assert len((tmp_path / "ledger" / "ledger.jsonl").read_text().splitlines()) == 6
