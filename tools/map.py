"""Who wins where: every mechanism at the same certified ε and no more wire bits, over clients and coordinates.

``python -m tools.map OUT --workers 16`` writes map.json, place by place (some minutes on sixteen cores, hours on two);
``--missing`` goes on where it was interrupted. ``python -m tools.map OUT --draw`` draws map.png from it, and
``tools.tables`` makes the table of docs/which-mechanism.md. A mean of d values within an L2 clip is sent once, at
δ = 10⁻⁶. Of the winner the error is simulated; the ε that some inputs attain is computed from the laws; and one that an
adversary measures, by samples: how far he tells two vectors apart (``rqm.audit.vector``).
"""

import argparse
import json
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from math import expm1, log1p, sqrt
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from rqm import SeededRandom, calibrate
from rqm._util.files import write_json
from rqm.audit.attained import attained_epsilon
from rqm.audit.vector import audit_vector
from rqm.kernels.integer_sampler import TABLE_BITS
from rqm.mechanisms.discrete import DiscreteMechanism

CLIENTS, DIMS, EPSILONS = (10, 30, 100, 300, 1000, 10_000), (1, 16, 128, 1024, 2**14, 2**20), (3.0, 8.0)
LEVELS, DELTA = 16, 1e-6
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "1 bit": ("rounding", {"levels": 2}),
    "PBM": ("pbm", {"levels": LEVELS}),
    "RQM": ("rqm", {"levels": LEVELS}),
    "discrete Gaussian": ("discrete-gaussian", {}),
}
FEW, THOROUGH = 16, 8
"""Coordinates up to which an audit draws so many times more: where one of them holds all of the clip, laws are skewed,
and the events that tell most are rare."""
SUMS, AT_ONCE = 80_000, 4_000_000
"""Sums of which a simulated error is made (its deviation is known to 1/√(2 · SUMS), a quarter of a per cent), and
inputs that are drawn at a time."""
LIKELY = 9.0
"""Deviations beyond which an error is none of the likely ones: of a Gaussian 10⁻¹⁹ are."""


def cell(asked: tuple[int, int, float]) -> dict[str, Any]:
    """All mechanisms at one place of the map, each with its noise over a Gaussian's, or why it is not there."""
    clients, dim, epsilon = asked
    began = perf_counter()
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
        if not _fits(found[name].mechanism.discrete, clients):
            noise[name] = f"bits = {bits}: sums do not fit"
            del found[name]
    best = min(found, key=lambda one: noise[one])
    mean, mech, promise = found[best].private_mean(), found[best].mechanism.discrete, found[best].guarantee
    gaussian = promise is not None and promise.accountant == "gaussian"
    rng = SeededRandom(clients, dim, int(epsilon))
    release: dict[str, Any] = {"clients": clients, "dim": mean.coordinates, "l2_clip": mean.l2_bound, "delta": DELTA}
    effort = 1_000_000_000 * (THOROUGH if 1 < dim <= FEW else 1)
    audit = audit_vector(mech, found[best].epsilon, **release, gaussian=gaussian, effort=effort, rng=rng)
    measured = audit.to_dict()
    return {
        "clients": clients,
        "dim": dim,
        "epsilon": epsilon,
        "bits": bits,
        "noise": noise,
        "winner": best,
        "mechanism": mech.to_dict(),
        "inside": best == "RQM" and len(mech.breakpoints) > 2,
        "stated": found[best].epsilon,
        "attained": attained_epsilon(mech, clients, mean.coordinates, mean.l2_bound, DELTA),
        "measured": measured.pop("measured"),
        "audit": measured,
        **_simulated(mech, clients, rng),
        "seconds": round(perf_counter() - began),
    }


def _fits(mech: DiscreteMechanism, clients: int) -> bool:
    """Whether a sum, with six deviations of noise at either end, has room in the bits."""
    if mech.additive is None:
        return True
    noise = sqrt(clients * mech.additive.variance_without_floor) / mech.grid.step
    return bool(clients * mech.additive.steps + 12 * noise <= 2**mech.bits)


def _simulated(mech: DiscreteMechanism, clients: int, rng: SeededRandom) -> dict[str, float]:
    """The predicted deviation of a coordinate of the mean over the simulated one, all inputs zero.

    Additive noise is sampled from a table in which every outcome has one unit of 2⁻⁴⁰: with a chance of ``rare`` a sum
    is as good as uniform. So few sums do not see that part of the variance, ``rare_part`` of all: it is left out of
    both, and ``seen`` says in how many of the sums it came.
    """
    zero = np.zeros((clients, max(1, AT_ONCE // clients)), np.float32)
    count = -(-SUMS // zero.shape[1])
    sums = [mech.encode_sum(zero, rng, threads=1) for _ in range(count)]
    errors = np.concatenate([mech.decode(one, clients) for one in sums])
    whole = float(mech.variance(0.0))
    near = whole if mech.additive is None else mech.additive.variance_without_floor
    likely = abs(errors) <= LIKELY * sqrt(near / clients)
    return {
        "predicted_over_simulated": sqrt(near / clients / float(np.mean(errors[likely] ** 2))),
        "rare": 0.0 if mech.additive is None else -expm1(clients * log1p(-mech.levels / 2.0**TABLE_BITS)),
        "rare_part": 1 - near / whole,
        "rare_seen": float((~likely).mean()),
    }


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
    """Compute the map, or draw it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--missing", action="store_true", help="only places that the file has not")
    parser.add_argument("--draw", action="store_true", help="draw what the file has, and compute nothing")
    for name, every, kind in (("clients", CLIENTS, int), ("dims", DIMS, int), ("epsilons", EPSILONS, float)):
        parser.add_argument(
            f"--{name}", type=kind, nargs="*", default=every, help="only these; the others stay as they are"
        )
    asked = parser.parse_args()
    known = asked.out / "map.json"
    cells = {_place(one): one for one in (json.loads(known.read_text())["cells"] if known.exists() else [])}
    if asked.draw:
        draw(list(cells.values()), asked.out / "map.png")
        return
    asked.out.mkdir(parents=True, exist_ok=True)
    places = [
        place for place in product(asked.clients, asked.dims, asked.epsilons) if not (asked.missing and place in cells)
    ]
    # Levels inside the clip of many clients take longest: these begin, so that nothing waits for them at the end.
    places.sort(key=lambda one: (-one[0], one[1]))
    with ProcessPoolExecutor(asked.workers) as pool:
        for done in as_completed([pool.submit(cell, place) for place in places]):
            one = done.result()
            cells[_place(one)] = one
            write_json(known, {"delta": DELTA, "cells": [cells[place] for place in sorted(cells)]})
            print(_told(one), flush=True)


def _told(one: dict[str, Any]) -> str:
    """A line about a place."""
    return (
        f"n = {one['clients']:,}, d = {one['dim']:,}, ε = {one['epsilon']:g}: {one['winner']} "
        f"{one['noise'][one['winner']]:.3f}, stated {one['stated']:.3f}, attained {one['attained']:.3f}, measured "
        f"{one['measured']:.3f}, predicted over simulated {one['predicted_over_simulated']:.4f}, {one['seconds']} s"
    )


if __name__ == "__main__":
    main()
