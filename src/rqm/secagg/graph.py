"""Who shares masks with whom: a random k-regular graph (Bell et al. 2020), and how large k must be.

Clients stand on a circle in random order; each is a neighbour of the next k/2 on either side. With k = n − 1 everybody
is everybody's neighbour (Bonawitz et al. 2017).
"""

import secrets
from functools import lru_cache
from math import ceil, log

import numpy as np

from rqm._util.checks import real, whole


def degree_of(clients: int, degree: int) -> int:
    """The number of neighbours that a client has among ``clients``: ``degree``, or all others where they are fewer."""
    return min(degree, clients - 1)


def regular(ids: list[int], degree: int) -> dict[int, list[int]]:
    """A random graph in which every client has ``degree_of(len(ids), degree)`` neighbours; sorted."""
    if degree >= len(ids) - 1:
        return {u: [v for v in ids if v != u] for u in sorted(ids)}
    order = list(ids)
    secrets.SystemRandom().shuffle(order)
    steps = [*range(1, degree // 2 + 1), *range(-(degree // 2), 0)]
    return {u: sorted(order[(place + step) % len(order)] for step in steps) for place, u in enumerate(order)}


@lru_cache(maxsize=64)
def security(
    clients: int, corrupt: float = 0.1, dropout: float = 0.1, security_bits: int = 40, failure_bits: int = 20
) -> tuple[int, int]:
    """A degree k and a threshold t for a wanted security: the smallest even k, or all others.

    ``corrupt`` and ``dropout`` are the shares of the clients that may work with the server, or be lost; both sets are
    fixed before the graph is drawn. But with probability 2**−``security_bits``, every client with c corrupt neighbours
    has 2t > k + 2c (with all others as neighbours 2t > k + c), which is what the proof in ``docs/protocol.md`` needs.
    But with probability 2**−``failure_bits``, every client keeps t neighbours. Union bounds over all clients. The
    round's ``minimum`` must be at least the number of clients less those lost.

    >>> security(40), security(1000)
    ((18, 14), (210, 164))
    """
    from scipy.stats import hypergeom  # noqa: PLC0415 (a second, which a client need not wait)

    clients = whole("clients", clients, 3)
    bad = ceil(real("corrupt", corrupt, "a share from 0 to 1/3", -1e-9, 0.34) * clients)
    lost = ceil(real("dropout", dropout, "a share from 0 to below 1", -1e-9, 1) * clients)
    whole("security_bits", security_bits, 1)
    whole("failure_bits", failure_bits, 1)

    def found(degree: int) -> int | None:
        """A threshold that does for this degree."""
        gone = np.arange(degree)
        enough = hypergeom.logsf(gone, clients - 1, lost, degree) <= -failure_bits * log(2) - log(clients)
        threshold = degree - int(gone[enough][0]) if enough.any() else 0
        most = (2 * threshold - degree - 1) // 2  # corrupt neighbours that a client may have
        left = clients - 1 - lost  # the graph is drawn among those who sent keys: all the lost may be missing
        caught = hypergeom.logsf(most, left, min(bad, left), degree) if most >= 0 else 0.0
        return threshold if caught <= -security_bits * log(2) - log(clients) else None

    sparse = range(2, max(2, clients - 1 - lost), 2)
    high = 1
    while high < len(sparse) and not found(sparse[high]):
        high *= 2
    low, high = 0, min(high, len(sparse))
    while low < high:  # feasible from some degree on, but for steps of one or two
        middle = (low + high) // 2
        low, high = (low, middle) if found(sparse[middle]) else (middle + 1, high)
    if low < len(sparse) and (threshold := found(sparse[low])):
        return sparse[low], threshold
    threshold = clients - 1 - lost
    if 2 * threshold <= clients - 1 + bad:
        raise ValueError(
            f"clients = {clients}, corrupt = {corrupt}, dropout = {dropout}: twice the {threshold} neighbours who stay "
            f"must be more than {clients - 1} + {bad} (all others, and the corrupt once more)"
        )
    return clients - 1, threshold
