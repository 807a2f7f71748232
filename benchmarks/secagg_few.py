"""What clients send where few coordinates are: bytes of real messages of the shipped experiments, and of forty clients.

``python -m benchmarks.secagg_few --out DIR`` (a minute or two) writes ``secagg-few.json``. Rounds are made for 5 % of
the clients corrupt and 5 % lost, on the graph that ``security`` asks for; all parties run in this process, and the sum
is checked. Everything that a client sends is counted: keys, shares, the masked vector, what it signs and reveals.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine_name
from rqm.config.experiments import find
from rqm.config.plan import Plan
from rqm.config.sweep import Sweep
from rqm.secagg import Params, security
from rqm.secagg.local import aggregate

EXPERIMENTS = ("few-coordinates", "few-coordinates-3400")
PARAMETERS, FORTY, FEW = 1_018_174, 40, 2**14


def params_of(plan: Plan, part: float = 0.05) -> Params:
    """The round of a plan for so many corrupt and lost clients."""
    mean, lost = plan.private_mean(), int(part * plan.participation.clients)
    channel = plan.mechanism.discrete
    graph = security(plan.participation.clients, plan.participation.clients - lost, lost)
    return Params(
        plan.participation.clients,
        mean.coordinates,
        channel.levels,
        b"few",
        *graph,
        bits=mean.modulus.bit_length() - 1,
        modular=channel.is_modular,
    )


def one(name: str, params: Params, parameters: int) -> dict[str, Any]:
    """Carry out a round, and weigh what a client sends."""
    some = np.random.default_rng(0).integers(0, params.levels, (8, params.count))
    total, survivors, cost = aggregate(params, lambda u: some[u % 8])
    expected = sum((params.clients - row + 7) // 8 * values for row, values in enumerate(some)) % 2**params.bits
    assert len(survivors) == params.clients
    assert (total == expected).all()
    masked, everything = cost.by_kind["MASKED"] / params.clients, cost.bytes_up / params.clients
    return {
        "name": name,
        "clients": params.clients,
        "coordinates": params.count,
        "bits": params.bits,
        "neighbours": params.degree,
        "parameters": parameters,
        "vector_bytes": params.masked_size,
        "masked_bytes": masked,
        "bytes_up": everything,
        "vector_bits_per_parameter": 8 * params.masked_size / parameters,
        "masked_bits_per_parameter": 8 * masked / parameters,
        "bits_per_parameter": 8 * everything / parameters,
        "by_kind": {kind: size / params.clients for kind, size in cost.by_kind.items()},
        "client_seconds": cost.client_seconds / params.clients,
        "server_seconds": cost.server_seconds,
    }


def study(most: int = 2**17) -> dict[str, Any]:
    """All variants of at most so many coordinates, and forty clients with 16 levels."""
    graph = security(FORTY, FORTY - 2, 2)
    rows = [one("forty clients, 4 bits", Params(FORTY, FEW, 16, b"few", *graph), PARAMETERS)]
    for experiment in EXPERIMENTS:
        for name, plan in Sweep.from_toml(find(experiment)).variants.items():
            mean = plan.private_mean()
            if mean.coordinates <= most:
                rows.append(one(f"{experiment}: {name}", params_of(plan), mean.dim))
                print(json.dumps(rows[-1]), flush=True)
    return {"machine": machine_name(), "command": "python -m benchmarks.secagg_few", "rounds": rows}


if __name__ == "__main__":
    _parser = argparse.ArgumentParser(prog="python -m benchmarks.secagg_few", description=__doc__)
    _parser.add_argument("--out", type=Path, default=Path("out/bench"))
    _out = _parser.parse_args().out
    _out.mkdir(parents=True, exist_ok=True)
    (_out / "secagg-few.json").write_text(json.dumps(study(), indent=1) + "\n")
