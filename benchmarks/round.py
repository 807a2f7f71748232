"""A whole federated round: 40 clients of 200 pictures, the paper's CNN, full local gradients.

On the CPU: with RQM's encoding, against Apple's pfl with a central Gaussian and against a plain loop without privacy;
the memory of a round for 10, 40 and 160 clients; rounds of up to 10,000 clients on the small model; and a round beside
processes that use every core. On a GPU: the round and the share of the encoding in it.
"""

import resource
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from benchmarks import Result, measure
from benchmarks.encode import peer_python
from benchmarks.plain_paper_cnn import PlainPaperCNN
from rqm._util.threads import usable_cores
from rqm.accounting.participation import Participation
from rqm.config.plan import Plan
from rqm.data.federated_data import Clients, FederatedData
from rqm.mechanisms.rqm import RQM
from rqm.randomness import SeededRandom
from rqm.simulation import models
from rqm.simulation.loop import RunState
from rqm.simulation.models import to_floats

CLIENTS, EACH = 40, 200
OURS, PFL, PLAIN = "a round with RQM", "pfl 0.6.0, central Gaussian", "plain torch loop, no privacy"
SAME = "pfl with our model, which pools faster"
PLAN = Plan(
    data="noise",
    model="paper-cnn",
    mechanism=RQM(clip=2.9731e-5),
    participation=Participation(CLIENTS, 10**9, sampling="uniform"),
    evaluate_every=10**9,
)


def of_clients(plan: Plan, clients: int) -> Plan:
    """The plan with another number of clients in a round."""
    return replace(plan, participation=replace(plan.participation, clients=clients))


MEMORY = """
import sys
from dataclasses import replace
from benchmarks.round import PLAN, federation, now, of_clients, peak
from rqm.simulation.loop import RunState
n = int(sys.argv[1])
trainer = RunState(replace(of_clients(PLAN, n), device="cpu"), federation(n, 5))
before = now()
trainer.step()
print(peak() - before)
"""


def federation(clients: int, each: int, classes: int = 62) -> FederatedData:
    """Pictures of noise: for the time they take it does not matter what is on them."""
    rng = torch.Generator().manual_seed(0)
    inputs = torch.randint(256, (each * clients, 28, 28), generator=rng, dtype=torch.uint8)
    labels = torch.randint(classes, (each * clients,), generator=rng)
    train = Clients(inputs, labels, each * np.arange(clients + 1))
    return FederatedData("noise", train, inputs[:each], labels[:each], classes)


def now() -> float:
    """The memory that this process holds, in MB (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def peak() -> float:
    """The most memory that this process has held, in MB (Linux); what its parent held, getrusage would count too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


class Plain:
    """What one writes in torch without privacy: client after client, the mean of their gradients, SGD."""

    def __init__(self, data: FederatedData) -> None:
        torch.manual_seed(0)
        self.data, self.model = data, PlainPaperCNN()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0, momentum=0.9)

    def round(self) -> None:
        """One round."""
        self.optimizer.zero_grad()
        for client in range(CLIENTS):
            x, y = self.data.train[client]
            (functional.cross_entropy(self.model(to_floats(x)), y) / CLIENTS).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()


