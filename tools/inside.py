"""Who has the least noise where: RQM with levels inside the clip against its rivals, over clients and coordinates.

``python -m tools.inside OUT`` writes ``inside-map.json`` and its picture and prints the table of
docs/which-mechanism.md; ``python -m tools.inside OUT CLIENTS,COORDINATES …`` certifies the rivals of these cells, and
RQM's where it could win, and adds them. All send no more bits in a secure sum than RQM with 16 levels.

The map is of what is possible at best: no certificate can be below a Gaussian with the least noise that a mechanism's
clients can have, since for many coordinates a sum is one. So where RQM loses here, it loses.
"""

import json
import sys
from contextlib import suppress
from math import ceil, inf, log2, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from rqm import PBM, RQM, Rounding, SeededRandom, calibrate
from rqm.mechanisms.additive import DiscreteGaussian
from rqm.mechanisms.channel import Channel
from rqm.privacy.accountant import gaussian_noise, spent
from rqm.privacy.calibrate import coordinate_clip
from rqm.privacy.event import Event
from rqm.privacy.inner import inside
from rqm.privacy.setting import Setting

EPSILON, DELTA = 3.0, 1e-5
CLIENTS = (40, 100, 300, 1000, 3000, 10_000)
COORDINATES = (16, 64, 256, 1024, 4096, 65_536)
NAMES = {"rounding": "1 bit", "pbm": "PBM", "discrete-gaussian": "discrete Gaussian", "rqm": "RQM, levels inside"}
STEPS = (63, 31, 15, 7, 3, 1)
LIKE = 1.005
"""Noise that is hardly more is as good: then the fewest bits win."""
DRAWN = 200_000
"""Sums that are drawn to check a prediction."""


def error(mech: Channel, typical: float) -> float:
    """The variance of a client's coordinate on average over normal inputs of this size, in clip²."""
    x = np.linspace(-4, 4, 1601) * typical
    weights = np.exp(-((x / typical) ** 2) / 2) * (abs(x) <= 1)
    return float(weights @ mech.variance(x * mech.clip) / weights.sum() / mech.clip**2)


def measured(mech: Channel, typical: float) -> float:
    """The same, drawn: the mean squared error of sums over some clients."""
    rng, some = np.random.default_rng(7), 20
    x = rng.normal(size=(some, DRAWN)) * typical * mech.clip
    x[abs(x) > mech.clip] = 0.0
    total = np.asarray(mech.encode_sum(x, SeededRandom(3)), dtype=np.int64)
    return float(np.square(mech.decode(total, some) - x.mean(axis=0)).mean()) * some / mech.clip**2


