"""The rounds of a run as a state machine: messages in, messages out. It does not know Flower.

A round is one secure sum (see `rqm.secagg`), for which each client sends five messages:

    KEYS → SHARES → VECTORS → ACKS → REVEAL → DONE
              any of these            → DISCARDED      too few clients are left, or no clients can have sent this sum
              any of these            → KEYS           clients corrupted the sum: once more, without them
    begin                             → OUT_OF_BUDGET  the ledger cannot pay for the round

The last two messages of a round do not depend on data, and neither do the first two of the next round. So the
next round is prepared ahead, and its requests travel with those for ACKS and REVEAL: a round then takes three
exchanges. Each round has its own keys, and every check of the protocol stays.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from secrets import SystemRandom
from typing import Any, final

import numpy as np
import numpy.typing as npt

from rqm.config.round_parameters import Link
from rqm.flower.node_state import NodeState
from rqm.flower.shared_plan import Request, SharedPlan
from rqm.ledger.budget_guard import Guard
from rqm.secagg import Aborted, CorruptedRound, ProtocolError, Roster, Server, new_round
from rqm.secagg.settlement import ServerSettlement
from rqm.secagg.wire import Kind

log = logging.getLogger("flwr")
NO_NODE = -1
"""Stands for the node of a client number that is not assigned."""


class State(Enum):
    """The state of a round. In the first five, clients owe the message of that stage."""

    KEYS = Kind.KEYS
    SHARES = Kind.SHARES
    VECTORS = Kind.MASKED
    ACKS = Kind.ACKS
    REVEAL = Kind.REVEAL
    DONE = "done"
    DISCARDED = "discarded"
    OUT_OF_BUDGET = "out of budget"


@final
@dataclass
class SecureSum:
    """One attempt at the secure sum of a round.

    Attributes:
        server: The protocol's server.
        nodes: The node of each client, by the client's number, or `NO_NODE`.
        round_index: The round of the run.
        name: The name of the attempt.
        link: The position in the chain of rounds.
        stage: The message that clients owe.
        messages: The server's message to each client that owes one.
    """

    server: Server
    nodes: list[int]
    round_index: int
    name: bytes
    link: Link | None
    stage: Kind = Kind.KEYS
    messages: dict[int, bytes] = field(init=False)

    def __post_init__(self) -> None:
        """Ask every client for its keys."""
        self.messages = {client: b"" for client, node in enumerate(self.nodes) if node != NO_NODE}

    @property
    def vector_nodes(self) -> list[int]:
        """The nodes that are asked for a vector."""
        return [node for node in self.nodes[: self.server.params.vector_clients] if node != NO_NODE]

    def requests(self) -> dict[int, Request]:
        """The request to each node that owes a message."""
        return {
            self.nodes[client]: Request(self.stage, self.name, self.round_index, client, message, self.link)
            for client, message in self.messages.items()
        }

    def advance(self) -> None:
        """End the stage."""
        self.messages = self.server.advance()
        self.stage = Kind(self.stage + 2)


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
            noise: The `NoiseScheme`, whose `recover` is used; None for independent noise.
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


class RoundMachine:
    """Runs one round after the other.

    A driver calls `begin`; then, until `has_ended`, it sends `requests()`, hands every answer to `receive`, and
    calls `advance`. It decides how long it waits for answers.

    Attributes:
        state: The state of the current round.
        round_index: The current round.
        discard_reason: Why a round was discarded or repeated.
        mean_vector: The decoded mean of a round that is done.
    """

    def __init__(
        self,
        plan: SharedPlan,
        ledger: Guard,
        node_state: NodeState,
        noise: Any,
        available_nodes: Callable[[], Iterable[int]],
        *,
        rounds: int,
        roster: Roster | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            plan: The plan of the run.
            ledger: What pays for rounds.
            node_state: What is known of nodes.
            noise: The `NoiseScheme`, whose `recover` is used; None for independent noise.
            available_nodes: Returns the nodes that are connected.
            rounds: How many rounds there will be; none is prepared after the last.
            roster: The roster, where nodes sign their keys.
        """
        self.plan, self.ledger, self.node_state = plan, ledger, node_state
        self.chain = NoiseChain(noise, plan.mean.modulus, plan.mean.participation.window)
        self.available_nodes, self.rounds, self.roster = available_nodes, rounds, roster
        self.state, self.round_index, self.discard_reason = State.DISCARDED, 0, "no round has begun"
        self.mean_vector: npt.NDArray[np.floating] | None = None
        self._current: SecureSum | None = None
        self._next: SecureSum | None = None

    # -- what a driver asks for -------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """Whether the current round has ended."""
        return self.state in (State.DONE, State.DISCARDED, State.OUT_OF_BUDGET)

    @property
    def is_prepared(self) -> bool:
        """Whether the next round has its nodes already."""
        return self._next is not None

    @property
    def survivors(self) -> int:
        """The number of vectors in the sum of a round that is done."""
        if self.state != State.DONE or self._current is None:
            return 0
        return len(self._current.server.vector_survivors)

    @property
    def vector_nodes(self) -> list[int]:
        """The nodes that the current round asks for a vector."""
        assert self._current is not None
        return self._current.vector_nodes

    def eligible_nodes(self, round_index: int) -> list[int]:
        """The connected nodes that may be asked for a vector in a round."""
        return [
            node
            for node in self.available_nodes()
            if self.node_state.may_participate(node) and self.chain.can_send_vector(node, round_index)
        ]

    # -- transitions ------------------------------------------------------------------------------

    def begin(self, round_index: int, eligible_nodes: Sequence[int] = ()) -> None:
        """Begin a round.

        Args:
            round_index: The round, from 0.
            eligible_nodes: The nodes to draw from, unless the round is prepared already.
        """
        self.round_index, self.discard_reason = round_index, ""
        self._current, self.mean_vector = None, None
        if not self.ledger.allows(round_index):
            self._drop_next()
            self.state = State.OUT_OF_BUDGET
            return
        prepared, self._next = self._next, None
        try:
            self._enter(prepared or self._secure_sum(self._draw_nodes(eligible_nodes), round_index))
        except Aborted as error:
            self._discard(str(error))

    def requests(self) -> dict[int, list[Request]]:
        """What to ask each node: for the message of this round, and beside it for that of the next."""
        requests: dict[int, list[Request]] = {}
        for secure_sum in self._in_progress():
            for node, request in secure_sum.requests().items():
                requests.setdefault(node, []).append(request)
        return requests

    def receive(self, request: Request, answer: bytes) -> None:
        """Accept a client's answer.

        Args:
            request: What it was asked, by the node that has answered.
            answer: The message.

        Raises:
            ProtocolError: If the answer is refused. Only that client is then lost in the round.
        """
        for secure_sum in self._in_progress():
            if secure_sum.name == request.round_name:
                return secure_sum.server.receive(answer, request.client)
        raise ProtocolError("an answer to no request of this exchange")

    def advance(self) -> None:
        """End an exchange: who has not answered by now is lost in the round."""
        current = self._current
        assert current is not None
        for following in self._in_progress()[1:]:
            self._advance_next(following)
        try:
            if self.state == State.REVEAL:
                self._finish(current)
            else:
                current.advance()
                self._enter(current)
        except CorruptedRound as error:
            self._repeat(current, error)
        except Aborted as error:
            self._discard(str(error))
        if self.has_ended or self._current is not current:
            for holder, dealer in current.server.disputes:
                nodes = current.nodes[holder], current.nodes[dealer]
                log.warning("rqm: nodes %d and %d contradict each other: one of them breaks the protocol", *nodes)

    def _in_progress(self) -> list[SecureSum]:
        """The sums whose requests are due: the current one, and the next one until its vectors would be due."""
        if self.has_ended or self._current is None:
            return []
        following = self._next
        if following is None or following.stage >= Kind.MASKED:
            return [self._current]
        return [self._current, following]

    def _enter(self, secure_sum: SecureSum) -> None:
        """Go to the state of a sum's stage; the charge is on disk before a vector is asked for."""
        if secure_sum.stage == Kind.MASKED:
            self.ledger.charge(self.round_index)
            vectors = sum(client < secure_sum.server.params.vector_clients for client in secure_sum.messages)
            log.info("rqm: %d clients have exchanged keys and shares, and are asked for vectors", vectors)
        self._current, self.state = secure_sum, State(secure_sum.stage)
        if secure_sum.stage in (Kind.ACKS, Kind.REVEAL):
            self._prepare_next()

    def _finish(self, secure_sum: SecureSum) -> None:
        """Unmask and decode the sum."""
        total = self.chain.recover(secure_sum.server.finish(), secure_sum.server)
        survivors = len(secure_sum.server.vector_survivors)
        try:
            self.mean_vector = self.plan.mean.decode(total, survivors, round_index=self.round_index)
        except ValueError as error:
            return self._discard(f"no clients can have sent such a sum ({error})")
        self.chain.extend(secure_sum.server, secure_sum.nodes)
        self.state = State.DONE

    def _discard(self, reason: str) -> None:
        """End the round without a result."""
        self.state, self.discard_reason = State.DISCARDED, reason
        self.chain.restart()

    def _repeat(self, secure_sum: SecureSum, error: CorruptedRound) -> None:
        """Begin the round again without the clients that corrupted it; it is then charged again."""
        self._drop_next()  # a blamed node may be in it, and nodes keep two rounds at most
        blamed = {secure_sum.nodes[client]: reason for client, reason in error.blamed.items()}
        self.node_state.blame(blamed, proved=error.proved)
        self._discard(str(error))
        remaining = [node for node in secure_sum.vector_nodes if node not in blamed]
        if len(remaining) >= self.plan.min_survivors and self.ledger.allows(self.round_index):
            log.warning("rqm: the round is repeated without the nodes that corrupted it: %s", error)
            self._enter(self._secure_sum(remaining, self.round_index))

    # -- choosing nodes ---------------------------------------------------------------------------

    def _draw_nodes(self, eligible: Sequence[int]) -> list[int]:
        """Draw a round's nodes. Fewer than planned suffice, as if the others had dropped out; it is on disk first."""
        count = min(len(eligible), self.plan.clients)
        if count < self.plan.min_survivors:
            raise Aborted(f"{count} nodes may take part: must be at least {self.plan.min_survivors}")
        nodes = SystemRandom().sample(eligible, count)
        self.node_state.add_participations(nodes)
        return nodes

    def _secure_sum(self, nodes: list[int], round_index: int) -> SecureSum:
        """A new attempt with these nodes, and with those that settle the previous sum."""
        name, link = new_round(), self.chain.link(round_index)
        params = self.plan.params(name, b"" if self.roster is None else self.roster.hash, link)
        server = Server(params, self.roster, previous=self.chain.settlement)
        self.chain.record_participants(nodes, round_index)
        missing = params.vector_clients - len(nodes)
        all_nodes = [*nodes, *[NO_NODE] * missing, *self.chain.settling_nodes]
        return SecureSum(server, all_nodes, round_index, name, link)

    def _prepare_next(self) -> None:
        """Prepare the next round if there is one, and nodes for it. With correlated noise it must await this sum."""
        round_index = self.round_index + 1
        if self._next is not None or self.chain.noise is not None or round_index >= self.rounds:
            return
        if not self.ledger.allows(round_index):
            return
        try:
            self._next = self._secure_sum(self._draw_nodes(self.eligible_nodes(round_index)), round_index)
        except Aborted as error:
            log.info("rqm: the next round is not prepared ahead: %s", error)

    def _advance_next(self, following: SecureSum) -> None:
        try:
            following.advance()
        except Aborted as error:
            log.warning("rqm: the next round is prepared again: %s", error)
            self._drop_next()

    def _drop_next(self) -> None:
        """Give up the round that was prepared ahead. No vector was asked for, so this is no participation."""
        if self._next is not None:
            self.node_state.withdraw_participations(self._next.vector_nodes)
            self._next = None
