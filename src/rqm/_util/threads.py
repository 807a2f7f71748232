"""Threads: how many to use, and work that is divided among them."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from pathlib import Path


@cache
def usable_cores() -> int:
    """The number of processors that this process may use.

    Containers limit it below the number of processors by the quota of their control group.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return cores if quota == "max" else max(1, min(cores, round(int(quota) / int(period))))
    except (OSError, ValueError):
        return cores


def wait_quietly() -> None:
    """Let idle threads of torch sleep instead of spin, unless the user chose otherwise.

    It must be called before torch is imported. Spinning threads slow down those with work.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def fill_in_parallel(fill: Callable[[slice], None], count: int, min_cells: int = 16) -> None:
    """Fill the cells of a table on several threads. A free thread takes the next slice.

    Args:
        fill: Called with each slice of cells.
        count: Number of cells.
        min_cells: Cells of a slice; with fewer than two slices one thread does all the work.
    """
    cores = usable_cores()
    if cores == 1 or count < 2 * min_cells:
        fill(slice(0, count))
        return
    step = max(min_cells, -(-count // (4 * cores)))
    slices = iter([slice(k, min(k + step, count)) for k in range(0, count, step)])

    def work() -> None:
        for cells in slices:
            fill(cells)

    futures = [_pool(cores, os.getpid()).submit(work) for _ in range(cores - 1)]
    work()
    for future in futures:
        future.result()


@lru_cache(maxsize=1)
def _pool(cores: int, process: int) -> ThreadPoolExecutor:
    """A pool that is used thousands of times. A forked process has its own."""
    return ThreadPoolExecutor(max_workers=cores)
