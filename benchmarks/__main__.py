"""``python -m benchmarks NAME``: a benchmark where the command line's libraries are missing (a bare GPU machine)."""

import argparse
import json
from pathlib import Path

from benchmarks import BENCHMARKS, run

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=BENCHMARKS)
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    arguments = parser.parse_args()
    result = run(arguments.name)
    result.save(arguments.out)
    print(json.dumps(result.to_dict(), indent=1))