class Pfl:
    """Rounds of pfl in an environment of its own, one whenever it is asked for."""

    def __init__(
        self, python: Path, model: str, clients: int = CLIENTS, each: int = EACH, source: str = models.__file__
    ) -> None:
        script, numbers = Path(__file__).with_name("pfl_peer.py"), (str(clients), str(each))
        self.process = subprocess.Popen(
            [str(python), str(script), source, *numbers, model],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._wait()  # the first round, which also evaluates

    def _wait(self) -> None:
        assert self.process.stdout is not None
        while (line := self.process.stdout.readline()) and line != "done\n":
            pass
        if not line:
            raise ModuleNotFoundError("pfl")

    def round(self) -> None:
        """One round."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self._wait()


def on_cpu() -> Result:
    """Rounds in turns, so that a busy moment of the machine hits all."""
    data, notes, peers = federation(2 * CLIENTS, EACH), [], [PLAIN]
    trainer, plain = RunState(replace(PLAN, device="cpu"), data), Plain(data)
    runs: dict[str, tuple[Callable[[], object], int]] = {OURS: (trainer.step, 1), PLAIN: (plain.round, 1)}
    with ExitStack() as stack:
        try:
            python = peer_python()
            if python is None:
                raise ModuleNotFoundError("pfl")
            for name, model in ((PFL, "plain"), (SAME, "ours")):
                pfl = Pfl(python, model)
                stack.callback(pfl.process.kill)
                runs[name] = (pfl.round, 1)
                peers.append(name)
        except ModuleNotFoundError:
            notes.append("pfl was not measured: it is not installed (make peers).")
        entries = measure(runs, repeats=7)

    result = Result("round", OURS, peers, entries, notes=notes, unit="rounds a second")
    for peer, wanted in ((PFL, 1 / 0.95), (PLAIN, 1 / 1.1)):
        if peer in peers:
            result.check(f"over {peer}", result.ratio(OURS, peer), wanted)
    small, rates = federation(10_000, 2), []
    for count in (1_000, 10_000):
        many = RunState(replace(of_clients(PLAN, count), model="small-cnn", device="cpu"), small)
        rates.append(measure({"many": (many.step, count)}, repeats=2)["many"].rate)
        notes.append(
            f"A round of {count:,} clients with 2 pictures each, small model: {rates[-1]:.0f} clients a second."
        )
    result.check("10,000 clients over 1,000, a client", rates[1] / rates[0], 0.8)
    grown = []
    for count in (10, 40, 160):
        done = subprocess.run([sys.executable, "-c", MEMORY, str(count)], capture_output=True, text=True, check=True)
        grown.append(float(done.stdout))
        notes.append(f"A round of {count} clients takes {grown[-1]:.0f} MB on top of the data and the model.")
    result.check("memory of 10 clients over that of 160", grown[0] / grown[-1], 0.8)
    result.check("speed beside a busy loop for each core over speed alone", beside_others(), 1 / 2.5)
    return result


def beside_others() -> float:
    """How fast a round of the small model is while other processes use every core, over its speed alone."""
    trainer = RunState(replace(PLAN, model="small-cnn", device="cpu"), federation(CLIENTS, 20))
    alone = measure({"round": (trainer.step, 1)}, repeats=9)["round"]
    with ExitStack() as stack:
        for _ in range(usable_cores()):
            stack.callback(subprocess.Popen([sys.executable, "-c", "while True: pass"]).kill)
        beside = measure({"round": (trainer.step, 1)}, repeats=9)["round"]
    return beside.rate / alone.rate


def on_gpu() -> Result:
    """Milliseconds by the clock, from the sampling of clients to the step of the server."""
    data = federation(2 * CLIENTS, EACH)
    trainer = RunState(replace(PLAN, device="cuda"), data)
    assert trainer.updates.groups is not None
    gradients, _ = trainer.updates.groups.gradients(trainer.updates.model, list(range(CLIENTS)))
    total, rng = torch.zeros(gradients.shape[1], dtype=torch.int32, device="cuda"), SeededRandom(0)

    def waiting(run: object) -> object:
        torch.cuda.synchronize()
        return run

    runs: dict[str, tuple[Callable[[], object], int]] = {
        OURS: (lambda: waiting(trainer.step()), 1),
        "the encoding in it": (
            lambda: waiting(trainer.mean.add_messages(gradients, total.zero_(), rng, round_index=0)),
            1,
        ),
    }
    entries = measure(runs, repeats=20)
    names = torch.cuda.get_device_name(), f"torch {torch.__version__}"
    unit = "rounds a second"
    result = Result("round", OURS, [], entries, unit=unit, machine=", ".join(names))
    result.check("rounds in 9 ms", 0.009 * entries[OURS].rate, 1)
    result.check("a tenth of a round over its encoding", result.ratio("the encoding in it", OURS) / 10, 1)
    return result


def bench() -> Result:
    """The round on this machine's GPU if it has one, else on its CPU."""
    return on_gpu() if torch.cuda.is_available() else on_cpu()
