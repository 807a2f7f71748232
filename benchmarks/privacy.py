"""What a user waits for a privacy statement, against version 0.1.0: whole commands, start-up included.

Nothing is kept on disk for either side, but bytecode and the compiler's cache: as on the second day of use.
"""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks import Entry, Result

HERE = Path(__file__).resolve().parents[1]
BEFORE = "1a0f7ee"
"""Version 0.1.0."""
JOBS = {
    "privacy --clients 40": (["privacy", "--clients", "40"], 5.0),
    "account glyphs": (["account", "glyphs"], 5.0),
    "figures": (["figures", "--out", "figures"], 2.0),
}
"""What both sides do, and how many times faster this one is to be."""
LARGE = {
    "privacy --clients 100000": ["privacy", "--clients", "100000"],
    "privacy --mechanism pbm --clients 10000": ["privacy", "--mechanism", "pbm", "--clients", "10000"],
}
"""What version 0.1.0 does not end within a minute: it is to take no longer than 40 clients took there."""
REPEATS = {"figures": 1}


def install(folder: Path) -> Path:
    """The source of version 0.1.0, from the history of this clone."""
    archive = subprocess.run(
        ["git", "-C", str(HERE), "archive", "--format=tar", BEFORE, "src"], capture_output=True, check=True
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return folder / "src"


def seconds(source: Path, folder: Path, command: list[str]) -> float:
    """How long a command takes with the package in ``source``."""
    environment = {**os.environ, "PYTHONPATH": str(source), "RQM_CACHE": "off"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # or every start would compile the sources again
    start = perf_counter()
    subprocess.run(
        [sys.executable, "-m", "rqm", *command], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL
    )
    return perf_counter() - start


def bench() -> Result:
    """All jobs, both sides in turns."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        sides = {"rqm": HERE / "src", "rqm 0.1.0": install(folder)}
        entries: dict[str, Entry] = {}
        ratios: dict[str, float] = {}
        for source in sides.values():  # compile
            seconds(source, folder, ["privacy", "--clients", "12"])
            seconds(source, folder, ["privacy", "--mechanism", "pbm", "--clients", "3"])
        for job, (command, _) in JOBS.items():
            times: dict[str, list[float]] = {side: [] for side in sides}
            for _ in range(REPEATS.get(job, 5)):
                for side, source in sides.items():
                    times[side].append(seconds(source, folder, command))
            for side in sides:
                entries[f"{side}: {job}"] = Entry(median(times[side]), 1)
            ratios[job] = median(times["rqm 0.1.0"]) / median(times["rqm"])
        allowed = entries["rqm 0.1.0: privacy --clients 40"].seconds
        for job, command in LARGE.items():
            entries[f"rqm: {job}"] = Entry(median(seconds(sides["rqm"], folder, command) for _ in range(3)), 1)
            ratios[job] = allowed / entries[f"rqm: {job}"].seconds
    result = Result(
        "privacy",
        "rqm",
        [],
        entries,
        named_ratios=ratios,
        unit="runs a second",
        notes=[
            "whole commands, start-up included; machine code is kept (numba's cache), no answer is (RQM_CACHE=off): "
            "every certificate is worked out anew",
            "many clients: against the time that 0.1.0 takes for 40, since it does not end for as many",
        ],
    )
    for job, (_, wanted) in JOBS.items():
        result.check(f"{job}, times faster than 0.1.0", ratios[job], wanted)
    for job in LARGE:
        result.check(f"{job}, within the time of 40 clients in 0.1.0", ratios[job], 1.0)
    return result
