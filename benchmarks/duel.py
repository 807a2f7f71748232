"""This checkout against another one, call by call: time(new) / time(old) with a 95 % interval.

    git worktree add ../before COMMIT
    python -m benchmarks.duel ../before [JOB …]

Calls of the two sides take turns a moment apart, so that a machine whose speed drifts matters little. Below 1 this
checkout is faster. Both run with the packages that are installed here. The jobs are written against the names of this
checkout; `compatible` builds the same with the names from before the redesign.
"""

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parents[1]
CALLS = {
    "encode seeded": 100,
    "encode secure": 100,
    "round": 100,
    "round rotated": 100,
    "round correlated": 100,
    "secagg": 100,
    "flower": 40,
    "divergence": 60,
    "epsilon": 40,
    "epsilon correlated": 15,
    "epsilon sampled": 30,
    "calibration": 15,
}
"""How often each is called on both sides."""

JOBS = """
import sys, tempfile, time
from dataclasses import replace
from itertools import count as counter
from pathlib import Path
import numpy as np, torch
import rqm
from rqm import RQM, Plan, PrivateMean, SecureRandom, SeededRandom, renyi
try:
    from rqm import StochasticRounding
except ImportError:
    from rqm import Rounding as StochasticRounding
try:
    from rqm.data.federated_data import Clients, FederatedData
except ImportError:
    from rqm.data.clients import Clients, FederatedData
from rqm.secagg import Params
from rqm.secagg.local import aggregate
try:
    from rqm.config.plan import Transforms
    from rqm.simulation.loop import RunState
except ImportError:
    from rqm.plan.plan import Transforms
    from rqm.training.trainer import Trainer as RunState

is_old = not hasattr(rqm, "Participation")
OLD = {"max_participations": "participations", "adversary": "observer", "sampling": None}

def compatible(values):
    "Who takes part, with the names of either version."
    if is_old:
        return {OLD.get(name, name): value for name, value in values.items() if OLD.get(name, name) is not None}
    threat = {name: values.pop(name) for name in ("adversary",) if name in values}
    return {"participation": rqm.Participation(**values), "threat_model": rqm.ThreatModel(**threat)}

def noise(std):
    return {"cancel": std} if is_old else {"noise": rqm.CorrelatedNoise(std)}

def epsilon(mechanism, dim, more=None, **values):
    mean = PrivateMean(mechanism=mechanism, dim=dim, delta=1e-6, l2_clip=1.0, **(more or {}), **compatible(values))
    return mean.guarantee.epsilon if is_old else mean.guarantee().epsilon

rng, count = np.random.default_rng(0), 800
images = torch.from_numpy(rng.integers(0, 256, size=(count + 8, 28, 28), dtype=np.uint8))
labels = torch.from_numpy(rng.integers(0, 62, size=count + 8))
train = Clients(images[:count], labels[:count], 20 * np.arange(41))
data = FederatedData("noise", train, images[count:], labels[count:], 62)

def steps(who=None, **some):
    who = compatible({"clients": 40, "rounds": 10**6, "sampling": "uniform", **(who or {})})
    return RunState(Plan(model="small-cnn", evaluate_every=10**6, device="cpu", **who, **some), data).step

def flower():
    "Three rounds of the protocol on Flower's messages, six nodes in this process."
    from rqm.flower import private_mod
    from tests.flower.local import gradient_app
    from tests.flower.test_strategy import PLAIN, train
    app = gradient_app(private_mod)
    def run():
        with tempfile.TemporaryDirectory() as folder:
            result, *_ = train({**PLAIN, "rqm.rounds": 3}, app, Path(folder))
        assert all(metrics["survivors"] for metrics in result.train_metrics_clientapp.values())
    return run

x, mech, keep = (0.4 * rng.standard_normal(4_000_000)).astype(np.float32), RQM(), iter(np.arange(0.4, 0.5, 1e-6))
values, one_bit = rng.integers(0, 16, size=2**18), StochasticRounding(clip=0.0125, margin=60.0, levels=2)
margin = (20.0 + number / 1000 for number in counter())
fresh = lambda clip=4 / 1024: StochasticRounding(clip=clip, levels=2, margin=next(margin))
rotated = dict(transforms=Transforms(1.0, rotate=True))
turns = dict(max_participations=1, sampling="fixed-order", population=41)
makers = {
    "encode seeded": lambda: lambda: mech.encode(x, SeededRandom(1), threads=1),
    "encode secure": lambda: lambda: mech.encode(x, SecureRandom(), threads=1),
    "round": lambda: steps(mechanism=RQM(clip=0.1)),
    "round rotated": lambda: steps(mechanism=one_bit, **rotated),
    "round correlated": lambda: steps({"min_separation" if not is_old else "separation": 1000, "clients": 40,
        "population": 40_000, "sampling": "fixed-order"}, mechanism=one_bit, examples=20, **noise(8.0), **rotated),
    "secagg": lambda: lambda: aggregate(
        Params(clients=10, count=2**18, levels=16, round=b"1", threshold=7), lambda u: values
    ),
    "flower": flower,
    "divergence": lambda: lambda: renyi(RQM(keep=float(next(keep))), [2, 8], 16),
    "epsilon": lambda: lambda: epsilon(fresh(), 2**20, clients=1000, rounds=100, max_participations=1),
    "epsilon correlated": lambda: lambda: epsilon(
        fresh(), 2**20, noise(30.0), clients=1000, rounds=100, max_participations=1),
    "epsilon sampled": lambda: lambda: epsilon(
        fresh(), 2**20, clients=100, rounds=100, population=10**5, sampling="uniform", adversary="outsider"),
    "calibration": lambda: lambda: rqm.calibrate(
        "rounding", levels=2, epsilon=2 + (next(margin) - 20), delta=1e-6, clients=1000, rounds=1, dim=2**20),
}
jobs = {}
print("ready", flush=True)
for line in sys.stdin:
    name = line.strip()
    try:
        job = jobs.setdefault(name, None) or jobs.__setitem__(name, makers[name]()) or jobs[name]
        start = time.perf_counter()
        job()
        print(time.perf_counter() - start, flush=True)
    except Exception as error:
        print("error", name, type(error).__name__, str(error)[:300].replace(chr(10), " "), flush=True)
"""


