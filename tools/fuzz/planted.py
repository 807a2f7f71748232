"""Defects on purpose, which show that the fuzzer finds them; attacked only when they are asked for by name."""

import os
import signal
from random import Random

from tools.fuzz.mutate import changed, damaged
from tools.fuzz.target import Target


class Planted(Target):
    """Looks where the input says, without a look at whether anything is there."""

    name, part = "planted", 0

    def attack(self, rng: Random) -> None:
        """Raises IndexError now and then."""
        data = damaged(b"\x03abc", rng)
        if not data:
            raise ValueError("empty")
        data[data[0]]


class Accident(Target):
    """Refuses, but by accident."""

    name, part = "accident", 0

    def attack(self, rng: Random) -> None:
        """Raises TypeError, which nobody meant to."""
        values = changed({"a": 1}, rng)
        if not isinstance(values, dict) or "a" not in values:
            raise ValueError("no a")
        values["a"] + 1


class Dying(Target):
    """Takes the process down."""

    name, part = "dying", 0

    def attack(self, rng: Random) -> None:
        """One time in a hundred or so."""
        if rng.random() < 0.01:
            os.kill(os.getpid(), signal.SIGKILL)


TARGETS = (Planted, Accident, Dying)
