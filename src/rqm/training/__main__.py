"""``python -m rqm.training PLAN.toml --out DIR``: train where there is nothing but torch, NumPy and SciPy.

The same as ``rqm train`` without its display. PLAN is a TOML file or the name of a shipped experiment. With --sweep all
variants and seeds are run; the same command goes on where it stopped, with --minutes after a slice of time. Every round
is charged to a ledger; where the accountant is not installed, ε is read from a --certificate that was written elsewhere
by ``rqm account PLAN --save FILE``, or is not stated.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from rqm.data import load
from rqm.data.federated_data import FederatedData
from rqm.plan.experiments import find
from rqm.plan.plan import Plan
from rqm.plan.sweep import Sweep
from rqm.training import run, sweep
from rqm.training.engine import joined
from rqm.training.trainer import Record


def main(arguments: list[str] | None = None) -> int:
    """Train, say how it goes on stderr, and end with the summary's folder on stdout."""
    parser = argparse.ArgumentParser(prog="python -m rqm.training", description=__doc__)
    parser.add_argument("plan")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--certificate", type=Path)
    given = parser.parse_args(arguments)

    def watch(name: str, plan: Plan, record: Record) -> None:
        if record.accuracy is not None:
            spent = "" if record.epsilon is None else f" ε {record.epsilon:.4g}"
            print(
                f"{name} seed {plan.seed}: round {record.round}/{plan.participation.rounds} {record.seconds:.4f} s "
                f"loss {record.loss:.4f} accuracy {record.accuracy:.4f}{spent}",
                file=sys.stderr,
                flush=True,
            )

    def found(name: str) -> FederatedData:
        return load(name, given.data)

    try:
        plans = Sweep.from_toml(find(given.plan), given.set, first=not given.sweep)
        with joined(found) as make:
            if make is None:  # another process leads
                return 0
            how: dict[str, Any] = {"certificate": given.certificate, "make": make}
            if given.sweep:
                done = sweep.carry_out(plans, found, given.out, watch, given.minutes, **how)
                print(sweep.save_curves(plans, given.out))
                return 0 if done else 3
            ((name, plan),) = plans.variants.items()
            run.carry_out(plan, found(plan.data), given.out, lambda record: watch(name, plan, record), **how)
            print(given.out)
    except (ValueError, TypeError, OSError, ModuleNotFoundError) as error:
        print(f"rqm: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
