"""How many threads to use, and how to wait without being in others' way."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")


@cache
def usable_cores() -> int:
    """The processors that this process may really use: those it may run on, or as many as its control group grants."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = QUOTA.read_text().split()
        return cores if quota == "max" else max(1, min(cores, round(int(quota) / int(period))))
    except (OSError, ValueError):
        return cores


def wait_quietly() -> None:
    """Let torch's threads sleep where they would spin: to be called before torch is imported.

    A thread that spins for work takes a core from whoever has some. What the user has set stays.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def in_turns(fill: Callable[[slice], None], count: int, least: int = 16) -> None:
    """Fill so many cells, some on each core where there are enough."""
    cores = usable_cores()
    if cores == 1 or count < 2 * least:
        fill(slice(0, count))
        return
    step = max(least, -(-count // (4 * cores)))
    parts = iter([slice(k, min(k + step, count)) for k in range(0, count, step)])

    def work() -> None:
        for part in parts:  # whoever is free takes the next one
            fill(part)

    others = [_pool(cores, os.getpid()).submit(work) for _ in range(cores - 1)]
    work()  # instead of waiting: there are thousands of turns
    for other in others:
        other.result()


@lru_cache(maxsize=1)
def _pool(cores: int, process: int) -> ThreadPoolExecutor:
    """Threads that are kept: there are thousands of turns. A process that was forked has its own."""
    return ThreadPoolExecutor(max_workers=cores)
