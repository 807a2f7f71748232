"""The parameters of a round's secure aggregation that follow from a plan, for simulation, servers and clients."""

import struct
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, final

from rqm.config.plan import Plan
from rqm.core.base import BaseMean
from rqm.ledger.node_policy import corrupt

if TYPE_CHECKING:
    from rqm.secagg import Params

MAX_COMPLETE_CLIENTS = 128
"""Up to this many clients, each shares masks with all others, so no random graph is needed."""


@final
@dataclass(frozen=True)
class Link:
    """The position of a round in a chain of rounds, each of which settles the correlated noise of the previous one.

    Attributes:
        chain: The name of the chain.
        round_index: The round of the run.
        second: How many clients of the round only settle the noise that they added to the previous sum; they come
            last. At the beginning of a chain there are none.
        follows: The name of that sum.
    """

    chain: bytes
    round_index: int
    second: int = 0
    follows: bytes = b""

    def context(self, fingerprint: str) -> bytes:
        """A hash of the kind of round and its position, on which all of its clients agree.

        Args:
            fingerprint: The hash of what clients send (`BaseMean.fingerprint`).

        Returns:
            32 bytes.
        """
        return sha256(
            b"rqm link" + bytes.fromhex(fingerprint) + struct.pack("<Q", self.round_index) + self.chain
        ).digest()

    def next_context(self, fingerprint: str) -> bytes:
        """The same for the next round."""
        return replace(self, round_index=self.round_index + 1).context(fingerprint)


def protocol(plan: Plan, dim: int, round_name: bytes, threshold: int = 0, *, second: int = 0) -> "Params":
    """The parameters of a round of secure aggregation in a simulation.

    Args:
        plan: The plan; all clients encode by it.
        dim: Parameters of the model.
        round_name: The name of the round.
        threshold: Shares that recover a secret; 0: it follows from the plan.
        second: How many clients of the previous round settle their noise in this one.

    Returns:
        The parameters.

    Raises:
        ValueError: If no threshold is safe.
    """
    survivors = plan.participation.min_survivors
    return secure_sum_parameters(
        plan.private_mean(dim), round_name, survivors, lost=plan.client_dropout, threshold=threshold, second=second
    )


def secure_sum_parameters(
    mean: BaseMean,
    round_name: bytes,
    survivors: int | None,
    *,
    lost: float = 0.0,
    threshold: int = 0,
    roster: bytes = b"",
    second: int = 0,
    link: Link | None = None,
    fingerprint: str = "",
) -> "Params":
    """The parameters of a round of secure aggregation.

    Up to 128 clients all share masks with each other. The threshold is what the survivors leave, else two thirds.
    Twice the threshold exceeds the number of neighbors plus the corrupt ones, or a server could unmask a client
    with their help; too few survivors for that are refused. With more clients each draws the number of neighbors
    that `rqm.secagg.security` returns. Where correlated noise is settled, at least `survivors` clients of each kind
    must be in the sum.

    Args:
        mean: What clients send.
        round_name: The name of the round.
        survivors: The fewest vectors in a sum that is revealed; None: all, or any number if clients may be lost.
        lost: The probability that a client drops out, where `survivors` does not say it.
        threshold: Shares that recover a secret; 0: chosen as above.
        roster: The hash of a roster if clients sign their keys.
        second: How many clients of the previous round settle their noise in this one.
        link: The position in a chain of rounds. Clients then also share the secrets of their noise.
        fingerprint: A hash, in hexadecimal digits, of what all clients must agree on; that of `mean` if empty.

    Returns:
        The parameters.

    Raises:
        ValueError: If no threshold is safe.
    """
    from rqm.secagg import Params, security  # noqa: PLC0415 (a bare GPU machine has no ciphers)

    fingerprint = fingerprint or mean.fingerprint
    second = second if link is None else link.second
    clients = mean.participation.clients
    corrupt_clients = corrupt(mean)
    min_of_each_kind = (survivors or clients) if mean.has_second_message else 0
    noise_threshold = 0 if link is None else _noise_threshold(clients, min_of_each_kind, corrupt_clients)
    if second:
        survivors = survivors and 2 * survivors
        clients = clients + second
        corrupt_clients = 2 * corrupt_clients
    # The guarantee is for a sum of so many clients, and without dropouts of all: no smaller sum is revealed.
    minimum = 0 if lost else clients
    if survivors:
        minimum = max(2, survivors)
    degree = clients - 1
    smallest_threshold = (degree + corrupt_clients) // 2 + 1
    neighbors_at_end = (survivors or clients) - 1
    _check_threshold(clients, corrupt_clients, neighbors_at_end, threshold)
    is_sparse = clients > MAX_COMPLETE_CLIENTS and not threshold and link is None
    if is_sparse and smallest_threshold <= neighbors_at_end:
        expected = minimum or clients - int(min(0.4, 2 * lost + 0.02) * clients)
        degree, threshold, minimum = security(clients, expected, corrupt_clients)
        min_of_each_kind += minimum - expected if min_of_each_kind else 0
    if not threshold:
        largest = neighbors_at_end if survivors else 2 * degree // 3 + 1
        threshold = max(smallest_threshold, min(degree, largest))
    return Params(
        clients=clients,
        count=mean.coordinates,
        levels=mean.mechanism.discrete.levels if mean.noise is None else mean.modulus,
        round=round_name,
        degree=degree,
        threshold=threshold,
        minimum=minimum,
        bits=mean.modulus.bit_length() - 1,
        modular=mean.mechanism.discrete.is_modular or mean.noise is not None,
        roster=roster,
        context=bytes.fromhex(fingerprint) if link is None else link.context(fingerprint),
        settling_clients=second,
        previous_sum=b"" if link is None else link.follows,
        min_per_kind=min_of_each_kind,
        noise_threshold=noise_threshold,
    )


def _check_threshold(clients: int, corrupt_clients: int, neighbors_at_end: int, threshold: int) -> None:
    """Refuse a threshold, given or left by the survivors, that the corrupt clients could circumvent."""
    smallest = (clients - 1 + corrupt_clients) // 2 + 1
    if corrupt_clients and (smallest > neighbors_at_end or 0 < threshold < smallest):
        raise ValueError(
            f"min_survivors = {neighbors_at_end + 1}, threshold = {threshold or neighbors_at_end}: must be at least "
            f"{smallest + 1} and {smallest} for {clients} clients of whom {corrupt_clients} may work with the server, "
            "or it could unmask a client with them"
        )


def _noise_threshold(clients: int, survivors: int, corrupt_clients: int) -> int:
    """Shares that recover the noise secret of a client that is gone in the next round.

    It exceeds the number of corrupt clients. If the same noise were settled in two sums, each with this many of
    the clients that added it, an honest client would be in both.
    """
    if 2 * survivors <= clients + corrupt_clients:
        raise ValueError(
            f"min_survivors = {survivors}: must be more than {(clients + corrupt_clients) // 2} of {clients} clients, "
            f"{corrupt_clients} of whom may work with the server, with correlated noise, or it could have the same "
            "noise canceled in two sums"
        )
    return max(corrupt_clients + 1, min(max(2, 2 * survivors // 3), clients - 1))
