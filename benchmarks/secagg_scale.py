"""What secure aggregation costs as clients grow in number: measured up to 1,000 × 2²⁰, then a fitted model.

``python -m benchmarks.secagg_scale --out DIR`` (two minutes) writes ``secagg-scale.json`` and ``secagg-scale.png``.
The degree is the one that ``security`` gives for 5 % corrupt and 5 % lost clients: it grows with the logarithm of the
clients. A client has masks with those whom it has drawn and with those who have drawn it.
"""

import argparse
import json
from functools import cache
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from scipy.optimize import nnls

from benchmarks import machine_name
from rqm.kernels.packing import packed_size
from rqm.secagg import Identity, Params, security
from rqm.secagg.local import aggregate
from rqm.secagg.masking import sealed_bytes
from rqm.secagg.roster import IDENTITY_BYTES, SIGNATURE_BYTES, is_signed
from rqm.secagg.wire import HEADER

LEVELS, COUNT = 16, 2**20
MEASURED = [
    *((n, 2**12) for n in (40, 100, 300, 1000)),
    *((n, 2**16) for n in (40, 300)),
    *((n, COUNT) for n in (20, 40, 100, 300, 1000)),
]
EXTRAPOLATED = [3_000, 10_000, 30_000]


def setting(clients: int, count: int) -> Params:
    """The parameters of a round for 5 % corrupt and 5 % lost clients."""
    lost = clients // 20
    degree, threshold, minimum = security(clients, clients - lost, lost)
    return Params(clients, count, LEVELS, b"scale", degree, threshold, minimum)


def about(params: Params) -> dict[str, Any]:
    """What the costs of a round depend on."""
    k, others = params.degree, params.clients - 1
    return {
        "clients": params.clients,
        "count": params.count,
        "degree": k,
        "threshold": params.threshold,
        "minimum": params.minimum,
        "masks": 2 * k - k * k / others,
        "signatures": params.clients if params.sparse else 0,
        "bits": params.bits,
    }


@cache
def signature_seconds() -> float:
    """What a client takes to check one signature: in this process they are all checked once, not by everybody."""
    identity, times = Identity(bytes(32)), []
    for turn in range(300):
        text = b"%d" % turn
        signature = identity.sign(text)[IDENTITY_BYTES:]
        start = perf_counter()
        assert is_signed(identity.public, signature, text)
        times.append(perf_counter() - start)
    return median(times)


