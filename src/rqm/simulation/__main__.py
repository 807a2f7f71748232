"""`python -m rqm.simulation PLAN.toml --out DIR`: train on a machine with only torch, NumPy and SciPy.

PLAN is a TOML file or the name of a shipped experiment. --sweep runs all variants and seeds; the same command continues
after an interruption, or after --minutes. Every round is charged to a ledger. Where the accountant is not installed, ε
is read from a --certificate that `rqm account PLAN --save FILE` wrote elsewhere; else it is not stated.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

from rqm.config.experiments import find
from rqm.config.plan import Plan
from rqm.config.sweep import Sweep
from rqm.data import load
from rqm.simulation.distributed import processes
from rqm.simulation.loop import Outcome
from rqm.simulation.run_folder import carry_out
from rqm.simulation.sweeps import carry_out_sweep, save_curves


def main(arguments: list[str] | None = None) -> int:
    """Train, report rounds on stderr, and print the folder of the run.

    Args:
        arguments: The command line; None: that of the process.

    Returns:
        The exit status: 0, 2 after an error, or 3 if a sweep is not finished.
    """
    parser = argparse.ArgumentParser(prog="python -m rqm.simulation", description=__doc__)
    parser.add_argument("plan")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--certificate", type=Path)
    options = parser.parse_args(arguments)
    load_data = partial(load, folder=options.data)
    try:
        sweep = Sweep.from_toml(find(options.plan), options.set, first=not options.sweep)
        with processes(load_data) as make:
            if make is None:  # another process leads
                return 0
            if options.sweep:
                certificate, minutes = options.certificate, options.minutes
                is_done = carry_out_sweep(sweep, load_data, options.out, _report, minutes, certificate, make)
                print(save_curves(sweep, options.out))
                return 0 if is_done else 3
            ((name, plan),) = sweep.variants.items()
            watch = partial(_report, name, plan)
            carry_out(plan, load_data(plan.data), options.out, watch, make=make, certificate=options.certificate)
            print(options.out)
    except (ValueError, TypeError, OSError, ModuleNotFoundError) as error:
        print(f"rqm: {error}", file=sys.stderr)
        return 2
    return 0


def _report(name: str, plan: Plan, outcome: Outcome) -> None:
    """Print the outcome of a round that was evaluated."""
    if outcome.accuracy is not None:
        epsilon = "" if outcome.epsilon is None else f" ε {outcome.epsilon:.4g}"
        print(
            f"{name} seed {plan.seed}: round {outcome.round}/{plan.participation.rounds} {outcome.seconds:.4f} s "
            f"loss {outcome.loss:.4f} accuracy {outcome.accuracy:.4f}{epsilon}",
            file=sys.stderr,
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
