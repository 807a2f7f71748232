"""Benchmarks: each says how many times faster we are than a peer measured in the same run."""

import json
import os
import platform
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

BENCHMARKS = {
    "divergence": "D_α of the sum over 40 clients against log-domain NumPy",
    "privacy": "certificates, accounts and figures against version 0.1.0, start-up included and nothing kept on disk",
    "encode": "the CPU encoder and the packing of bits against samplers of NumPy, torch and OpenDP",
    "cuda": "the GPU encoder against torch, on 40 clients of a million coordinates (needs a GPU)",
    "round": "a whole federated round of the paper's model against Apple's pfl and a plain torch loop",
    "scale": "many small clients, a thousand a round out of a million users, against pfl and Flower's simulation",
    "cifar": "pfl's published CIFAR-10 configuration against pfl and Flower's simulation",
    "records": "clipped gradients of records of the paper's model against Opacus, on the CPU and on a GPU",
    "secagg": "secure aggregation of a million coordinates from 40 clients against Flower's SecAgg+",
    "start": "the five short scripts of the documents, from nothing to a first result, over importing torch",
    "flower": "a round of 40 clients in Flower's simulation engine against its SecAgg+",
}


LOAD = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
"""How many processes wanted a processor in the minute before: beside others every contender is slower."""


def machine_name() -> str:
    """The processor, its cores and the Python that runs on it."""
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        model = found[1].strip() if found else model
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"


@dataclass(frozen=True)
class Entry:
    """One contender: the median time of a run and the items it handled (coordinates, unless said otherwise)."""

    seconds: float
    items: int

    @property
    def rate(self) -> float:
        """Items a second."""
        return self.items / self.seconds


@dataclass(frozen=True)
class Result:
    """``ratios``: for each peer, how many times faster ours is; ``entries``: what was measured, in ``unit``."""

    name: str
    ours: str
    peers: list[str]
    entries: dict[str, Entry]
    checks: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    named_ratios: dict[str, float] = field(default_factory=dict)
    unit: str = "million coordinates a second"
    machine: str = field(default_factory=machine_name)

    def shown(self, name: str) -> float:
        """The rate of an entry in the unit of this benchmark."""
        return self.entries[name].rate / (1e6 if self.unit.startswith("million") else 1)

    @property
    def ratios(self) -> dict[str, float]:
        """How many times faster ours is than each peer, item for item; and other ratios by name."""
        return {peer: self.ratio(self.ours, peer) for peer in self.peers} | self.named_ratios

    def ratio(self, one: str, other: str) -> float:
        """How many times faster one entry is than another."""
        return self.entries[one].rate / self.entries[other].rate

    def check(self, what: str, value: float, at_least: float) -> None:
        """Note a measured ratio beside the one that is aimed at."""
        self.checks[what] = {"measured": value, "wanted": at_least}

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        rates = {name: entry.rate for name, entry in self.entries.items()}
        about = {"command": f"rqm bench {self.name}", "load_before": LOAD}
        return {**asdict(self), "ratios": self.ratios, "rates": rates, **about}

    def save(self, folder: Path) -> list[Path]:
        """Write ``NAME.json`` and, where matplotlib is installed, the bar chart ``NAME.png``."""
        folder.mkdir(parents=True, exist_ok=True)
        written = [folder / f"{self.name}.json"]
        written[0].write_text(json.dumps(self.to_dict(), indent=1) + "\n")
        try:
            from benchmarks.bars import draw  # noqa: PLC0415 (an extra)
        except ModuleNotFoundError:
            return written
        return [*written, draw(self, folder / f"{self.name}.png")]


def measure(runs: dict[str, tuple[Callable[[], object], int]], repeats: int = 5) -> dict[str, Entry]:
    """Time all contenders in turns, so that a busy moment of the machine hits them all.

    Each is given as a function and the number of items that one call of it handles. In its turn a contender runs for
    at least a tenth of a second, and the first run does not count unless it is the only one: none pays for the caches
    that its predecessor left.
    """
    times: dict[str, list[float]] = {who: [] for who in runs}
    for run, _ in runs.values():
        run()  # compile
    for _ in range(repeats):
        for who, (run, _) in runs.items():
            turn: list[float] = []
            while sum(turn) < 0.1 and len(turn) < 50:
                start = perf_counter()
                run()
                turn.append(perf_counter() - start)
            times[who].append(median(turn[1:] or turn))
    return {who: Entry(median(times[who]), items) for who, (_, items) in runs.items()}


def run(name: str) -> Result:
    """Run a benchmark by its name."""
    if name not in BENCHMARKS:
        from rqm._util.checks import nearest  # noqa: PLC0415 (what is measured is loaded when it is)

        raise ValueError(f"NAME = {name}: must be among {', '.join(BENCHMARKS)}{nearest(name, BENCHMARKS)}")
    result: Result = import_module(f"benchmarks.{name}").bench()
    return result
