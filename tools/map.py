"""Who wins where: every mechanism at the same certified ε and no more wire bits, over clients and coordinates.

``python -m tools.map OUT`` writes map.json and map.png (minutes on sixteen cores, an hour on two), of which
``tools.tables`` makes the table of docs/which-mechanism.md. A mean of d values within an L2 clip is sent once, at
δ = 10⁻⁶. For the winner the error is simulated, and the ε that some inputs attain is computed, below the stated one.
"""

import argparse
import json
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from rqm import SeededRandom, calibrate
from rqm.mechanisms.channel import Channel
from rqm.privacy.attained import attained_epsilon

CLIENTS, DIMS, EPSILONS = (10, 30, 100, 300, 1000, 10_000), (1, 16, 128, 1024, 2**14, 2**20), (3.0, 8.0)
LEVELS, DELTA = 16, 1e-6
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "1 bit": ("rounding", {"levels": 2}),
    "PBM": ("pbm", {"levels": LEVELS}),
    "RQM": ("rqm", {"levels": LEVELS}),
    "discrete Gaussian": ("discrete-gaussian", {}),
}
DRAWS, AT_ONCE = 200_000_000, 4_000_000
"""Inputs, about, of which a simulated error is made, and how many of them at a time."""


def cell(asked: tuple[int, int, float]) -> dict[str, Any]:
    """All mechanisms at one place of the map, each with its noise over a Gaussian's, or why it is not there."""
    clients, dim, epsilon = asked
    bits = int(clients * (LEVELS - 1)).bit_length()
    who: dict[str, Any] = {"clients": clients, "population": 10**6, "rounds": 1, "delta": DELTA, "dim": dim}
    noise: dict[str, Any] = {}
    found = {}
    for name, (kind, options) in KINDS.items():
        own = {"bits": bits} if kind == "discrete-gaussian" else options
        try:
            found[name] = calibrate(kind, epsilon=epsilon, **who, **own)
        except ValueError as error:
            noise[name] = str(error)
            continue
        guarantee = found[name].guarantee
        assert guarantee is not None
        noise[name] = guarantee.noise_std_over_gaussian
        if not _fits(found[name].mechanism.channel, clients):
            noise[name] = f"bits = {bits}: sums do not fit"
            del found[name]
    best = min(found, key=lambda one: noise[one])
    mean, mech = found[best].private_mean(), found[best].mechanism.channel
    return {
        "clients": clients,
        "dim": dim,
        "epsilon": epsilon,
        "bits": bits,
        "noise": noise,
        "winner": best,
        "mechanism": mech.to_dict(),
        "inside": best == "RQM" and len(mech.knots) > 2,
        "stated": found[best].epsilon,
        "attained": attained_epsilon(mech, clients, mean.coordinates, mean.bound, DELTA),
        "predicted_over_simulated": _simulated(mech, clients),
    }


def _fits(mech: Channel, clients: int) -> bool:
    """Whether a sum, with six deviations of noise at either end, has room in the bits."""
    if mech.additive is None:
        return True
    noise = sqrt(clients * mech.additive.near) / mech.grid.step
    return bool(clients * mech.additive.steps + 12 * noise <= 2**mech.bits)


def _simulated(mech: Channel, clients: int) -> float:
    """The predicted deviation of a coordinate of the mean over the simulated one, all inputs zero."""
    rng, zero = SeededRandom(0), np.zeros((clients, AT_ONCE // clients), np.float32)
    sums = [mech.encode_sum(zero, rng) for _ in range(DRAWS // AT_ONCE)]
    errors = [mech.decode(one % 2**mech.bits if mech.modular else one, clients) for one in sums]
    return sqrt(float(mech.variance(0.0)) / clients / float(np.mean(np.square(errors))))


def draw(cells: list[dict[str, Any]], path: Path) -> None:
    """A square for each place, in the winner's colour, with its noise over a Gaussian's."""
    import matplotlib as mpl  # noqa: PLC0415 (an extra)

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415
    from matplotlib.patches import Rectangle  # noqa: PLC0415

    colours = {"1 bit": "#4c78a8", "PBM": "#f58518", "RQM": "#54a24b", "discrete Gaussian": "#b9b4ac"}
    figure, axes = plt.subplots(1, len(EPSILONS), figsize=(12, 5.2), sharey=True)
    for axis, epsilon in zip(np.atleast_1d(axes), EPSILONS, strict=True):
        for one in cells:
            if one["epsilon"] != epsilon:
                continue
            x, y = CLIENTS.index(one["clients"]), DIMS.index(one["dim"])
            axis.add_patch(Rectangle((x, y), 0.96, 0.96, color=colours[one["winner"]]))
            text = f"{one['winner']}{' inside' if one['inside'] else ''}\n{one['noise'][one['winner']]:.3f}"
            axis.text(x + 0.48, y + 0.48, text.replace("discrete ", "d. "), ha="center", va="center", fontsize=8)
        axis.set(xlim=(0, len(CLIENTS)), ylim=(0, len(DIMS)), title=f"ε = {epsilon:g}", xlabel="clients")
        axis.set_xticks(np.arange(len(CLIENTS)) + 0.5, [f"{n:,}" for n in CLIENTS])
        axis.set_yticks(np.arange(len(DIMS)) + 0.5, [f"{d:,}" for d in DIMS])
    np.atleast_1d(axes)[0].set_ylabel("coordinates")
    figure.suptitle(
        "least noise at the same certified ε, over a trusted server's Gaussian; no more bits than 16 levels take"
    )
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def _place(one: dict[str, Any]) -> tuple[int, int, float]:
    return one["clients"], one["dim"], one["epsilon"]


def main() -> None:
    """Compute the map, and draw it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--clients", type=int, nargs="*", default=CLIENTS, help="only these; the others stay as they are"
    )
    parser.add_argument("--dims", type=int, nargs="*", default=DIMS, help="only these; the others stay as they are")
    asked = parser.parse_args()
    places = sorted(product(asked.clients, asked.dims, EPSILONS), key=lambda one: (one[1], one[0]))
    known = asked.out / "map.json"
    cells = [
        one for one in (json.loads(known.read_text())["cells"] if known.exists() else []) if _place(one) not in places
    ]
    with ProcessPoolExecutor(asked.workers) as pool:
        for done in as_completed([pool.submit(cell, place) for place in places]):
            cells.append(done.result())
            print(json.dumps(cells[-1]), flush=True)
    cells.sort(key=_place)
    known.write_text(json.dumps({"delta": DELTA, "cells": cells}, indent=1) + "\n")
    draw(cells, asked.out / "map.png")


if __name__ == "__main__":
    main()
