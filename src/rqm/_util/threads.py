"""How many threads to use, and how to wait without being in others' way."""

import os
from functools import cache
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
