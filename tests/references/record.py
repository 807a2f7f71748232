"""Record the reference outputs: `python -m tests.references.record [GROUP ...]` writes `data/GROUP.json`.

Each file holds the environment that it was recorded in, and one scenario with its result per line. Without
groups all of them are recorded, which takes about a quarter of an hour. Floats are written with all their digits.
"""

import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch
from llvmlite.binding import get_host_cpu_name

from tests.references import adapter, scenarios
from tests.references.scenarios import Scenario

DATA = Path(__file__).parent / "data"
GROUPS: dict[str, Callable[[], list[Scenario]]] = {
    "encodings": scenarios.encodings,
    "models": scenarios.models,
    "transcripts": scenarios.transcripts,
    "ledgers": scenarios.ledgers,
    "bounds": scenarios.bounds,
    "calibrations": scenarios.calibrations,
    "experiments": scenarios.experiments,
    "block_certificates": scenarios.block_certificates,
    "settings": scenarios.settings,
}
"""The groups of scenarios, the fast ones first."""
EXPECTED_ERRORS = (ValueError, TypeError)
"""What the library raises for scenarios that it refuses; the type is recorded."""


def environment() -> dict[str, str]:
    """What the last bits of floating-point results can depend on."""
    return {
        "machine": platform.machine(),
        "processor": get_host_cpu_name(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "numpy": np.__version__,
        "torch": torch.__version__,
    }


@contextmanager
def isolated() -> Iterator[None]:
    """No cache on disk, keys and witnesses in a folder of their own, and one thread."""
    names, threads = ("RQM_CACHE", "RQM_STATE"), torch.get_num_threads()
    previous = {name: os.environ.get(name) for name in names}
    with TemporaryDirectory(prefix="rqm-references-state-") as state:
        os.environ |= {"RQM_CACHE": "off", "RQM_STATE": state}
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            for name, value in previous.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def compute(scenario: Scenario, *, may_fail: bool = True) -> Any:
    """The result of a scenario as JSON holds it; it does not depend on the scenarios computed earlier.

    Args:
        scenario: What to compute.
        may_fail: Whether a refused scenario gives the type of the error, or raises it.
    """
    adapter.clear_caches()
    try:
        result = getattr(adapter, scenario["function"])(scenario)
    except EXPECTED_ERRORS as error:
        if not may_fail:
            raise
        result = {"error": type(error).__name__}
    return json.loads(json.dumps(result, allow_nan=False))


def write(group: str, entries: list[dict[str, Any]]) -> Path:
    """Write a group's scenarios and results, one per line."""
    lines = ",\n".join(json.dumps(entry, separators=(",", ":"), ensure_ascii=False) for entry in entries)
    path = DATA / f"{group}.json"
    path.write_text(f'{{"environment":{json.dumps(environment())},"entries":[\n{lines}\n]}}\n', encoding="utf-8")
    return path


def read(group: str) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The environment that a group was recorded in, and its scenarios with their results."""
    data = json.loads((DATA / f"{group}.json").read_text(encoding="utf-8"))
    return data["environment"], data["entries"]


def record(group: str) -> None:
    """Compute and write all results of a group."""
    chosen, entries, start = GROUPS[group](), [], perf_counter()
    for number, scenario in enumerate(chosen, start=1):
        scenario_start = perf_counter()
        entries.append({"scenario": scenario, "result": compute(scenario)})
        seconds = perf_counter() - scenario_start
        if seconds > 5 or number % 50 == 0:
            print(f"{group}: {number} of {len(chosen)}, {scenario['id']} took {seconds:.1f} s", flush=True)
    path = write(group, entries)
    size, errors = path.stat().st_size / 1e6, sum("error" in entry["result"] for entry in entries)
    seconds = perf_counter() - start
    print(f"{group}: {len(entries)} scenarios, {errors} errors, {size:.2f} MB, {seconds:.0f} s", flush=True)


def main(groups: list[str]) -> None:
    """Record some groups, or all."""
    unknown = set(groups) - GROUPS.keys()
    if unknown:
        raise SystemExit(f"unknown groups: {', '.join(sorted(unknown))}; known are {', '.join(GROUPS)}")
    DATA.mkdir(exist_ok=True)
    with isolated():
        for group in groups or GROUPS:
            record(group)


if __name__ == "__main__":
    main(sys.argv[1:])
