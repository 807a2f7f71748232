"""Many small clients: clients a second against the number of clients in a round, and a round out of a million users.

Two pictures each and the small model, full local gradients. Ours (with RQM's encoding) against one client after the
other, against Apple's pfl with a central Gaussian, and against Flower's simulation engine with plain averaging: the
last two do no encoding. Rounds of 1,000 clients with ten pictures each, read from disk out of 10⁴ and out of 10⁶
users, in turns, in a process each: their time a client, and the most memory that the process holds.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import numpy as np

from benchmarks import Entry, Result, measure
from benchmarks.encode import peer_python
from benchmarks.flower import round_seconds
from benchmarks.round import PLAN, Pfl, federation, of_clients
from rqm.data.memory_mapped import save_to_disk
from rqm.simulation.loop import RunState

EACH = 2
SIZES = [int(size) for size in os.environ.get("RQM_SCALE", "100,1000,10000").split(",")]
"""Clients of a round; ``RQM_SCALE=100,1000,10000,100000,1000000`` goes on."""
MEDIUM = 1_000
"""Clients of the rounds in which all contenders are compared."""
FLOWERS = 100
"""Clients of a round of Flower's simulation: in larger ones it takes longer for each."""
USERS = 10**4, 10**6
SMALL = replace(PLAN, model="small-cnn", device="cpu")
LOOP, PFL, FLOWER = "one client after the other", "pfl 0.6.0, central Gaussian", "Flower's simulation, plain averaging"
ROUNDS = 9
"""Rounds out of each population on disk, the first of which does not count."""
ROUND = """
import json, sys, time
from benchmarks.round import of_clients, peak
from benchmarks.scale import SMALL
from rqm.data.memory_mapped import load_from_disk
from rqm.simulation.loop import RunState
data = load_from_disk(sys.argv[1])
trainer = RunState(of_clients(SMALL, 1000), data)
for _ in sys.stdin:
    start = time.perf_counter()
    trainer.step()
    print(json.dumps([time.perf_counter() - start, peak()]), flush=True)
"""


def name_of(count: int) -> str:
    """What a round of so many clients is called."""
    return f"ours, {count:,} clients a round"


def trainers(count: int) -> tuple[RunState, RunState]:
    """Rounds of so many clients: many at once, and one after the other."""
    data = federation(max(count, 1_000), EACH)
    ours, loop = (RunState(of_clients(SMALL, count), data) for _ in range(2))
    loop.updates.groups = None
    return ours, loop


def flower(clients: int, each: int = EACH, which: str = "small", rounds: int = 3) -> list[float]:
    """Seconds of each round of Flower's simulation but the first."""
    with tempfile.TemporaryDirectory() as home:
        return round_seconds("scale_flower", (which, clients, each, rounds), rounds, home)


def written(users: int, folder: Path) -> Path:
    """So many users of ten pictures on disk."""
    rng = np.random.default_rng(0)
    some = rng.integers(0, 256, size=(100, 10, 28, 28), dtype=np.uint8)
    each = ((some[user % 100], rng.integers(0, 62, size=10)) for user in range(users))
    return save_to_disk(folder / str(users), each, name="noise")


def from_disk(places: list[Path]) -> list[dict[str, float]]:
    """Seconds a client and peak memory in MB of rounds of 1,000 clients out of each folder, in turns.

    Each has a process of its own, which carries out a round for every line that it is given.
    """
    found: list[list[list[float]]] = [[] for _ in places]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", ROUND, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            for place in places
        ]
        for _ in range(ROUNDS):
            for process, rounds in zip(processes, found, strict=True):
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write("\n")
                process.stdin.flush()
                rounds.append(json.loads(process.stdout.readline()))
    return [{"each": median(seconds for seconds, _ in rounds[1:]) / 1_000, "peak": rounds[-1][1]} for rounds in found]


def processor(runs: list[Callable[[], object]], repeats: int = 9) -> list[float]:
    """Seconds of the processor, of all threads together, that each takes: the median of some turns."""
    found: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats):
        for run, times in zip(runs, found, strict=True):
            start = process_time()
            run()
            times.append(process_time() - start)
    return [median(times) for times in found]


def compared(notes: list[str], peers: list[str]) -> tuple[dict[str, Entry], float]:
    """Rounds of a thousand clients of everybody who is there, in turns; Flower's engine in a process beside.

    Also, how many times less of the processor ours take than one client after the other: the clock tells the same
    where nobody else uses the machine.
    """
    ours, loop = trainers(MEDIUM)
    runs: dict[str, tuple[Callable[[], object], int]] = {
        name_of(MEDIUM): (ours.step, MEDIUM),
        LOOP: (loop.step, MEDIUM),
    }
    with ExitStack() as stack:
        python = peer_python()
        if python is None:
            notes.append("pfl was not measured: it is not installed (make peers).")
        else:
            pfl = Pfl(python, "small", MEDIUM, EACH)
            stack.callback(pfl.process.kill)
            runs[PFL] = (pfl.round, MEDIUM)
        entries = measure(runs, repeats=7)
    less = processor([loop.step, ours.step])
    peers += [LOOP] + [PFL] * (PFL in entries)
    if find_spec("ray") is None:
        notes.append("Flower's simulation was not measured: it is not installed (make setup).")
    else:
        before = perf_counter()
        entries[FLOWER] = Entry(median(flower(FLOWERS)), FLOWERS)
        notes.append(f"Flower's engine took {perf_counter() - before:.0f} s in all, start included.")
        peers.append(FLOWER)
    return entries, less[0] / less[1]


def bench() -> Result:
    """All contenders at a thousand clients, ours at every size, and two rounds from disk."""
    notes: list[str] = []
    peers: list[str] = []
    entries, less = compared(notes, peers)
    for count in SIZES:
        if count != MEDIUM:
            ours, _ = trainers(count)
            ours.step()
            entries |= measure({name_of(count): (ours.step, count)}, repeats=1 if count > 10_000 else 3)
    result = Result("scale", name_of(MEDIUM), peers, entries, notes=notes, unit="clients a second")
    for peer, wanted in ((LOOP, 4), (PFL, 3), (FLOWER, 5)):
        if peer in peers:
            result.check(f"over {peer}", result.ratio(name_of(MEDIUM), peer), wanted)
    result.check(f"over {LOOP}, in seconds of the processor", less, 4)
    with tempfile.TemporaryDirectory(dir=os.environ.get("RQM_SCALE_DIR")) as folder:
        few, many = from_disk([written(users, Path(folder)) for users in USERS])
    for users, found in zip(USERS, (few, many), strict=True):
        notes.append(
            f"A round of 1,000 clients with ten pictures each out of {users:,} users on disk: "
            f"{1e3 * found['each']:.2f} ms a client, {found['peak']:.0f} MB at most."
        )
    result.check("a client out of 10⁴ users over one out of 10⁶, time", few["each"] / many["each"], 1 / 1.2)
    result.check("1 GB over the memory of a round out of 10⁶ users", 1024 / many["peak"], 1)
    return result
