"""Streams of a run's seed. A simulation follows from them bit for bit; none of them is private."""

import numpy as np

from rqm.randomness import SeededRandom

SAMPLING, NOISE, START, LOCAL, DROPOUT, LOSSES, RECORDS = 0, 1, 2, 3, 4, 6, 8
"""Clients of a round, the mechanism's noise, the initial model, the order of local steps, dropout layers, clients that
drop out, a silo's sample of records. (5 is that of the public rotation, 7 of correlated noise.)"""


def torch_seed(seed: int, *path: int) -> int:
    """A seed for torch's generator.

    Args:
        seed: The seed of the run.
        *path: The stream, and the indices of what is drawn from it.

    Returns:
        A number of 63 bits.
    """
    return int(SeededRandom(seed, *path).words(1)[0] >> np.uint64(1))