class Cell:
    """So many clients and coordinates, and the variance that each client must have at least, in clip²."""

    def __init__(self, clients: int, dim: int) -> None:
        self.clients, self.dim = clients, dim
        self.setting, self.clip = Setting(clients=clients, rounds=1, delta=DELTA), coordinate_clip(1.0, dim)
        self.typical = min(1.0, 1 / self.clip / sqrt(dim))
        self.deviation = gaussian_noise(self.setting, EPSILON) / self.clip
        self.needed = self.deviation**2 / clients
        self.wire = RQM(levels=16).sum_bits(clients)

    def best(self) -> dict[str, Channel]:
        """Every mechanism with just that least variance, the best of its kind within the bits."""
        found: dict[str, list[Channel]] = {
            "rounding": [Rounding(levels=2, margin=sqrt(self.needed + 1) - 1)],
            "pbm": [PBM(levels=16, theta=1 / 2 / sqrt(15 * self.needed + 1))],
            "discrete-gaussian": [],
            "rqm": [one for levels in (8, 16) for one in RQM(levels=levels).inner(self.needed, self.typical)[:1]],
        }
        for steps in STEPS:  # as many bits as hold the sum and its noise
            bits = max(5, ceil(log2((self.clients * self.typical + 6 * self.deviation) * steps)))
            if bits <= min(16, self.wire):
                found["discrete-gaussian"].append(DiscreteGaussian(scale=sqrt(self.needed), steps=steps, bits=bits))
        return {kind: min(those, key=lambda one: error(one, self.typical)) for kind, those in found.items() if those}

    def certified(self, rival: float) -> dict[str, Channel]:
        """Every mechanism as it is certified; RQM if it could be better than the best rival."""
        found: dict[str, Channel] = {}
        for kind, options in (("rounding", {"levels": 2}), ("pbm", {"levels": 16}), ("discrete-gaussian", {})):
            asked: dict[str, Any] = {"clients": self.clients, "dim": self.dim, "rounds": 1, **options}
            try:
                found[kind] = calibrate(kind, epsilon=EPSILON, delta=DELTA, **asked).mechanism.channel
            except ValueError:
                continue
        own = self.best().get("rqm")
        if own is not None and self.noise(own) < rival:
            first = RQM(clip=self.clip, levels=own.levels)
            with suppress(ValueError):
                found["rqm"] = inside(first, EPSILON, self.setting, dim=self.dim, l2_clip=1.0)
        return found

    def noise(self, mech: Channel) -> float:
        """Over a trusted server's."""
        return sqrt(error(mech, self.typical) / self.needed)

    def facts(self) -> dict[str, Any]:
        """What is possible at best, and who wins: with hardly more noise than the least, the fewest bits."""
        best = self.best()
        noise = {kind: self.noise(mech) for kind, mech in best.items()}
        good = [kind for kind in noise if noise[kind] <= LIKE * min(noise.values())]
        winner = min(good, key=lambda kind: (best[kind].sum_bits(self.clients), noise[kind]))
        return {
            "clients": self.clients,
            "dim": self.dim,
            "needed": self.needed,
            "wire": self.wire,
            "noise": noise,
            "bits": {kind: mech.sum_bits(self.clients) for kind, mech in best.items()},
            "mechanisms": {kind: mech.to_dict() for kind, mech in best.items()},
            "winner": winner,
            "measured": sqrt(measured(best[winner], self.typical) / self.needed),
        }

    def more(self, facts: dict[str, Any]) -> dict[str, Any]:
        """The same with what is certified."""
        rival = min(value for kind, value in facts["noise"].items() if kind != "rqm")
        found = self.certified(rival)
        event = {kind: Event(mech, self.dim, 1.0) for kind, mech in found.items()}
        return {
            **facts,
            "certified": {kind: self.noise(mech) for kind, mech in found.items()},
            "certified_epsilon": {kind: spent(one, self.setting).epsilon for kind, one in event.items()},
            "certified_mechanisms": {kind: mech.to_dict() for kind, mech in found.items()},
        }


def told(one: dict[str, Any]) -> str:
    """A cell of the table: who wins, its noise over a trusted server's, and RQM's."""
    winner, own = one["winner"], one["noise"].get("rqm", inf)
    rest = f" (RQM {own:.3f})" if winner != "rqm" and own < inf else ""
    return f"{NAMES[winner]} {one['noise'][winner]:.3f}{rest}"


def table(found: dict[tuple[int, int], dict[str, Any]]) -> str:
    """The table of the document."""
    rows = ["| n | " + " | ".join(f"d = {dim:,}" for dim in COORDINATES) + " |", "|---|" + "---|" * len(COORDINATES)]
    for clients in CLIENTS:
        rows.append(f"| {clients:,} | {' | '.join(told(found[clients, dim]) for dim in COORDINATES)} |")
    return "\n".join(rows)


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """Noise over a trusted server's against what is needed of a client."""
    from matplotlib.figure import Figure  # noqa: PLC0415 (an extra)

    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    for kind, name in NAMES.items():
        points = sorted((one["needed"], one["noise"][kind]) for one in found if kind in one["noise"])
        axes.loglog(*zip(*points, strict=True), "-", label=f"{name}, at best", linewidth=1)
        points = sorted((one["needed"], one["certified"][kind]) for one in found if kind in one.get("certified", {}))
        if points:
            axes.loglog(*zip(*points, strict=True), "o", color=axes.lines[-1].get_color(), label=f"{name}, certified")
    axes.set_xlabel("variance that a client must have, in clip²")
    axes.set_ylabel("noise over a trusted server's")
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Make what is missing, and print the table."""
    out = Path(sys.argv[1])
    path, asked = out / "inside-map.json", [one.split(",") for one in sys.argv[2:]]
    known = {(one["clients"], one["dim"]): one for one in json.loads(path.read_text())} if path.exists() else {}
    for clients in CLIENTS:
        for dim in COORDINATES:
            if (clients, dim) not in known:
                known[clients, dim] = Cell(clients, dim).facts()
    for n, d in asked:
        place = int(n), int(d)
        known[place] = Cell(*place).more(known[place])
        path.write_text(json.dumps(list(known.values()), indent=1))
    path.write_text(json.dumps(list(known.values()), indent=1))
    print(table(known))
    draw(list(known.values()), out / "inside-map.png")


if __name__ == "__main__":
    main()
