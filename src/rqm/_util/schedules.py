"""How a server's learning rate falls over the rounds."""

from math import cos, pi
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def rate_factor(schedule: Schedule, turn: int, rounds: int) -> float:
    """What the rate of round ``turn`` (from 0) of ``rounds`` is multiplied by: 1, or falling from 1 to zero."""
    share = turn / rounds
    return {"constant": 1.0, "linear": 1 - share, "cosine": (1 + cos(pi * share)) / 2}[schedule]
