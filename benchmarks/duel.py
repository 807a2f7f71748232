"""This checkout against another one, turn by turn: the ratio of medians, of calls that take turns a moment apart.

    git worktree add ../before COMMIT
    python -m benchmarks.duel ../before

A machine whose speed drifts by tenths from one minute to the next still tells a few hundredths apart this way. Below 1
this checkout is faster. Both run with the packages that are installed here.
"""

import os
import random
import subprocess
import sys
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parents[1]
CALLS = {"encode seeded": 100, "encode secure": 100, "round": 150, "round rotated": 150, "secagg": 100, "privacy": 60}
"""How often each is called on both sides."""

JOBS = """
import sys, time
import numpy as np, torch
from rqm import RQM, Plan, Rounding, SecureRandom, SeededRandom, renyi
from rqm.data.clients import Clients, FederatedData
from rqm.plan.plan import Transforms
from rqm.secagg import Params
from rqm.secagg.local import aggregate
from rqm.training.trainer import Trainer
rng, count = np.random.default_rng(0), 800
images = torch.from_numpy(rng.integers(0, 256, size=(count + 8, 28, 28), dtype=np.uint8))
labels = torch.from_numpy(rng.integers(0, 62, size=count + 8))
train = Clients(images[:count], labels[:count], 20 * np.arange(41))
data = FederatedData("noise", train, images[count:], labels[count:], 62)
def steps(**some):
    size = dict(model="small-cnn", clients=40, rounds=10**6, evaluate_every=10**6, device="cpu")
    return Trainer(Plan(**size, **some), data).step
x, mech, keep = (0.4 * rng.standard_normal(4_000_000)).astype(np.float32), RQM(), iter(np.arange(0.4, 0.5, 1e-6))
values, one_bit = rng.integers(0, 16, size=2**18), Rounding(clip=0.0125, margin=60.0, levels=2)
jobs = {
    "encode seeded": lambda: mech.encode(x, SeededRandom(1), threads=1),
    "encode secure": lambda: mech.encode(x, SecureRandom(), threads=1),
    "round": steps(mechanism=RQM(clip=0.1)),
    "round rotated": steps(mechanism=one_bit, transforms=Transforms(1.0, rotate=True)),
    "secagg": lambda: aggregate(
        Params(clients=10, count=2**18, levels=16, round=b"1", threshold=7), lambda u: values
    ),
    "privacy": lambda: renyi(RQM(keep=float(next(keep))), [2, 8], 16),
}
for line in sys.stdin:
    job, start = jobs[line.strip()], time.perf_counter()
    job()
    print(time.perf_counter() - start, flush=True)
"""


def start(checkout: Path) -> subprocess.Popen[str]:
    """A process of one side, which does what it is told."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", JOBS], env=environment, stdin=pipe, stdout=pipe, text=True)


def ask(side: subprocess.Popen[str], job: str) -> float:
    """The seconds that a side took."""
    assert side.stdin is not None
    assert side.stdout is not None
    side.stdin.write(job + "\n")
    side.stdin.flush()
    return float(side.stdout.readline())


def main() -> None:
    """Print a line for every job."""
    other = Path(sys.argv[1]).resolve()
    sides, chance = (start(other), start(HERE)), random.Random(0)
    for job, count in CALLS.items():
        for side in 2 * sides:
            ask(side, job)  # compiles, and fills caches
        before: list[float] = []
        after: list[float] = []
        for turn in range(count):
            for which in (0, 1) if turn % 2 else (1, 0):
                (before, after)[which].append(ask(sides[which], job))
        ratio = median(after) / median(before)
        again = sorted(
            median(chance.choices(after, k=count)) / median(chance.choices(before, k=count)) for _ in range(400)
        )
        print(
            f"{job:14s} {median(before) * 1e3:8.1f} → {median(after) * 1e3:8.1f} ms: {ratio:.3f} "
            f"(95 %: {again[10]:.3f} to {again[-11]:.3f})",
            flush=True,
        )
    for side in sides:
        side.kill()


if __name__ == "__main__":
    main()
