"""``python -m rqm.audit training|inversion|membership --out FILE``: where there is only torch, NumPy and SciPy.

The same as ``rqm audit`` without its display.
"""

import argparse
import sys
from pathlib import Path

from rqm._util.files import write_json
from rqm.audit import jobs
from rqm.data import load


def main(arguments: list[str] | None = None) -> int:
    """Carry out one audit and write what it found."""
    parser = argparse.ArgumentParser(prog="python -m rqm.audit", description=__doc__)
    parser.add_argument("audit", choices=["training", "inversion", "membership"])
    parser.add_argument("--experiment", default="audit")
    parser.add_argument("--variant", action="append", default=[])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dataset", default="glyphs", help="of the pictures to invert")
    parser.add_argument("--device", default="cpu", help="to invert on")
    parser.add_argument("--claimed", type=float, help="ε, as rqm account says it")
    for name, default in (("canaries", 1000), ("pictures", 4), ("seeds", 1), ("clients", 40), ("iterations", 300)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--models", type=int, default=16)
    given = parser.parse_args(arguments)

    def watch(what: str) -> None:
        print(what, file=sys.stderr, flush=True)

    try:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        if given.audit == "inversion":
            options = {name: getattr(given, name) for name in ("pictures", "seeds", "clients", "iterations", "device")}
            found = jobs.inversion(load(given.dataset, given.data), watch=watch, **options)
        else:
            plans, data = jobs.variants(given.experiment, given.set, given.variant, given.data)
            if given.audit == "training":
                found = jobs.training(plans, data, canaries=given.canaries, claimed=given.claimed, watch=watch)
            else:
                found = jobs.membership(plans, data, models=given.models, watch=watch)
    except (ValueError, TypeError, OSError, ModuleNotFoundError) as error:
        print(f"rqm: {error}", file=sys.stderr)
        return 2
    write_json(given.out, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
