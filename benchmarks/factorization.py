"""``python -m benchmarks.factorization PYTHON``: our banded strategies against jax_privacy's optimizer.

PYTHON is that of an environment with jax_privacy, which needs newer dependencies than the other peers:
``python -m venv peer && peer/bin/pip install jax_privacy==2.0.0``. Both sides are judged by our error, which the tests
check by simulation. Prints and writes the noise of the iterates over independent noise.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from rqm._util.files import write_json
from rqm.correlated.factorization import Strategy, Workload, banded

CASES = ((250, 4), (250, 8), (250, 34), (250, 64), (250, 250))
STEPS = 100
"""jax_privacy's default."""


def main(python: str, out: Path = Path("results/factorization.json")) -> None:
    """Compare all cases."""
    asked = [[rounds, bands, 0.9, Workload(rounds).rates.tolist(), STEPS] for rounds, bands in CASES]
    script = Path(__file__).with_name("jax_privacy_peer.py")
    done = subprocess.run([python, str(script)], input=json.dumps(asked), text=True, stdout=subprocess.PIPE, check=True)
    rows = []
    for (rounds, bands), line in zip(CASES, done.stdout.splitlines(), strict=True):
        workload = Workload(rounds)
        peer = Strategy(np.array(json.loads(line)))
        row: dict[str, float] = {"rounds": rounds, "bands": bands}
        row["rqm"] = banded(workload, bands).over_independent(workload)
        row["jax_privacy"] = peer.over_independent(workload)
        rows.append(row)
        print("  ".join(f"{name} {value:.5g}" for name, value in row.items()), flush=True)
    write_json(out, {"steps": STEPS, "momentum": 0.9, "schedule": "linear", "rows": rows})


if __name__ == "__main__":
    main(sys.argv[1])
