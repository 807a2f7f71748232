"""From nothing to a first result: each of the five short scripts of the documents in a process of its own.

What is compared is importing torch, which three of them cannot do without. The first run of each fills the caches that
a user's second run finds, too, and does not count. And ``rqm train``: from its start to the end of its first round.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep

from benchmarks import Entry, Result

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "scripts.md"
TORCH = "import torch"
ROUND = "rqm train glyphs, to the end of its first round"
REPEATS = 3


def scripts(page: Path = PAGE) -> dict[str, str]:
    """The scripts of the page, by their headings."""
    parts = (part.split("\n", 1) for part in re.split(r"^## ", page.read_text(), flags=re.M)[1:])
    return {title: text.split("```python\n")[1].split("```")[0] for title, text in parts}


def seconds(code: str) -> float:
    """How long Python takes to start, to run this and to end."""
    with TemporaryDirectory() as folder:
        environment = {**os.environ, "MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT / "src")}
        start = perf_counter()
        subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, check=True, capture_output=True)
        return perf_counter() - start


def first_round() -> float:
    """How long ``rqm train`` takes until its first round is written down, data and evaluation included."""
    with TemporaryDirectory() as folder:
        told = Path(folder) / "run" / "metrics.jsonl"
        command = ["-m", "rqm", "train", "glyphs", "--set", "rounds=1", "--out", str(told.parent)]
        start = perf_counter()
        process = subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while process.poll() is None and not (told.exists() and told.stat().st_size):
            sleep(0.005)
        found = perf_counter() - start
        if process.wait():
            raise RuntimeError("rqm train did not end well")
        return found


def bench(repeats: int = REPEATS) -> Result:
    """All of them in turns, each as a ratio to importing torch: how many times longer that takes."""
    jobs = {TORCH: TORCH, **scripts()}
    for code in jobs.values():
        seconds(code)
    times = {name: [seconds(code) for _ in range(repeats)] for name, code in jobs.items()}
    entries = {name: Entry(median(found), 1) for name, found in times.items()}
    first_round()
    entries[ROUND] = Entry(median(first_round() for _ in range(repeats)), 1)
    ratios = {f"{name}, over importing torch": entries[name].seconds / entries[TORCH].seconds for name in scripts()}
    notes = [f"{name}: {ratio:.3g} times as long" for name, ratio in ratios.items()]
    result = Result("start", TORCH, [], entries, notes=notes, named_ratios=ratios, unit="runs a second")
    beyond = entries[ROUND].seconds - entries[TORCH].seconds
    notes.append(f"{ROUND}: {beyond:.2f} s beyond importing torch")
    result.check("3 s over a first round of rqm train, beyond importing torch", 3 / max(beyond, 1e-9), 1)
    return result
