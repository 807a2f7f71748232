"""Runs targets in processes of their own, as many at a time as there are cores, and gathers what they find."""

import re
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from rqm._util.threads import usable_cores

MODULES = ("planted", "plans", "data", "secagg", "flowers", "commands")
CHUNK = 20_000
"""Inputs of a target that one process is given."""
STEP = 50
"""How often a process tells where it is."""
MEMORY = 512
"""Megabytes that a process may take."""
MOST_TOLD = 3
"""Findings of a target, of one chunk, that are told."""


@dataclass
class Tally:
    """What came of a target's inputs."""

    wanted: int
    done: int = 0
    refused: int = 0
    seconds: float = 0.0
    peak: int = 0
    findings: list[str] = field(default_factory=list)

    def add(self, done: int, refused: int, seconds: float, peak: int, findings: list[str]) -> None:
        """What a process has told."""
        self.done, self.refused, self.seconds = self.done + done, self.refused + refused, self.seconds + seconds
        self.peak, self.findings = max(self.peak, peak), self.findings + findings


def targets(module: str) -> tuple[Any, ...]:
    """The targets of a module."""
    found: tuple[Any, ...] = import_module(f"tools.fuzz.{module}").TARGETS
    return found


def names(of: Connection, only: str | None) -> None:
    """Send module, name and part of all targets, or of one: from a process of its own, which the imports end with."""
    found = []
    for module in MODULES:
        found += [(module, one.name, one.part) for one in targets(module) if (one.name == only if only else one.part)]
        if only and found:
            break
    of.send(found)


def work(of: Connection, module: str, name: str, seed: int, numbers: range, deadline: float) -> None:
    """Attack one target, and send how it went now and then: (done, refused, seconds, megabytes, findings)."""
    from tools.fuzz.target import attack  # noqa: PLC0415 (in the process that needs it)

    sys.stderr = open("/dev/null", "w")  # noqa: SIM115 (libraries talk; findings are sent)
    (kind,) = (one for one in targets(module) if one.name == name)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        target = kind(Path(folder))
        done = refused = many = 0
        findings: list[str] = []
        start = last = time.monotonic()
        for number in numbers:
            if (number - numbers.start) % STEP == 0:
                of.send(number)
            was_refused, error = attack(target, seed, number)
            done, refused, now = done + 1, refused + was_refused, time.monotonic()
            if error is not None and (many := many + 1) <= MOST_TOLD:
                findings.append(told(name, seed, number, error))
            if now - last > 0.5 or number == numbers[-1] or now > deadline:
                peak = most_memory()
                if peak > MEMORY and (many := many + 1) <= MOST_TOLD:
                    findings.append(
                        f"{name} --seed {seed} --only {number}: takes {peak} MB, or one shortly before it did"
                    )
                of.send((done, refused, now - start, peak, findings))
                done, refused, findings, start, last = 0, 0, [], now, now
                if now > deadline:
                    break


def most_memory() -> int:
    """The most megabytes that this process has held; ``ru_maxrss`` would count those of the one that started it."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) // 1024 if found else 0


def told(name: str, seed: int, number: int, error: BaseException) -> str:
    """A finding, and how to repeat it."""
    where = "".join(traceback.format_exception(error.__cause__ or error)[-3:])
    return f"python -m tools.fuzz --target '{name}' --seed {seed} --only {number}\n{where[-1500:]}"


def chunks(tallies: dict[tuple[str, str], Tally]) -> Iterator[tuple[tuple[str, str], range]]:
    """All that is to be done: a chunk of each target, then another of each."""
    for start in range(0, max(one.wanted for one in tallies.values()), CHUNK):
        for key, tally in tallies.items():
            if start < tally.wanted:
                yield key, range(start, min(start + CHUNK, tally.wanted))


@dataclass
class Chunk:
    """Some inputs of a target, and the process that tries them."""

    key: tuple[str, str]
    numbers: range
    process: Any
    at: int
    """The last number that the process told."""


def run(tallies: dict[tuple[str, str], Tally], seed: int, deadline: float, progress: Any) -> None:
    """Carry out all chunks, as many at a time as there are cores."""
    context, left = get_context("spawn"), deque(chunks(tallies))
    running: dict[Any, Chunk] = {}
    while left or running:
        while left and len(running) < usable_cores():
            key, numbers = left.popleft()
            if time.monotonic() < deadline:
                mine, other = context.Pipe(duplex=False)
                process = context.Process(target=work, args=(other, *key, seed, numbers, deadline))
                process.start()
                other.close()
                running[mine] = Chunk(key, numbers, process, numbers.start)
        for pipe in wait(list(running)):
            assert isinstance(pipe, Connection)
            chunk = running[pipe]
            tally = tallies[chunk.key]
            try:
                news = pipe.recv()
            except EOFError:
                del running[pipe]
                chunk.process.join()
                if chunk.process.exitcode:
                    tally.findings.append(died(chunk, seed))
                    left.append((chunk.key, range(chunk.at + STEP, chunk.numbers.stop)))
                continue
            if isinstance(news, int):
                chunk.at = news
            else:
                tally.add(*news)
                progress(news[0], chunk.key[1], sum(len(one.findings) for one in tallies.values()))


def died(chunk: Chunk, seed: int) -> str:
    """What is known of a process that is no more."""
    return (
        f"python -m tools.fuzz --target '{chunk.key[1]}' --seed {seed} --only …: the process died "
        f"({chunk.process.exitcode}) at one of {chunk.at} to {chunk.at + STEP - 1}"
    )


def planned(count: int, only: str | None) -> dict[tuple[str, str], Tally]:
    """How many inputs each target is given."""
    context = get_context("spawn")
    mine, other = context.Pipe(duplex=False)
    process = context.Process(target=names, args=(other, only))
    process.start()
    other.close()
    found = mine.recv()
    process.join()
    if not found:
        raise SystemExit(f"--target {only}: is none of the targets")
    whole = sum(part or 1 for *_, part in found)
    return {(module, name): Tally(max(1, round(count * (part or 1) / whole))) for module, name, part in found}
