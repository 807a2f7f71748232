"""The server's side: a strategy that sees only sums, charges a ledger for each, and stops at the budget."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from rqm.config.model_sizes import OWN
from rqm.flower.arrays import from_vector, to_vector
from rqm.flower.grid import IsolatingGrid
from rqm.flower.messages import NEXT_RECORD, RECORD, RefusalError, read_answer, request_message
from rqm.flower.node_state import NodeState
from rqm.flower.round_machine import RoundMachine, State
from rqm.flower.run_settings import Request, Settings
from rqm.ledger.budget_guard import Guard
from rqm.secagg import ProtocolError, Roster
from rqm.simulation.server_optimizer import ServerOptimizer

log = logging.getLogger("flwr")


class PrivateStrategy(Strategy):
    """Private federated training with secure aggregation.

    Nodes are drawn anew for each round; users are nodes. A node that breaks the protocol is lost in the round. A
    round that nodes corrupted is repeated without them, and charged again.

    Attributes:
        guard: The ledger's guard, while the strategy runs.
        stopped: Whether the budget cannot pay for another round.
        refusals: What each node said that refused to take part.
        discard_reason: Why the last discarded or repeated round was so.
        expect_head: The hash at which the ledger must continue in another `start`.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        folder: Path | str,
        strategy: Strategy | None = None,
        stage_timeout: float = 60.0,
        expect_head: str | None = None,
        key: Path | None = None,
        witness: str | Path | None = None,
        roster: Path | str | None = None,
        seeded: bool = False,
    ) -> None:
        """Prepare a run.

        Args:
            settings: The settings of the run, `Settings.from_run_config(context.run_config)`.
            folder: Where the ledger is: one for each population of users, for as long as they are to be protected.
            strategy: A strategy of Flower's whose server step is used, on the mean of all clients as if it were one
                client's answer; None: the plan's server step.
            stage_timeout: Seconds that a stage waits for slow clients. Training has the timeout of `start`.
            expect_head: See `rqm.ledger.budget_guard.Guard`.
            key: See `Guard`.
            witness: See `Guard`.
            roster: The file that the nodes' policies name. Clients then sign their keys and cannot be impersonated.
            seeded: Accept the answers of `seeded_mod`, and no others: for simulations. Not private; no ε is stated.
        """
        self.settings, self.strategy, self.folder = settings, strategy, Path(folder)
        self.stage_timeout, self.seeded = stage_timeout, seeded
        self.expect_head, self._key, self._witness = expect_head, key, witness
        self.roster = None if roster is None else Roster.read(Path(roster))
        self.guard: Guard | None = None
        self.refusals: dict[int, str] = {}
        self.discard_reason = ""
        self._machine: RoundMachine | None = None
        self._grid: Grid | None = None
        self._optimizer: ServerOptimizer | None = None
        self._train_timeout: float | None = None
        self._rounds = settings.plan.participation.rounds
        self._train_content: dict[str, Any] = {}

    @property
    def stopped(self) -> bool:
        """Whether the budget cannot pay for another round."""
        return self._machine is not None and self._machine.state == State.OUT_OF_BUDGET

    @property
    def blamed(self) -> dict[int, str]:
        """A reason for each node that corrupted rounds, and is not chosen again."""
        return {} if self._machine is None else self._machine.node_state.blamed

    # -- what Flower calls ------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Train until the rounds or the budget are used up.

        Args:
            grid: Flower's grid.
            initial_arrays: The model.
            num_rounds: At most the plan's number of rounds, which is the default.
            timeout: Seconds that a round waits for vectors.
            train_config: Sent to the nodes that train.
            evaluate_config: Not used: nodes are not asked to evaluate.
            evaluate_fn: Evaluates the model after each round, on public data.

        Returns:
            Flower's result; its train metrics are `survivors` and, where it is known, `epsilon`.

        Raises:
            ValueError: If there are more rounds than the plan accounts for.
        """
        planned = self.settings.plan.participation.rounds
        num_rounds = planned if num_rounds is None else num_rounds
        if not 1 <= num_rounds <= planned:
            raise ValueError(f"num_rounds = {num_rounds}: must be from 1 to {planned}, what the plan accounts for")

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            return None if self.stopped or evaluate_fn is None else evaluate_fn(server_round, arrays)

        self._machine, self._train_timeout, self._rounds = None, timeout, num_rounds
        isolating = cast(Grid, IsolatingGrid(grid))
        try:
            return super().start(
                isolating, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate
            )
        finally:
            if self.guard is not None:
                self.expect_head = self.guard.head
                self.guard.close()
                self.guard = None

    def summary(self) -> None:
        """Log what the run is."""
        plan = self.settings.plan
        log.info(
            "\t├──> rqm: %s, %d clients a round, δ = %g",
            plan.mechanism,
            plan.participation.clients,
            plan.any_mean.delta,
        )
        if self.strategy is not None:
            self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Prepare a round; `aggregate_train` sends its messages.

        Args:
            server_round: The round, from 1; it is added to the configuration as `server-round`.
            arrays: The model.
            config: Sent to the nodes that train.
            grid: Where messages are sent.

        Returns:
            Nothing: a round takes several exchanges, not one.
        """
        config["server-round"] = server_round
        self._train_content, self._grid = {"arrays": arrays, "config": config}, grid
        if self._machine is None:
            self._machine = self._opened(arrays, grid)
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Run a round, and step along its mean.

        Args:
            server_round: The round, from 1.
            replies: Empty, since nothing was sent in Flower's own exchange.

        Returns:
            The new model, None if the round was discarded; and the metrics `survivors` and `epsilon`.
        """
        machine, guard = self._machine, self.guard
        assert machine is not None
        assert guard is not None
        if self.stopped:
            return None, None
        self._run_round(machine, server_round - 1)
        if self.stopped:
            log.warning("rqm: the budget ε = %s is spent: no more rounds", guard.budget)
            return None, None
        self.discard_reason = machine.discard_reason
        metrics = MetricRecord({"survivors": machine.survivors, **self._privacy_spent(server_round)})
        if machine.mean_vector is None:
            charge = "and charged" if guard.charges[machine.round_index] else "and not charged"
            log.warning("rqm: round %d is discarded, %s: %s", server_round, charge, machine.discard_reason)
            return None, metrics
        return self._step(server_round, machine.mean_vector, machine.vector_nodes[0]), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send nothing: a client's metrics would be unprotected. Use `evaluate_fn` on public data.

        Args:
            server_round: Not used.
            arrays: Not used.
            config: Not used.
            grid: Not used.

        Returns:
            No messages.
        """
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """There is nothing to aggregate.

        Args:
            server_round: Not used.
            replies: Empty.

        Returns:
            None.
        """
        return None

    # -- driving the round machine ------------------------------------------------------------------

    def _opened(self, arrays: ArrayRecord, grid: Grid) -> RoundMachine:
        """A round machine, with its ledger; both need the size of the model."""
        plan = replace(self.settings.plan, dim=len(to_vector(arrays)), model=OWN)
        mean = plan.private_mean()
        self.guard = Guard(
            mean,
            self.folder,
            plan=plan,
            budget=plan.budget_epsilon,
            expect_head=self.expect_head,
            key=self._key,
            witness=self._witness,
            seeded=self.seeded,
        )
        nodes = NodeState(self.folder, plan.participation.max_participations)
        nodes.check(len(self.guard.charges), self.settings.min_survivors)
        noise: Any = mean.noise
        if noise is not None and self.seeded:
            from rqm.flower.seeded_client import SeededNoise  # noqa: PLC0415 (simulations only)

            noise = SeededNoise(noise)
        return RoundMachine(
            self.settings, mean, self.guard, nodes, noise, grid.get_node_ids, rounds=self._rounds, roster=self.roster
        )

    def _run_round(self, machine: RoundMachine, round_index: int) -> None:
        """Exchange messages until the round ends."""
        assert self._grid is not None
        machine.begin(round_index, [] if machine.is_prepared else self._awaited_nodes(machine, round_index))
        while not machine.has_ended:
            requests, is_training = machine.requests(), machine.state == State.VECTORS
            training_nodes = set(machine.vector_nodes if is_training else [])
            messages = [
                request_message(node, node_requests, self._train_content if node in training_nodes else None)
                for node, node_requests in requests.items()
            ]
            timeout = self._train_timeout if is_training else self.stage_timeout
            for reply in self._grid.send_and_receive(messages, timeout=timeout):
                self._receive(machine, requests, reply)
            machine.advance()

    def _awaited_nodes(self, machine: RoundMachine, round_index: int) -> list[int]:
        """The eligible nodes: all that are planned in a first round, enough in a later one, or when time is over."""
        has_begun = machine.node_state.participations.total() > 0
        min_nodes = self.settings.min_survivors if has_begun else self.settings.plan.participation.clients
        end = monotonic() + self.stage_timeout
        while len(nodes := machine.eligible_nodes(round_index)) < min_nodes and monotonic() <= end:
            sleep(min(1.0, self.stage_timeout / 10))
        return nodes

    def _receive(self, machine: RoundMachine, requests: dict[int, list[Request]], reply: Message) -> None:
        """Hand a node's answers to the round machine."""
        node = reply.metadata.src_node_id
        for name, request in zip((RECORD, NEXT_RECORD), requests.get(node, []), strict=False):
            try:
                machine.receive(request, read_answer(reply, name, seeded=self.seeded))
            except ProtocolError as error:
                log.warning("rqm: node %d is lost in this round: %s", node, error)
                if isinstance(error, RefusalError):
                    self.refusals[node] = str(error)

    # -- results ----------------------------------------------------------------------------------

    def _privacy_spent(self, server_round: int) -> dict[str, float]:
        """ε of all charges, where it is known."""
        guard = self.guard
        assert guard is not None
        if self.seeded:
            log.warning("rqm: seeded randomness, NOT PRIVATE: no ε is stated")
            return {}
        epsilon = guard.epsilon() if guard.has_running_epsilon else None
        if epsilon is None:
            log.info("rqm: no L2 clip: the guarantee is per coordinate, and protects no user")
            return {}
        log.info(
            "rqm: (ε = %.4g, δ = %.3g) for every %s against the server, certified, after %d rounds",
            epsilon,
            guard.mean.delta,
            guard.mean.threat_model.unit,
            server_round,
        )
        return {"epsilon": epsilon}

    def _step(self, server_round: int, mean: torch.Tensor, node: int) -> ArrayRecord | None:
        """Move the model along the decoded mean."""
        arrays = self._train_content["arrays"]
        values = to_vector(arrays)
        if self.strategy is not None:
            trained = values + mean if self.settings.sends == "update" else values - mean
            return _aggregated(self.strategy, server_round, from_vector(trained, arrays), node)
        if self._optimizer is None:
            plan = self.settings.plan
            self._optimizer = ServerOptimizer(plan.server, plan.participation.rounds, values.clone())
        self._optimizer.values.copy_(values)
        self._optimizer.step(mean if self.settings.sends == "gradient" else -mean, server_round - 1)
        return from_vector(self._optimizer.values, arrays)


def _aggregated(strategy: Strategy, server_round: int, arrays: ArrayRecord, node: int) -> ArrayRecord | None:
    """What a strategy of Flower's makes of the mean of all clients, as one node's reply of weight 1."""
    weight_key = getattr(strategy, "weighted_by_key", "num-examples")
    request = Message(RecordDict(), dst_node_id=node, message_type=MessageType.TRAIN)
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({weight_key: 1})})
    aggregated, _ = strategy.aggregate_train(server_round, [Message(content, reply_to=request)])
    return aggregated
