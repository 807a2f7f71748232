"""Which functions of the package a call passes through: `python -m tools.trace epsilon [--names]`.

Counts the named functions and the files of `rqm` that run, with empty caches. Functions in `_util`, comprehensions and
lambdas are left out, and so is what runs while modules are imported. The call is the first one of its process, so that
no cache of an earlier call hides anything.
"""

import argparse
import os
import pkgutil
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch

import rqm
from rqm.data.federated_data import as_federated_data
from rqm.simulation.loop import RunState, run_round

PACKAGE = Path(rqm.__file__).parent


def traced(prepare: Callable[[], Callable[[], object]], *, all_threads: bool = False) -> list[CodeType]:
    """The code objects of the package that run during a call.

    Args:
        prepare: Returns what is run, without arguments. What happens in it is not counted.
        all_threads: Whether to count other threads, too.

    Returns:
        The code objects, each once, sorted by file and line; `_util`, comprehensions and lambdas are left out.
    """
    seen: set[CodeType] = set()

    def record(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            seen.add(frame.f_code)

    if all_threads:
        threading.setprofile(record)  # also of threads that begin while the call is prepared
    call = prepare()
    seen.clear()
    sys.setprofile(record)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return sorted((code for code in seen if is_counted(code)), key=lambda code: (code.co_filename, code.co_firstlineno))


def is_counted(code: CodeType) -> bool:
    """Whether a code object is a named function of the package, outside `_util`."""
    path = Path(code.co_filename)
    return path.is_relative_to(PACKAGE) and "_util" not in path.parts and not code.co_name.startswith("<")


def epsilon() -> Callable[[], object]:
    """One ε of a mechanism with explicit parameters: one bit, n = 1000, d = 2^20."""
    mech = rqm.StochasticRounding(clip=4 / 1024, levels=2, margin=20.7)
    return lambda: rqm.private_mean(mechanism=mech, dim=2**20, clients=1000, delta=1e-6).guarantee().epsilon


def users() -> list[tuple[Any, Any]]:
    """One-hot data of 1000 users in two classes, five examples each."""
    labels = np.arange(5) % 2
    return [(np.eye(8, dtype=np.float32)[(user + labels) % 8], labels) for user in range(1000)]


def training_round() -> Callable[[], object]:
    """One round of the paper's Algorithm 1, after the first one: RQM, 100 clients, no evaluation."""
    plan = rqm.Plan.from_dict({"model": "own", "clients": 100, "device": "cpu"})
    state = RunState(plan, as_federated_data(users()), torch.nn.Linear(8, 2))
    run_round(state, 0)
    return lambda: run_round(state, 1)


def train() -> Callable[[], object]:
    """A model trained from ε alone, with the defaults of `rqm.train`."""
    people = users()
    return lambda: rqm.train(torch.nn.Linear(8, 2), people, epsilon=3, progress=False)


CALLS: dict[str, Callable[[], Callable[[], object]]] = {"epsilon": epsilon, "round": training_round, "train": train}


def import_everything() -> None:
    """Import every module of the package but those whose extras are missing, so that no import is counted as a call."""
    for module in pkgutil.walk_packages(rqm.__path__, "rqm."):
        if not module.name.endswith(("__main__", "template")) and ".template." not in module.name:
            with suppress(ImportError):
                import_module(module.name)


def main() -> None:
    """Print the number of functions and files, and with `--names` each of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("call", choices=sorted(CALLS))
    parser.add_argument("--all-threads", action="store_true", help="count other threads than the caller's, too")
    parser.add_argument("--names", action="store_true", help="print every function")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as empty:
        os.environ["RQM_CACHE"] = empty
        import_everything()
        codes = traced(CALLS[options.call], all_threads=options.all_threads)
    files = {code.co_filename for code in codes}
    if options.names:
        for code in codes:
            print(f"{Path(code.co_filename).relative_to(PACKAGE)}: {code.co_qualname}")
    print(f"{options.call}: {len(codes)} functions in {len(files)} files")


if __name__ == "__main__":
    main()
