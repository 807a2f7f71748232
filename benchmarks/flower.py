"""A round of 40 clients × 1,018,174 coordinates in Flower's simulation engine: our mod and strategy against SecAgg+.

Ours has all others as neighbors, as in deployment; and the 12 that suffice if 5 % are corrupt and 5 % lost, which
clients draw where they are more than 128 (``rqm.secagg.security``). Training returns a constant, so that only encoding,
masking, messages and decoding are measured. Each contender has an engine of its own, one after the other; its first
round, in which workers start, does not count, nor does the last, which prepares none that follows. Simulated nodes end
with the machine: their marks, which are synced before every answer, lie in memory where there is a place for that.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from benchmarks import Entry, Result
from rqm.ledger.node_policy import POLICY, TRUSTING

CLIENTS, COUNT, ROUNDS = 40, 1_018_174, 6
MEMORY = "/dev/shm"
CONTENDERS = {
    "ours, 39 shares": ("ours", 39),
    "ours, 12 shares": ("ours", 12),
    "Flower SecAgg+, 39 shares": ("theirs", 39),
    "Flower SecAgg+, 5 shares": ("theirs", 5),
}


def round_seconds(
    script: str, arguments: Sequence[object], round_count: int, home: str, **environment: str
) -> list[float]:
    """Seconds of each round but the first, as a script that runs Flower's simulation in ``home`` prints them."""
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "FLWR_HOME": home}
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{script}", *map(str, arguments)],
        env={**os.environ, **quiet, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("ROUND ")]
    if len(seconds) != round_count:
        raise RuntimeError(f"{script} {arguments}: {len(seconds)} rounds of {round_count}\n{done.stderr[-3000:]}")
    return seconds[1:]


def rounds(
    contender: str, shares: int, clients: int = CLIENTS, count: int = COUNT, round_count: int = ROUNDS
) -> list[float]:
    """Seconds of each round but the first and the last."""
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as home:
        (Path(home) / POLICY).write_text(TRUSTING)
        arguments = (contender, clients, count, shares, round_count)
        return round_seconds("flower_rounds", arguments, round_count, home, RQM_STATE=home)[:-1]


def bench() -> Result:
    """Every contender in its turn."""
    if find_spec("flwr") is None or find_spec("ray") is None:
        raise ValueError("rqm bench flower: must be run where Flower's simulation engine is installed (make setup)")
    entries = {name: Entry(median(rounds(*how)), 1) for name, how in CONTENDERS.items()}
    ours, ours_few, theirs, theirs_few = CONTENDERS
    result = Result("flower", ours, [theirs], entries, unit="rounds a second")
    result.named_ratios["our 39 shares, its 5"] = result.ratio(ours, theirs_few)
    result.named_ratios["our 12 shares, its 5"] = result.ratio(ours_few, theirs_few)
    result.check("times as fast as SecAgg+, 39 shares each", result.ratio(ours, theirs), 7.0)
    result.check("times as fast with 12 shares as SecAgg+ with 5", result.ratio(ours_few, theirs_few), 3.0)
    return result
