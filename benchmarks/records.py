"""Clipped gradients of records: the sum for a virtual batch of the paper's CNN, against Opacus's GradSampleModule.

On the CPU, and on a GPU where there is one. Both run in turns, the same model and records; their sums must agree. The
most memory that either held is noted: ours beside what importing torch takes, Opacus's for its whole process.
"""

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch.nn import functional

from benchmarks import Entry, Result
from benchmarks.encode import peer_python
from benchmarks.plain_paper_cnn import PlainPaperCNN
from rqm.core.search import private_record_mean
from rqm.mechanisms.gaussian import Gaussian
from rqm.simulation.record_gradients import RecordGradients

OPACUS, OURS = "Opacus's GradSampleModule", "clipped gradients by layers"
RECORDS, CLIP, TURNS = 128, 0.5, 7


class Opacus:
    """Sums of Opacus in an environment of its own, one whenever it is asked for."""

    def __init__(self, python: Path, device: str) -> None:
        script = Path(__file__).with_name("opacus_peer.py")
        given = [str(python), str(script), str(RECORDS), device, str(CLIP)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(given, stdin=pipe, stdout=pipe, text=True, env=dict(os.environ))
        self.length, self.memory = float(self._line()), 0.0

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("opacus ended; it must be installed for the peers (make peers)")
        return line

    def __call__(self) -> float:
        """The seconds of one sum."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        seconds, self.memory = map(float, self._line().split())
        return seconds

    def close(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


class Ours:
    """The same by `RecordGradients`."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        model = PlainPaperCNN().to(device)
        rng = torch.Generator().manual_seed(1)
        self.x = torch.rand(RECORDS, 1, 28, 28, generator=rng).to(device)
        self.y = torch.randint(62, (RECORDS,), generator=rng).to(device)
        self.device = device

        def losses(net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(net(x), y, reduction="none")

        dim = sum(p.numel() for p in model.parameters())
        mean = private_record_mean(
            dim=dim, clients=1, record_clip=CLIP, l2_clip=RECORDS * CLIP, delta=1e-6, mechanism=Gaussian(1.0)
        )
        self.every = RecordGradients(model, losses, mean, (self.x, self.y), is_separable=True)

    def total(self) -> torch.Tensor:
        """The sum of clipped gradients."""
        found: torch.Tensor = self.every.clipped_sum(self.x, self.y).total
        return found

    def __call__(self) -> float:
        """The seconds of one sum."""
        self._wait()
        start = perf_counter()
        self.total()
        self._wait()
        return perf_counter() - start

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    @property
    def memory(self) -> float:
        """The most that was held, in MB."""
        if self.device == "cuda":
            return torch.cuda.max_memory_allocated() / 2**20
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_turns(runs: dict[str, Callable[[], float]]) -> dict[str, Entry]:
    """The median seconds of each, one after the other, so that a busy moment of the machine hits all."""
    for run in runs.values():
        run()
        run()
    times = [{who: run() for who, run in runs.items()} for _ in range(TURNS)]
    return {who: Entry(median(one[who] for one in times), RECORDS) for who in runs}


def bench() -> Result:
    """Measure both, on every device that is here."""
    threads, notes = torch.get_num_threads(), []
    entries: dict[str, Entry] = {}
    for device in ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]:
        ours, peer = Ours(device), Opacus(peer_python() or Path(sys.executable), device)
        try:
            length = float(ours.total().norm())
            if abs(length - peer.length) > 1e-3 * length:
                raise RuntimeError(f"the sums differ: {length:.6g} and {peer.length:.6g} long")
            found = in_turns({f"{OURS}, {device}": ours, f"{OPACUS}, {device}": peer})
        finally:
            peer.close()
        entries |= found
        notes.append(f"{device}: most memory {ours.memory:,.0f} MB, Opacus's process {peer.memory:,.0f} MB")
    notes.append(f"{RECORDS} records of the paper's CNN in float32, {threads} threads of torch on the CPU")
    last = "cuda" if torch.cuda.is_available() else "cpu"
    result = Result("records", f"{OURS}, {last}", [f"{OPACUS}, {last}"], entries, notes=notes, unit="records a second")
    for device in ("cpu", "cuda"):
        if f"{OURS}, {device}" in entries:
            result.check(f"over Opacus, {device}", result.ratio(f"{OURS}, {device}", f"{OPACUS}, {device}"), 1.0)
    if last == "cuda":
        result.named_ratios["Opacus, cpu"] = result.ratio(f"{OURS}, cpu", f"{OPACUS}, cpu")
    return result
