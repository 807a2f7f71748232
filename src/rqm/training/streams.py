"""The streams of a run's seed: a simulation is told by its plan, bit for bit. None of it is private."""

from typing import Any

import numpy as np

from rqm.randomness import SeededRandom

SAMPLING, NOISE, START, LOCAL, DROPOUT, LOSSES, TRANSIENT, RECORDS = 0, 1, 2, 3, 4, 6, 7, 8
"""Who takes part, the mechanism, the initial model, the order of local steps, dropout, who is lost, noise that is taken
back, a silo's draws of records. (5 is the public rotation's.)"""


def number(seed: int, *path: int) -> int:
    """A seed for torch's own generator."""
    return int(SeededRandom(seed, *path).words(1)[0] >> np.uint64(1))


def generator(seed: int, *path: int) -> Any:
    """A generator of NumPy's."""
    return np.random.default_rng([seed, *path])
