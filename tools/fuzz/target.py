"""What is attacked: one small class for each thing that reads what others wrote."""

import linecache
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType, TracebackType
from typing import ClassVar

import rqm

HOME = str(Path(rqm.__file__).parent)
PATIENCE, WAITING = 20, 30
"""Seconds of computing after which an input counts as a finding, and how many times longer it may wait."""


class Target(ABC):
    """``attack`` makes one input from the random source, and gives it to the library.

    ``allowed`` are the errors by which the library may refuse it. ``part`` says how many of all inputs are its own.
    """

    name: ClassVar[str]
    part: ClassVar[float] = 1.0
    allowed: ClassVar[tuple[type[Exception], ...]] = (ValueError, TypeError, OSError)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prepare()

    def prepare(self) -> None:  # noqa: B027 (some need nothing)
        """Make what all inputs begin from."""

    @abstractmethod
    def attack(self, rng: Random) -> None:
        """One input."""


class Slow(BaseException):
    """An input that takes too long."""


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Raise ``Slow`` in what computes longer, or waits much longer: on a busy machine everybody waits."""

    def late(_number: int, _frame: FrameType | None) -> None:
        raise Slow(f"takes longer than {seconds:g} s")

    limits = ((signal.SIGPROF, signal.ITIMER_PROF, seconds), (signal.SIGALRM, signal.ITIMER_REAL, WAITING * seconds))
    before = [signal.signal(number, late) for number, _, _ in limits]
    for _, timer, limit in limits:
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(limits, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


def attack(target: Target, seed: int, number: int) -> tuple[bool, BaseException | None]:
    """Whether the library refused the input of this number, and what it should not have raised."""
    rng = Random(f"{seed} {target.name} {number}")
    try:
        with patience(PATIENCE):
            target.attack(rng)
    except target.allowed as error:
        return True, None if _meant(error) else error
    except (Exception, Slow) as error:
        return True, error
    return False, None


def _meant(error: Exception) -> bool:
    """Whether an error was raised on purpose: a TypeError must come from a ``raise`` of ours, not from an accident."""
    if type(error) is not TypeError:
        return True
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    file = trace.tb_frame.f_code.co_filename
    return file.startswith(HOME) and linecache.getline(file, trace.tb_lineno).strip().startswith("raise")
