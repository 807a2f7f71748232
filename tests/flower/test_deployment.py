"""A true SuperLink and four SuperNodes on loopback, with TLS and authentication, in short; two of them are killed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

ROOT = Path(__file__).parents[2]
CONFIG = (
    'rqm.rounds=2 rqm.clients=4 rqm.survivors=3 rqm.model="linear" rqm.mechanism.clip=0.045 '
    "stage-timeout=60 train-timeout=60"
)


@pytest.mark.slow  # Flower polls every few seconds: three minutes, mostly of waiting
def test_a_federation_goes_on_without_one_node_and_discards_a_round_without_two(tmp_path):
    kills = ["--kill", "1", "--kill", "2"]  # one in each round, when it is asked to train
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "examples" / "flower" / "federation.py"),
            "--nodes",
            "4",
            "--limit",
            "400",
            "--ledger",
            str(tmp_path),
            "--set",
            CONFIG,
            *kills,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    said = re.sub("\x1b\\[[0-9;]*m", "", done.stdout)
    assert said.count("killing the SuperNode") == 2
    assert "'survivors': 3" in said  # the run went on without the first
    assert "round 2 is discarded, and charged" in said
    accuracies = [float(found) for found in re.findall(r"'accuracy': '([\d.e+-]+)'", said)]
    assert accuracies[1] > accuracies[0] + 0.02
    assert accuracies[2] == accuracies[1]
    assert "for every user against the server, certified, after 2 rounds" in said
    charged = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()[1:]]
    assert [entry["round"] for entry in charged] == [0, 1]
