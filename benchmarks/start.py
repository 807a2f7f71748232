"""From nothing to a first result: each of the five short scripts of the documents in a process of its own.

What is compared is importing torch, which three of them cannot do without. The first run of each fills the caches that
a user's second run finds, too, and does not count.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks import Entry, Result

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "scripts.md"
TORCH = "import torch"
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


def bench(repeats: int = REPEATS) -> Result:
    """All of them in turns, each as a ratio to importing torch: how many times longer that takes."""
    jobs = {TORCH: TORCH, **scripts()}
    for code in jobs.values():
        seconds(code)
    times = {name: [seconds(code) for _ in range(repeats)] for name, code in jobs.items()}
    entries = {name: Entry(median(found), 1) for name, found in times.items()}
    ratios = {f"{name}, over importing torch": entries[name].seconds / entries[TORCH].seconds for name in scripts()}
    notes = [f"{name}: {ratio:.3g} times as long" for name, ratio in ratios.items()]
    return Result("start", TORCH, [], entries, notes=notes, named_ratios=ratios, unit="runs a second")
