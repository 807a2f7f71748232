"""The chain of rounds in which each round settles the correlated noise of the previous sum, as the server keeps it."""

import logging
from collections.abc import Sequence
from typing import Any, final

from rqm.config.round_parameters import Link
from rqm.secagg import Server, new_round
from rqm.secagg.settlement import ServerSettlement

log = logging.getLogger("flwr")


@final
class NoiseChain:
    """Which sum is settled next, by which nodes, and when each node sent a vector.

    A discarded round ends the chain: the noise of its predecessor is never canceled, and a new chain begins.
    Nodes check the chain for themselves and do not rely on the server. Without correlated noise there is nothing to
    settle, and no round has a link.

    Attributes:
        name: The name of the current chain.
        settling_nodes: The nodes that settle the previous sum, in the order of their clients.
        settlement: What the server keeps of that sum; None at the beginning of a chain.
    """

    def __init__(self, noise: Any, modulus: int, min_separation: int) -> None:
        """Begin the first chain.

        Args:
            noise: The `CorrelatedNoise`, whose `recover` is used; None for independent noise.
            modulus: The modulus of the sum.
            min_separation: Rounds from a node's vector to its next one, at least 1. It also holds across chains,
                because the ledger counts on it.
        """
        self.noise, self.modulus, self.min_separation = noise, modulus, min_separation
        self._last_rounds: dict[int, int] = {}
        self.restart()

    def restart(self) -> None:
        """Begin a new chain, in which nothing is to be settled yet."""
        self.name, self.settling_nodes = new_round(), list[int]()
        self.settlement: ServerSettlement | None = None

    def link(self, round_index: int) -> Link | None:
        """The position of the next round in the chain; None without correlated noise."""
        if self.noise is None:
            return None
        if self.settlement is None:
            return Link(self.name, round_index)
        return Link(self.name, round_index, len(self.settlement.members), self.settlement.name)

    def can_send_vector(self, node: int, round_index: int) -> bool:
        """Whether a node may be asked for a vector.

        Args:
            node: The node.
            round_index: The round.

        Returns:
            Whether it settles nothing then, and sent its last vector at least `min_separation` rounds earlier.
        """
        if self.noise is None:
            return True
        last = self._last_rounds.get(node)
        return node not in self.settling_nodes and (last is None or round_index >= last + self.min_separation)

    def record_participants(self, nodes: Sequence[int], round_index: int) -> None:
        """Remember which nodes are asked for a vector.

        Args:
            nodes: The nodes. A repeated round has some of them again.
            round_index: The round.
        """
        self._last_rounds |= dict.fromkeys(nodes, round_index)

    def recover(self, total: Any, server: Server) -> Any:
        """Cancel the noise of the nodes that did not settle, as far as the others revealed its secrets.

        Args:
            total: The sum of the round.
            server: The protocol's server of the round.

        Returns:
            The sum without that noise.
        """
        secrets = server.recovered_secrets()
        for index, secret in secrets.items():
            outcome = "stays in the model" if secret is None else "was recovered from the shares of the others"
            log.log(
                logging.WARNING if secret is None else logging.INFO,
                "rqm: node %d dropped out before it settled; its noise %s",
                self.settling_nodes[index],
                outcome,
            )
        recovered = [secret for secret in secrets.values() if secret is not None]
        return total if self.noise is None else self.noise.recover(total, recovered, self.modulus)

    def extend(self, server: Server, nodes: Sequence[int]) -> None:
        """Make a finished sum the one that is settled next.

        Args:
            server: The protocol's server of the round.
            nodes: The node of each client.
        """
        if self.noise is not None:
            self.settlement = server.settlement()
            self.settling_nodes = [nodes[client] for client in self.settlement.members]
