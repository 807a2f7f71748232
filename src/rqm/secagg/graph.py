"""The neighbors of clients: how they are drawn, and how many each must draw.

A client shares its secrets among the k others that it draws. It has a mask in common with them, and
with those that draw it (Bell et al. 2020). With k = n − 1 all others are neighbors (Bonawitz et al.
2017). The bounds are proved in `docs/protocol.md`.
"""

import secrets
from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache
from math import log
from typing import Any

import numpy as np
import numpy.typing as npt

from rqm._util.checks import whole
from rqm.secagg.sharing import MAX_SHARES

Logs = npt.NDArray[np.float64]


def draw_neighbors(others: Iterable[int], degree: int) -> list[int]:
    """Draw `degree` of the other clients, or all of them if there are fewer; sorted."""
    candidates = sorted(others)
    if degree >= len(candidates):
        return candidates
    return sorted(secrets.SystemRandom().sample(candidates, degree))


@lru_cache(maxsize=64)
def security(
    clients: int, survivors: int, corrupt: int = 0, security_bits: int = 40, failure_bits: int = 20
) -> tuple[int, int, int]:
    """The degree k, threshold t and minimum m that reach a target security.

    The degree is the smallest that suffices. If that is half of all others, or more than 512, all
    others are neighbors and nothing is left to chance.

    Args:
        clients: Clients of a round.
        survivors: No sum of fewer clients is revealed, whatever the server does, except with
            probability 2**−`security_bits`.
        corrupt: Clients that may collude with the server, fixed before neighbors are drawn.
        security_bits: See `survivors`.
        failure_bits: If m clients stay to the end, each keeps t of the neighbors that it has drawn,
            except with probability 2**−`failure_bits`.

    Returns:
        `degree`, `threshold` and `minimum` of `Params`.

    Raises:
        ValueError: If there are too few survivors for any degree.

    >>> security(100, 80, 10), security(1000, 950, 50)
    ((99, 79, 80), (39, 26, 956))
    """
    whole("clients", clients, 3, MAX_SHARES + 1)
    whole("survivors", survivors, 2, clients)
    whole("corrupt", corrupt, 0, clients - 1)
    whole("security_bits", security_bits, 1)
    whole("failure_bits", failure_bits, 1)
    max_dropouts, max_extra = clients - survivors, clients // 100
    max_log_chance = -(security_bits + 1) * log(2)

    def parameters(degree: int) -> tuple[int, int, int] | None:
        """Threshold and minimum for a degree; None if there are none."""

        def is_rare(dropouts: int) -> bool:
            """Whether this many neighbors of some client rarely drop out."""
            chance = log_marked(dropouts, degree, clients - 1)[max_dropouts]
            return bool(log(clients) + chance <= -failure_bits * log(2))

        threshold = degree + 1 - bisect_left(range(degree + 1), True, 1, key=is_rare)
        if 2 * threshold <= degree:
            return None
        if np.logaddexp.reduce(log_isolated_sets(clients, survivors, corrupt, degree, threshold)) > max_log_chance:
            return None
        isolated = log_isolated_sets(clients, survivors, corrupt, degree, threshold, max_dropouts)
        larger = np.logaddexp.accumulate(isolated[::-1])[::-1]
        sufficient = np.flatnonzero(larger[: max_extra + 1] <= max_log_chance)
        return (degree, threshold, min(clients, survivors + int(sufficient[0]))) if len(sufficient) else None

    # With half of all others as neighbors, clients have masks with nearly all.
    max_degree = min((clients - 1) // 2, 512) if 2 * survivors > clients + corrupt else 0
    low = high = 2
    while high < max_degree and not parameters(high):
        low, high = high + 1, 2 * high
    # Degrees suffice from some one on, except for one or two.
    degree = bisect_left(range(max_degree), True, low, min(high, max_degree), key=lambda k: parameters(k) is not None)
    if degree < max_degree and (reached := parameters(degree)):
        return reached
    threshold = survivors - 1
    if 2 * threshold <= clients - 1 + corrupt:
        raise ValueError(
            f"clients = {clients}, survivors = {survivors}, corrupt = {corrupt}: twice the {threshold} neighbors that "
            f"stay must be more than {clients - 1} + {corrupt} (all others, and the corrupt clients again)"
        )
    return clients - 1, threshold, survivors


def log_binomial(n: Any, k: Any) -> Any:
    """Logarithms of binomial coefficients; −∞ where k is above n."""
    from scipy.special import gammaln  # noqa: PLC0415 (takes a moment that small federations need not wait)

    return gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0)


def log_marked(threshold: int, degree: int, population: int) -> Logs:
    """Logarithms of the chance that at least `threshold` of the neighbors drawn are marked.

    Number the population so that marked ones come first: the `threshold`-th smallest number that is
    drawn must be marked.

    Args:
        threshold: At least 1.
        degree: How many are drawn.
        population: From how many.

    Returns:
        Logarithms for 0, 1, …, `population` marked ones.
    """
    smaller = np.arange(population)
    terms = log_binomial(smaller, threshold - 1) + log_binomial(population - 1 - smaller, degree - threshold)
    tails: Logs = np.concatenate([[-np.inf], np.logaddexp.accumulate(terms)]) - log_binomial(population, degree)
    return tails


def log_isolated_sets(clients: int, survivors: int, corrupt: int, degree: int, threshold: int, silent: int = 0) -> Logs:
    """Logarithms of the expected number of sets that a server could separate from the other clients, at most.

    Such a set has a honest clients, each of which has drawn `threshold` of its neighbors from the
    set, the corrupt clients and up to `silent` others, which the server chooses.

    Args:
        clients: Clients of a round.
        survivors: How many of them take part at least.
        corrupt: How many may collude with the server.
        degree: Neighbors that a client draws.
        threshold: See above.
        silent: See above.

    Returns:
        Logarithms for a = 1, 2, …, half of all clients.
    """
    size = np.arange(1, clients // 2 + 1)
    marked = np.minimum(size - 1 + silent + corrupt, (clients + corrupt) // 2 - 1)
    chance = log_marked(threshold, degree, survivors - 1)[marked]
    sets: Logs = log_binomial(clients, size) + log_binomial(clients, silent) + size * chance
    return sets
