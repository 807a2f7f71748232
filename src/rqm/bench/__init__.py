"""Benchmarks: each says how many times faster we are than a peer measured in the same run."""

import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from rqm.mechanisms.rqm import RQM
from rqm.privacy.worst_case import renyi


@dataclass(frozen=True)
class Result:
    """``ratios``: for each peer, its time over ours; ``seconds``: the medians behind them."""

    name: str
    machine: str
    ratios: dict[str, float]
    seconds: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return asdict(self)


def compare(name: str, ours: Callable[[], object], peers: dict[str, Callable[[], object]], repeats: int = 7) -> Result:
    """Time ours and the peers in turns, so that a busy moment of the machine hits them all."""
    runs = {"rqm": ours, **peers}
    times: dict[str, list[float]] = {who: [] for who in runs}
    for run in runs.values():
        run()  # compile, fill caches
    for _ in range(repeats):
        for who, run in runs.items():
            start = perf_counter()
            run()
            times[who].append(perf_counter() - start)
    seconds = {who: median(taken) for who, taken in times.items()}
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    return Result(name, machine, {who: seconds[who] / seconds["rqm"] for who in peers}, seconds)


def divergence() -> Result:
    """D_α of the sum over 40 clients, for three orders, against the same sum in log-domain NumPy."""
    mech, clients, orders = RQM(), 40, [2, 8, 32]
    low, high = mech.log_pmf([-1.0, 1.0])

    def log_convolve(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        terms = np.full((len(b), len(a) + len(b) - 1), -np.inf)
        for k, value in enumerate(b):
            terms[k, k : k + len(a)] = a + value
        return np.asarray(logsumexp(terms, axis=0))

    def numpy_logs() -> list[float]:
        others = np.zeros(1)
        for k in range(clients - 1):
            others = log_convolve(others, high if k >= (clients - 1) // 2 else low)
        p, q = log_convolve(others, high), log_convolve(others, low)
        both = [(p, q), (q, p)]
        return [max(float(logsumexp(a * x - (a - 1) * y)) / (a - 1) for x, y in both) for a in orders]

    def ours() -> list[float]:
        return [bound.lower for bound in renyi(mech, orders, clients, "balanced")]

    np.testing.assert_allclose(ours(), numpy_logs(), rtol=1e-9)  # the same numbers, or the race means nothing
    return compare("divergence", ours, {"numpy log-domain": numpy_logs})


BENCHMARKS: dict[str, Callable[[], Result]] = {"divergence": divergence}
