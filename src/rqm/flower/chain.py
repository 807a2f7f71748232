"""A chain of rounds, each of which takes back the noise of the one before, as the server keeps it."""

from logging import INFO, WARNING
from typing import final

import torch
from flwr.supercore import log

from rqm.core.base import BaseMean
from rqm.flower.encoding import noise
from rqm.plan.protocol import Link
from rqm.secagg import Server, new_round
from rqm.secagg.settlement import ServerSettlement


@final
class Chain:
    """Who owes noise to the next round, and who took part when.

    Whenever a round comes to nothing the chain is broken: what was added before is never taken back, and another
    begins. It says nothing that nodes do not check for themselves.
    """

    def __init__(self) -> None:
        self._last: dict[int, int] = {}  # also of chains that are broken: the ledger counts on the separation
        self.begin()

    def begin(self) -> None:
        """Begin anew: nobody owes anything."""
        self.name, self.nodes = new_round(), list[int]()
        self._owed: ServerSettlement | None = None

    @property
    def owed(self) -> ServerSettlement | None:
        """What is owed of the last sum."""
        return self._owed

    def link(self, turn: int) -> Link:
        """The place of the next round."""
        owed = self._owed
        return Link(self.name, turn) if owed is None else Link(self.name, turn, len(owed.members), owed.name)

    def free(self, node: int, turn: int, apart: int) -> bool:
        """Whether a node may be asked for a vector in a round: it owes nothing, and its last one is long enough ago."""
        return node not in self.nodes and turn >= self._last.get(node, turn - apart) + apart

    def asked(self, nodes: list[int], turn: int) -> None:
        """Remember who is asked for a vector."""
        self._last |= dict.fromkeys(nodes, turn)

    def go_on(self, server: Server, nodes: list[int]) -> None:
        """Let those who are in a sum owe their noise to the next."""
        self._owed = server.settlement()
        self.nodes = [nodes[number] for number in self._owed.members]

    def without_lost(self, sums: torch.Tensor, server: Server, mean: BaseMean) -> torch.Tensor:
        """The sum without what those added to the one before who are gone: the others have given shares of it."""
        for place, secret in server.recovered_secrets().items():
            if secret is None:
                log(WARNING, "rqm: node %d is gone, and its noise stays in the model", self.nodes[place])
            else:
                log(INFO, "rqm: node %d is gone, and its noise was found through the others", self.nodes[place])
                sums = (sums - torch.from_numpy(noise(mean, secret)[1])) % mean.modulus
        return sums