def one(clients: int, count: int) -> dict[str, Any]:
    """Carry out a round; seconds are of one client (the mean) and of the server."""
    params, some = setting(clients, count), np.random.default_rng(0).integers(0, LEVELS, (8, count), dtype=np.uint8)
    total, survivors, cost = aggregate(params, lambda u: some[u % 8])
    expected = sum((clients - row + 7) // 8 * values.astype(np.int64) for row, values in enumerate(some))
    assert len(survivors) == clients
    assert (total == expected).all()
    found = about(params)
    return {
        **found,
        "client_seconds": cost.client_seconds / clients + found["signatures"] * signature_seconds(),
        "server_seconds": cost.server_seconds,
        "client_bytes_up": cost.bytes_up / clients,
        "client_bytes_down": cost.bytes_down / clients,
    }


def client_terms(run: dict[str, Any]) -> list[float]:
    """What a client's time is made of: a start, all with masks, coordinates, words of masks, and all who sign."""
    lanes = run["count"] * (1 if run["bits"] <= 8 else 2 if run["bits"] <= 16 else 4)
    return [1.0, run["masks"], run["count"], (run["masks"] + 1) * lanes, run["signatures"]]


def server_terms(run: dict[str, Any]) -> list[float]:
    """What the server's time is made of: clients, edges, shares that are put together, words of masks."""
    lanes = run["count"] * (1 if run["bits"] <= 8 else 2 if run["bits"] <= 16 else 4)
    return [run["clients"] * x for x in (1.0, run["masks"], run["threshold"] ** 2, lanes)]


def fit(runs: list[dict[str, Any]], terms: Any, key: str) -> Any:
    """Coefficients, none below zero, that fit the relative error best."""
    rows, times = np.array([terms(run) for run in runs]), np.array([run[key] for run in runs])
    scale = (rows / times[:, None]).max(axis=0)  # the columns differ by many orders
    return nnls(rows / times[:, None] / scale, np.ones(len(runs)))[0] / scale


def bytes_up(params: Params) -> float:
    """Bytes that a client sends on average, by the layout of the messages."""
    k, masks = params.degree, about(params)["masks"]
    bodies = (
        params.keys_size,
        32 + 4 + (4 + sealed_bytes(2)) * k,
        packed_size(params.count, params.bits) + 4 + 20 * masks + 4,
        SIGNATURE_BYTES + 4 if params.sparse else 4 + 20 * k + 4,
        4 + 36 * k,
    )
    return float(sum(bodies) + 5 * HEADER.size)


def study() -> dict[str, Any]:
    """Measure, fit, extrapolate."""
    runs = []
    one(20, 2**12)  # compile
    for clients, count in MEASURED:
        runs.append(one(clients, count))
        print(json.dumps(runs[-1]), flush=True)
    client, server = fit(runs, client_terms, "client_seconds"), fit(runs, server_terms, "server_seconds")
    model = []
    for clients in [n for n, count in MEASURED if count == COUNT] + EXTRAPOLATED:
        params = setting(clients, COUNT)
        run = about(params)
        run["client_seconds"] = float(np.dot(client, client_terms(run)))
        run["server_seconds"] = float(np.dot(server, server_terms(run)))
        run["client_bytes_up"] = bytes_up(params)
        model.append(run)
    return {
        "machine": machine_name(),
        "command": "python -m benchmarks.secagg_scale",
        "measured": runs,
        "model": model,
        "client_coefficients": client.tolist(),
        "server_coefficients": server.tolist(),
    }


def draw(found: dict[str, Any], path: Path) -> Path:
    """Seconds and bytes against the number of clients, at 2²⁰ coordinates."""
    from matplotlib.figure import Figure  # noqa: PLC0415 (an extra)

    figure = Figure(figsize=(10.4, 4.0), layout="constrained")
    seconds, sizes = figure.subplots(1, 2)
    runs = [run for run in found["measured"] if run["count"] == COUNT]
    for axes, keys in (
        (seconds, {"client_seconds": "a client", "server_seconds": "the server"}),
        (sizes, {"client_bytes_up": "a client sends"}),
    ):
        for number, (key, name) in enumerate(keys.items()):
            unit = 1e6 if "bytes" in key else 1.0
            axes.plot([r["clients"] for r in runs], [r[key] / unit for r in runs], "o", color=f"C{number}", label=name)
            x, y = [r["clients"] for r in found["model"]], [r[key] / unit for r in found["model"]]
            axes.plot(x, y, "--", lw=1, color=f"C{number}", label=f"{name}, model")
        axes.set_xscale("log")
        some = [r for r in found["model"] if r["clients"] in (40, 1000, 30_000)]
        neighbours = ", ".join(f"{run['degree']} of {run['clients']:,}" for run in some)
        axes.set_xlabel(f"clients (neighbours of each: {neighbours})", fontsize=9)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    seconds.set_yscale("log")
    seconds.set_ylabel("seconds, one core, 2²⁰ coordinates of 4 bits")
    sizes.set_ylabel("MB (float32: 4.19)")
    sizes.set_ylim(0, 4.5)
    sizes.axhline(4 * COUNT / 1e6, color="0.4", lw=0.8)
    figure.savefig(path, dpi=150)
    return path


if __name__ == "__main__":
    _parser = argparse.ArgumentParser(prog="python -m benchmarks.secagg_scale", description=__doc__)
    _parser.add_argument("--out", type=Path, default=Path("out/bench"))
    _out = _parser.parse_args().out
    _out.mkdir(parents=True, exist_ok=True)
    _found = study()
    (_out / "secagg-scale.json").write_text(json.dumps(_found, indent=1) + "\n")
    print(draw(_found, _out / "secagg-scale.png"))
