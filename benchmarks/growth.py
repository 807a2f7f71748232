"""How time and memory grow: with coordinates, clients, levels and rounds.

``OPENBLAS_NUM_THREADS=1 python -m benchmarks.growth --out DIR`` (a few minutes) writes ``growth.json`` and
``growth.png``. Seconds are those of the processor, of all threads together, so that a busy machine changes them little;
memory is what a fresh process holds at most beyond what it holds before. The slope is that of the logarithms over the
last two decades: 1 is linear. Vectors that fit the processor's cache, and memory that a process has at hand, take less
for each coordinate: so of coordinates there is also the slope beyond the cache.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import numpy as np

from benchmarks import machine_name
from rqm import RQM, SecureRandom, SeededRandom, StochasticRounding, private_mean

COORDINATES = [2**k for k in range(10, 27, 2)]
CLIENTS = [10, 100, 1_000, 10_000, 100_000, 1_000_000]
LEVELS = [2, 4, 16, 64, 256]
ROUNDS = [1, 10, 100, 1_000, 10_000]
WIDTH = 2**10
"""Coordinates of a client where clients are counted."""
MEMORY = """
import sys
from benchmarks.growth import {job}, peak
{job}(1024)()
job = {job}(int(sys.argv[1]))
before = peak()
job()
print(peak() - before)
"""

Job = Callable[[], object]


def message(count: int) -> Job:
    """One client's message of so many coordinates: clip, rotation, secure words."""
    mean = private_mean(dim=count, clients=100, mechanism=StochasticRounding(clip=1.0, levels=2, margin=20.0))
    x = np.full(count, 1e-3, dtype=np.float32)
    return lambda: mean.encode(x, SecureRandom())


def decoding(count: int) -> Job:
    """The server's mean of so many coordinates from a sum."""
    mean = private_mean(dim=count, clients=100, mechanism=StochasticRounding(clip=1.0, levels=2, margin=20.0))
    total = np.full(mean.coordinates, 50, dtype=np.int64)
    return lambda: mean.decode(total, 100)


def summing(clients: int) -> Job:
    """The sum of so many clients' encoded vectors, a thousand at a time."""
    mech, rng = RQM(), SeededRandom(0)
    rows = np.zeros((min(clients, 1_000), WIDTH), dtype=np.float32)
    total = np.zeros(WIDTH, dtype=np.int32)

    def run() -> None:
        total[:] = 0
        for _ in range(0, clients, len(rows)):
            mech.encode_sum(rows, rng, out=total, threads=1, check=False)

    return run


def encoding(levels: int) -> Job:
    """A million coordinates with so many levels."""
    mech, rng, x = RQM(levels=levels), SeededRandom(0), np.zeros(2**20, dtype=np.float32)
    return lambda: mech.encode(x, rng, threads=1)


def charging(rounds: int) -> Job:
    """A ledger of so many rounds, each charged and on the disk; and what they cost in all."""
    from rqm.ledger.budget_guard import Guard  # noqa: PLC0415 (what is not measured does without)

    mean = private_mean(
        dim=1000, clients=100, rounds=rounds, mechanism=StochasticRounding(clip=1.0, levels=2, margin=20.0)
    )

    def run() -> None:
        with TemporaryDirectory() as folder, Guard(mean, Path(folder)) as guard:
            for turn in range(rounds):
                guard.charge(turn)
            guard.epsilon()

    return run


STUDIES: dict[str, tuple[Callable[..., Job], list[int], str, bool]] = {
    "message": (message, COORDINATES, "a client's message, against coordinates", True),
    "decoding": (decoding, COORDINATES, "the server's mean, against coordinates", True),
    "summing": (summing, CLIENTS, f"the sum of clients of {WIDTH:,} coordinates, against clients", True),
    "encoding": (encoding, LEVELS, "2²⁰ coordinates, against levels", False),
    "charging": (charging, ROUNDS, "a ledger and its ε, against rounds", False),
}


