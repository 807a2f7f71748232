"""Who shares masks with whom: every client draws its own neighbours, and how many it must draw.

A client deals shares of its secrets to the k others that it has drawn, and has a mask in common with them and with
those who have drawn it (Bell et al. 2020). With k = n − 1 everybody is everybody's neighbour (Bonawitz et al. 2017).
"""

import secrets
from collections.abc import Iterable
from functools import lru_cache
from math import log

import numpy as np
import numpy.typing as npt

from rqm._util.checks import whole
from rqm.secagg.sharing import MAX_SHARES

SPARE = 100
"""One client in so many may have to stay beyond the survivors that are asked for, or more neighbours are drawn."""
MOST = 512
"""No client draws more than so many: then all others are its neighbours."""

Numbers = npt.NDArray[np.int64]
Logs = npt.NDArray[np.float64]


def degree_of(clients: int, degree: int) -> int:
    """How many neighbours a client draws among ``clients``: ``degree``, or all others where they are fewer."""
    return min(degree, clients - 1)


def drawn(others: Iterable[int], degree: int) -> list[int]:
    """So many of the others, or all of them; drawn by whoever calls this, from nobody's seed, and sorted."""
    found = sorted(others)
    return found if degree >= len(found) else sorted(secrets.SystemRandom().sample(found, degree))


@lru_cache(maxsize=64)
def security(
    clients: int, survivors: int, corrupt: int = 0, security_bits: int = 40, failure_bits: int = 20
) -> tuple[int, int, int]:
    """A degree k, a threshold t and a minimum m for a wanted security: the smallest k that does, if few, or all others.

    ``corrupt`` of the ``clients`` may work with the server; who, is fixed before neighbours are drawn. But with
    probability 2**−``security_bits`` no sum of fewer than ``survivors`` clients is revealed, whatever the server does,
    if clients want m to sign; but with probability 2**−``failure_bits`` every client keeps t of the neighbours that it
    has drawn, if m are there to the end. Both are union bounds, proved in ``docs/protocol.md``. With all others as
    neighbours nothing is left to chance.

    >>> security(100, 80, 10), security(1000, 950, 50)
    ((99, 79, 80), (39, 26, 956))
    """
    whole("clients", clients, 3, MAX_SHARES + 1)
    whole("survivors", survivors, 2, clients)
    whole("corrupt", corrupt, 0, clients - 1)
    whole("security_bits", security_bits, 1)
    whole("failure_bits", failure_bits, 1)

    def found(degree: int) -> tuple[int, int, int] | None:
        gone = np.arange(degree)
        few = log(clients) + tail(gone + 1, degree, clients - 1, np.full(degree, clients - survivors))
        enough = np.flatnonzero(few <= -failure_bits * log(2))
        threshold = degree - int(enough[0]) if len(enough) else 0
        if 2 * threshold <= degree:
            return None
        bound = -(security_bits + 1) * log(2)
        if total(parted(clients, survivors, corrupt, degree, threshold)) > bound:
            return None
        apart = parted(clients, survivors, corrupt, degree, threshold, clients - survivors)
        spare = next((spare for spare in range(clients // SPARE + 1) if total(apart[spare:]) <= bound), None)
        return None if spare is None else (degree, threshold, min(clients, survivors + spare))

    high = least = 2
    most = min((clients - 1) // 2, MOST) if 2 * survivors > clients + corrupt else 0  # half have masks with nearly all
    while high < most and not found(high):
        least, high = high + 1, 2 * high
    high = min(high, most)
    while least < high:  # feasible from some degree on, but for steps of one or two
        middle = (least + high) // 2
        least, high = (least, middle) if found(middle) else (middle + 1, high)
    if least < most and (few := found(least)):
        return few
    threshold = survivors - 1
    if 2 * threshold <= clients - 1 + corrupt:
        raise ValueError(
            f"clients = {clients}, survivors = {survivors}, corrupt = {corrupt}: twice the {threshold} neighbours who "
            f"stay must be more than {clients - 1} + {corrupt} (all others, and the corrupt once more)"
        )
    return clients - 1, threshold, survivors


def parted(clients: int, survivors: int, corrupt: int, degree: int, threshold: int, silent: int = 0) -> Logs:
    """Logarithms of how many sets are to be expected that a server could part from the others, at most.

    The a-th is of sets of a honest clients who each have drawn ``threshold`` of their neighbours from that set, the
    corrupt and up to ``silent`` more, whoever is best for the server; for all a up to half of all. At least
    ``survivors`` take part, and it may be any of the corrupt who do.
    """
    size = np.arange(1, clients // 2 + 1)
    marked = np.minimum(size - 1 + silent + corrupt, (clients + corrupt) // 2 - 1)
    chance = tail(np.full(len(size), threshold), degree, survivors - 1, marked)
    return ways(clients, size, clients) + ways(clients, silent, clients) + size * chance


def tail(least: Numbers, degree: int, population: int, marked: Numbers) -> Logs:
    """Logarithms of the chance that of ``degree`` drawn from a population at least so many are marked."""
    rest, found = population - marked, np.full(len(marked), -np.inf)
    for count in range(int(least.min()), degree + 1):
        possible = (count >= least) & (count <= marked) & (degree - count <= rest)
        logs = ways(marked, np.minimum(count, marked), population)
        logs = logs + ways(rest, np.minimum(degree - count, rest), population)
        found = np.logaddexp(found, np.where(possible, logs, -np.inf))
    return found - ways(population, degree, population)


def ways(of: int | Numbers, some: int | Numbers, most: int) -> Logs:
    """Logarithms of binomial coefficients, of ``most`` at most."""
    logs = factorials(most)
    found: Logs = logs[of] - logs[some] - logs[np.subtract(of, some)]
    return found


@lru_cache(4)
def factorials(most: int) -> Logs:
    """The logarithm of every factorial up to this."""
    from scipy.special import gammaln  # noqa: PLC0415 (a moment, which small federations need not wait)

    found: Logs = gammaln(np.arange(most + 1) + 1.0)
    return found


def total(logs: Logs) -> float:
    """The logarithm of a sum."""
    return float(np.logaddexp.reduce(logs, initial=-np.inf))
