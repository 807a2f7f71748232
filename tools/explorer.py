"""``python -m tools.explorer page FILE`` writes the explorer's page, ``… grid`` recomputes its precomputed values."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from math import inf, isinf
from pathlib import Path
from typing import Any

from rqm import PBM, RQM, RenyiBound, StochasticRounding, renyi
from rqm.mechanisms.discrete import DiscreteMechanism
from rqm.related.randomized_response import RandomizedResponse
from rqm.report import explorer

ORDERS = (1.5, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, inf)
CLIENTS = (2, 5, 10, 20, 40, 100)
RQMS = ((1.0, 0.42), (2.0, 0.57), (0.66, 0.33), (1.0, 0.3), (1.0, 0.55), (2.0, 0.42), (0.66, 0.42))  # (Δ, q)
THETAS = (0.1, 0.15, 0.25, 0.35)
MARGINS = (1.0, 4.0, 20.0)  # of the 1-bit mechanism
EPSILONS = (2.0, 4.0)  # of randomized response
RESPONSE_CLIENTS = (2, 5, 10)  # its certificates take long with more

Progress = Callable[[str], None]


def compute_grid(progress: Progress = lambda line: None) -> dict[str, Any]:
    """Compute what ``grid.json`` holds: attained and certified divergences, with the inputs that attain them."""
    found = []
    for mech, counts in settings():
        bounds = {}
        for clients in counts:
            progress(f"{mech} {clients} clients")
            bounds[str(clients)] = [entry(bound) for bound in renyi(mech, ORDERS, clients)]
        found.append({**parameters(mech), "bounds": bounds})
    orders = ["inf" if isinf(alpha) else alpha for alpha in ORDERS]
    return {"orders": orders, "settings": found}


def format_grid(grid: dict[str, Any]) -> str:
    """Write a grid as JSON, one setting and number of clients a line, so that a change shows where it is."""
    text = json.dumps(grid, allow_nan=False, separators=(",", ":"))
    for mark in ('{"mechanism"', '"bounds"', '"settings"'):
        text = text.replace(mark, "\n" + mark)
    for clients in CLIENTS:
        text = text.replace(f'"{clients}":[[', f'\n"{clients}":[[')
    return text + "\n"


def settings() -> Iterator[tuple[DiscreteMechanism, tuple[int, ...]]]:
    """What is precomputed, and for how many clients."""
    for margin, keep in RQMS:
        yield RQM(margin=margin, levels=16, keep=keep), CLIENTS
    for theta in THETAS:
        yield PBM(theta=theta, levels=16), CLIENTS
    for margin in MARGINS:
        yield StochasticRounding(margin=margin, levels=2), CLIENTS
    for epsilon in EPSILONS:
        yield RandomizedResponse(levels=16, epsilon=epsilon), RESPONSE_CLIENTS


def parameters(mech: DiscreteMechanism) -> dict[str, Any]:
    """The mechanism as the page names it: inputs are in units of the clip there."""
    return {name: value for name, value in mech.to_dict().items() if name != "clip"}


def entry(bound: RenyiBound) -> list[Any]:
    """[attained, certified, x, x′, [[input, other clients there], …]]."""
    witness = bound.witness
    others = [[round(x, 12), n] for x, n in witness.other_inputs.items()]
    return [bound.lower, bound.upper, round(witness.x, 12), round(witness.x_prime, 12), others]


def main(arguments: list[str] | None = None) -> None:
    """Write the page or the grid."""
    parser = argparse.ArgumentParser(prog="python -m tools.explorer")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("page", help="write the page").add_argument("file", type=Path)
    commands.add_parser("grid", help="recompute grid.json: some minutes")
    chosen = parser.parse_args(arguments)
    if chosen.command == "page":
        chosen.file.write_text(explorer.build(), encoding="utf-8")
        return
    grid = compute_grid(lambda line: print(line, file=sys.stderr, flush=True))
    Path(explorer.__file__).with_name("grid.json").write_text(format_grid(grid), encoding="utf-8")


if __name__ == "__main__":
    main()