def start(checkout: Path) -> subprocess.Popen[str]:
    """A process of one side, which runs a job for each line that it reads."""
    environment = {**os.environ, "PYTHONPATH": f"{checkout / 'src'}:{checkout}", "RQM_CACHE": "off"}
    environment["RQM_STATE"] = tempfile.mkdtemp()
    (Path(environment["RQM_STATE"]) / "policy.toml").write_text("trust_server = true\n")
    pipe = subprocess.PIPE
    side = subprocess.Popen(
        [sys.executable, "-c", JOBS],
        env=environment,
        cwd=checkout,
        stdin=pipe,
        stdout=pipe,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert side.stdout is not None
    while line := side.stdout.readline():
        if line.strip() == "ready":
            return side
    raise SystemExit(f"{checkout}: the jobs cannot be run")


def ask(side: subprocess.Popen[str], job: str) -> float:
    """The seconds that a side took."""
    assert side.stdin is not None
    assert side.stdout is not None
    side.stdin.write(job + "\n")
    side.stdin.flush()
    while line := side.stdout.readline():
        if line.startswith("error"):
            raise RuntimeError(line)
        try:
            return float(line)
        except ValueError:  # something that the library printed
            continue
    raise RuntimeError(f"{job}: the process ended")


def duel(sides: tuple[subprocess.Popen[str], subprocess.Popen[str]], job: str, count: int) -> str:
    """A line with the ratio for one job."""
    for side in 2 * sides:
        ask(side, job)  # compiles, and fills caches
    chance = random.Random(0)
    old: list[float] = []
    new: list[float] = []
    for index in range(count):
        for which in (0, 1) if index % 2 else (1, 0):
            (old, new)[which].append(ask(sides[which], job))
    ratios = sorted(median(chance.choices(new, k=count)) / median(chance.choices(old, k=count)) for _ in range(400))
    return (
        f"{job:18s} {median(old) * 1e3:9.1f} → {median(new) * 1e3:9.1f} ms: {median(new) / median(old):.3f} "
        f"(95 %: {ratios[10]:.3f} to {ratios[-11]:.3f})"
    )


def main() -> None:
    """Print a line for every job."""
    other, chosen = Path(sys.argv[1]).resolve(), sys.argv[2:] or list(CALLS)
    sides = start(other), start(HERE)
    for job in chosen:
        try:
            print(duel(sides, job, CALLS[job]), flush=True)
        except RuntimeError as error:
            print(f"{job:18s} {str(error).strip()}", flush=True)
    for side in sides:
        side.kill()


if __name__ == "__main__":
    main()