def peak() -> float:
    """The most memory that this process has held, in MB (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def seconds(job: Job) -> float:
    """Seconds of the processor for one call: the least of a few."""
    job()
    found: list[float] = []
    while len(found) < 3 or (sum(found) < 0.2 and len(found) < 50):
        start = process_time()
        job()
        found.append(process_time() - start)
        if found[-1] > 5:
            break
    return min(found)


def megabytes(name: str, size: int) -> float:
    """What one call takes in a fresh process."""
    code = MEMORY.format(job=name)
    done = subprocess.run([sys.executable, "-c", code, str(size)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def cache() -> int:
    """Bytes of the processor's largest cache (Linux); 32 MiB where nobody says."""
    found = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((1024 * int(size[:-1]) for size in found if size.endswith("K")), default=2**25)


def slope(sizes: list[int], values: list[float], least: float = 0) -> float:
    """Of the logarithms, over the last two decades, of sizes that are not below the ``least``."""
    last = [k for k, size in enumerate(sizes) if size * 100 >= sizes[-1] and size >= least]
    x, y = np.log([sizes[k] for k in last]), np.log([max(values[k], 1e-9) for k in last])
    return float(np.polyfit(x, y, 1)[0])


def study(most: float = 1.0) -> dict[str, Any]:
    """All of them; of each only the part up to ``most`` of the largest size."""
    found: dict[str, Any] = {
        "machine": machine_name(),
        "command": "OPENBLAS_NUM_THREADS=1 python -m benchmarks.growth",
        "studies": {},
    }
    for name, (make, all_sizes, what, memory) in STUDIES.items():
        sizes = [size for size in all_sizes if size <= most * all_sizes[-1]]
        times = [seconds(make(size)) for size in sizes]
        held = [megabytes(name, size) for size in sizes] if memory else []
        found["studies"][name] = {"what": what, "sizes": sizes, "seconds": times, "slope": slope(sizes, times)}
        if all_sizes is COORDINATES and sizes[-1] > cache() / 8:
            found["studies"][name]["slope_beyond_cache"] = slope(sizes, times, cache() / 8)
        if memory:
            found["studies"][name] |= {"megabytes": held, "memory_slope": slope(sizes, held)}
        print(name, found["studies"][name], flush=True)
    return found


def draw(found: dict[str, Any], path: Path) -> Path:
    """A plot for every study: seconds, and memory where it was measured."""
    from matplotlib.figure import Figure  # noqa: PLC0415 (an extra)

    figure = Figure(figsize=(12, 6.4), layout="constrained")
    places = list(figure.subplots(2, 3).flat)
    for axes in places[len(found["studies"]) :]:
        axes.set_axis_off()
    for axes, one in zip(places, found["studies"].values(), strict=False):
        sizes = one["sizes"]
        beyond = f", beyond the cache {one['slope_beyond_cache']:.2f}" if "slope_beyond_cache" in one else ""
        axes.loglog(
            sizes,
            one["seconds"],
            "o-",
            color="#1b6ca8",
            label=f"seconds, slope {round(one['slope'], 2) + 0:.2f}{beyond}",
        )
        if "megabytes" in one:
            axes.loglog(
                sizes, np.maximum(one["megabytes"], 0.1), "s--", color="#b8bec6", label=f"MB, {one['memory_slope']:.2f}"
            )
        if max(one["seconds"]) < 10 * min(one["seconds"]):  # or a thousandth would look like a cliff
            axes.set_ylim(min(one["seconds"]) / 10, max(one["seconds"]) * 10)
        axes.set_title(one["what"], fontsize=9)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)
    return path


if __name__ == "__main__":
    _parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    _parser.add_argument("--out", type=Path, default=Path("out/bench"))
    _parser.add_argument("--most", type=float, default=1.0, help="Up to this part of the largest sizes.")
    _given = _parser.parse_args()
    _out = _given.out
    _out.mkdir(parents=True, exist_ok=True)
    _found = study(_given.most)
    (_out / "growth.json").write_text(json.dumps(_found, indent=1) + "\n")
    print(draw(_found, _out / "growth.png"))
