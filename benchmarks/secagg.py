"""A round of secure aggregation, 40 clients × 1,018,174 coordinates of 4 bits, against Flower's SecAgg+.

All parties of either run in one process, on vectors of the same size: with all others as neighbours; and with as many
as ``security`` asks for if two may be corrupt and two lost. Flower's shares are one more: a client keeps one itself.
Ours once more with few coordinates, a public choice of all (``docs/few-coordinates.md``). Then how the cost grows with
coordinates, and with clients on a sparse graph.
"""

import subprocess
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from benchmarks import Entry, Result
from benchmarks.encode import peer_python
from rqm.secagg import Params, security
from rqm.secagg.local import Cost, aggregate

CLIENTS, COUNT, LEVELS = 40, 1_018_174, 16
DERIVED = security(CLIENTS, CLIENTS - 2, 2)
OURS, FLOWER = f"ours, {DERIVED[0]} neighbours", f"Flower SecAgg+, {DERIVED[0] + 1} shares"
OURS_ALL, FLOWER_ALL = "ours, 39 shares", "Flower SecAgg+, 39 shares"
FEW = 2**14
OURS_FEW = f"ours, {FEW:,} coordinates"
REPEATS = 3
COORDINATES, SPARSE = (2**17, 2**20), (64, 512)
"""Sizes between which growth is measured: of the vectors, and of a round on a sparse graph."""


class Flower:
    """Rounds of SecAgg+ in an environment of its own, one whenever it is asked for."""

    def __init__(self, python: Path, shares: int) -> None:
        script, numbers = Path(__file__).with_name("flower_peer.py"), (CLIENTS, COUNT, LEVELS, shares)
        self.process = subprocess.Popen(
            [str(python), str(script), *map(str, numbers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._read()

    def _read(self) -> list[str]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise ModuleNotFoundError("flwr")
        return line.split()

    def round(self) -> tuple[float, int]:
        """Seconds and bytes of one round, as it measures them itself; what it prepares before does not count."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        seconds, size, right = self._read()
        assert right == "True", "Flower's sum is wrong"
        self._read()
        return float(seconds), int(size)


def ours(graph: tuple[int, int, int], clients: int, count: int) -> tuple[float, Cost]:
    """Seconds and cost of one round with a degree, threshold and minimum; the sum is checked."""
    values = np.random.default_rng(0).integers(0, LEVELS, size=(min(clients, 40), count), dtype=np.uint8)
    params = Params(clients, count, LEVELS, b"bench", *graph)
    start = perf_counter()
    total, survivors, cost = aggregate(params, lambda u: values[u % len(values)])
    seconds = perf_counter() - start
    expected = sum(
        int((np.arange(clients) % len(values) == row).sum()) * v.astype(np.int64) for row, v in enumerate(values)
    )
    assert len(survivors) == clients
    assert (total == expected).all()
    return seconds, cost


def bench() -> Result:
    """Rounds in turns, so that a busy moment of the machine hits all."""
    times: dict[str, list[float]] = {OURS: [], OURS_ALL: [], OURS_FEW: []}
    sizes: dict[str, int] = {}
    notes: list[str] = []
    with ExitStack() as stack:
        peers: dict[str, Flower] = {}
        python = peer_python()
        try:
            if python is None:
                raise ModuleNotFoundError("flwr")
            for name, shares in ((FLOWER, DERIVED[0] + 1), (FLOWER_ALL, CLIENTS - 1)):
                peers[name] = Flower(python, shares)
                stack.callback(peers[name].process.kill)
                times[name] = []
        except ModuleNotFoundError:
            notes.append("Flower was not measured: it is not installed (make peers).")
        for turn in range(REPEATS):
            for name, graph, count in (
                (OURS, DERIVED, COUNT),
                (OURS_ALL, (0, 0, 0), COUNT),
                (OURS_FEW, DERIVED, min(FEW, COUNT)),
            ):
                seconds, cost = ours(graph, CLIENTS, count)
                times[name].append(seconds)
                sizes[name] = cost.bytes_up
            for name, peer in peers.items():
                if name == FLOWER or turn == 0:  # the second takes a quarter of a minute
                    seconds, sizes[name] = peer.round()
                    times[name].append(seconds)
    entries = {name: Entry(median(found), 1) for name, found in times.items()}
    result = Result("secagg", OURS, [], entries, notes=notes, unit="rounds a second")
    _ratios(result, sizes)
    for name, size in sizes.items():
        notes.append(f"{name}: a client sends {_size(size / CLIENTS)}.")

    _growth(result)
    return result


def _size(size: float) -> str:
    return f"{size / 1e6:.2f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


def _ratios(result: Result, sizes: dict[str, int]) -> None:
    """Time and bytes against Flower's."""
    for one, other, prefix in ((OURS, FLOWER, ""), (OURS_ALL, FLOWER_ALL, "39 shares: ")):
        if other in result.entries:
            result.named_ratios[f"{prefix}time"] = result.ratio(one, other)
            result.named_ratios[f"{prefix}bytes"] = sizes[other] / sizes[one]
    if FLOWER in result.entries:
        result.named_ratios["few coordinates: time"] = result.ratio(OURS_FEW, FLOWER)
        result.named_ratios["few coordinates: bytes"] = sizes[FLOWER] / sizes[OURS_FEW]
        result.check(f"few coordinates: bytes, over {FLOWER}", result.named_ratios["few coordinates: bytes"], 250.0)
    result.check("few coordinates: bytes, over all of them", sizes[OURS] / sizes[OURS_FEW], 40.0)
    for what, wanted in (("time", 2.0), ("bytes", 6.0)):
        if what in result.named_ratios:
            result.check(f"{what}, over {FLOWER}", result.named_ratios[what], wanted)


def _growth(result: Result) -> None:
    """Costs grow linearly with coordinates and with pairs who share a mask (each signature is checked once here)."""
    few, many = COORDINATES
    small, large = (min(ours(DERIVED, CLIENTS, count)[0] for _ in range(3)) for count in COORDINATES)
    result.check(f"{many // few} times the coordinates, over the time", many / few * small / large, 0.8)
    few, many = SPARSE
    graphs = {n: security(n, n - n // 20, n // 20) for n in SPARSE}
    small, large = (min(ours(graphs[n], n, 2**14)[0] for _ in range(2)) for n in SPARSE)
    pairs = {n: n * (k - k * k / (n - 1) / 2) for n, (k, _, _) in graphs.items()}  # drawn by one of them, or by both
    growth = pairs[many] / pairs[few]
    result.check(f"{many} clients instead of {few}, pairs with a mask over the time", growth * small / large, 0.8)
