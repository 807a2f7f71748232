"""The server's side: a strategy that sees only sums, charges the ledger before each, and stops at the budget.

It runs secure aggregation over the grid around a round of training: keys and shares before it, acknowledgements and
shares after it. A strategy of Flower's own can be wrapped; it then gets the mean of all clients as if it were the
answer of one, so that its server optimiser works as ever.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from logging import INFO, WARNING
from pathlib import Path
from secrets import SystemRandom
from time import monotonic, sleep
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log

from rqm.encoding.private_mean import PrivateMean
from rqm.flower.mod import RECORD, new_round
from rqm.flower.settings import Settings
from rqm.flower.vectors import flat, unflat
from rqm.plan.account import AVAILABLE
from rqm.plan.guard import Guard
from rqm.plan.sizes import OWN
from rqm.secagg import Aborted, ProtocolError, Server
from rqm.secagg.wire import Kind
from rqm.training.server import Optimiser


class PrivateStrategy(Strategy):
    """Private federated training with secure aggregation.

    ``settings`` are those of the run (``Settings.from_run_config(context.run_config)``). With a ``strategy`` of
    Flower's, that one's server step is used; without, the plan's. The ledger is kept in ``folder``: one for each
    population of users, for as long as they are to be protected. ``stage_timeout`` is how long a stage waits for slow
    clients, in seconds; training itself has the timeout of ``start``.

    Clients are sampled anew each round, no user more often than ``participations`` allows; users are nodes.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        folder: Path | str,
        strategy: Strategy | None = None,
        stage_timeout: float = 60.0,
        expect_head: str | None = None,
    ) -> None:
        self.settings, self.strategy, self.folder = settings, strategy, Path(folder)
        self.stage_timeout, self.expect_head = stage_timeout, expect_head
        self.stopped = False
        self.guard: Guard | None = None
        self._optimiser: Optimiser | None = None
        self._taken: Counter[int] = Counter()
        self._grid: Grid | None = None
        self._server: Server | None = None
        self._nodes: list[int] = []
        self._arrays, self.note = ArrayRecord(), ""
        self._about: dict[str, Any] = {}

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
        """Train for as many rounds as the plan says (at most), or until the budget is spent."""
        rounds = self.settings.plan.rounds
        num_rounds = rounds if num_rounds is None else num_rounds
        if not 1 <= num_rounds <= rounds:
            raise ValueError(f"num_rounds = {num_rounds}: must be from 1 to {rounds}, what the plan accounts for")

        def evaluate(turn: int, arrays: ArrayRecord) -> MetricRecord | None:
            return None if self.stopped or evaluate_fn is None else evaluate_fn(turn, arrays)

        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            return super().start(grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate)
        finally:
            if self.guard is not None:
                self.guard.close()
                self.guard = None

    def summary(self) -> None:
        """Log what will be guaranteed."""
        plan = self.settings.plan
        delta = plan.private_mean(1).delta
        log(INFO, "\t├──> rqm: %s, %d clients a round, δ = %g", plan.mechanism, plan.clients, delta)
        if self.strategy is not None:
            self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample clients and exchange keys and shares; return the messages that ask for training."""
        self._server, self._grid, self._arrays, turn = None, grid, arrays, server_round - 1
        mean = self._open(arrays)
        assert self.guard is not None
        if self.stopped or not self.guard.allows(turn):
            self.stopped = True
            log(WARNING, "rqm: the budget ε = %s is spent: no more rounds", self.guard.budget)
            return []
        dim = mean.dim
        self._about = {"round": new_round(), "turn": turn, "dim": dim}
        server = Server(self.settings.params(dim, self._about["round"]))
        try:
            self._nodes = self._sample(grid)
            self._exchange(server, Kind.KEYS, dict.fromkeys(range(len(self._nodes)), b""))
            self._exchange(server, Kind.SHARES, server.advance())
            inbox = server.advance()
        except Aborted as error:
            self.note = str(error)
            return []
        self._server = server
        log(INFO, "rqm: %d clients have keys and shares, and are asked to train", len(inbox))
        given = RecordDict({"arrays": arrays, "config": config})
        config["server-round"] = server_round
        return [self._message(number, Kind.MASKED, data, given) for number, data in inbox.items()]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Finish the round: charge, unmask, decode, step. A round with too few clients is discarded, and charged."""
        if self.stopped:
            return None, None
        turn, server, total = server_round - 1, self._server, None
        if server is not None:
            try:
                self._take(server, replies)
                self._exchange(server, Kind.ACKS, server.advance())
                self._exchange(server, Kind.REVEAL, server.advance())
            except Aborted as error:
                server, self.note = None, str(error)
        assert self.guard is not None
        self.guard.charge(turn)  # durable before anything is unmasked
        if server is not None:
            try:
                total = server.finish()
            except Aborted as error:
                self.note = str(error)
        metrics: dict[str, Any] = {"survivors": 0 if server is None or total is None else len(server.survivors)}
        if self.guard.tells:
            metrics["epsilon"] = self.guard.epsilon()
            log(
                INFO,
                "rqm: (ε = %.4g, δ = %.3g) for every user against the server, certified, after %d rounds",
                metrics["epsilon"],
                self.guard.mean.delta,
                server_round,
            )
        else:
            log(INFO, "rqm: no L2 clip: what is guaranteed is per coordinate, and protects nobody")
        if server is None or total is None:
            log(WARNING, "rqm: round %d is discarded, and charged: %s", server_round, self.note)
            return None, MetricRecord(metrics)
        sums = torch.from_numpy(total)
        mean = self.guard.mean.decode(sums, len(server.survivors), round=turn, check=False)
        return self._step(server_round, mean), MetricRecord(metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask nobody: a client's own metrics would leave it in the clear. Use ``evaluate_fn`` on public data."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing was asked."""
        return None

    # -- inside -----------------------------------------------------------------------------------

    def _open(self, arrays: ArrayRecord) -> PrivateMean:
        """Open the ledger when the model's size is known."""
        if self.guard is None:
            plan = replace(self.settings.plan, dim=len(flat(arrays)), model=OWN)
            self.guard = Guard(
                plan.private_mean(),
                self.folder,
                plan=plan,
                budget=plan.budget_epsilon,
                expect_head=self.expect_head,
                sampling=AVAILABLE,
            )
        return self.guard.mean

    def _sample(self, grid: Grid) -> list[int]:
        """A round's nodes, in random order, among those who have not used up their participations.

        Waits for nodes that are not there yet. A round goes on with fewer, down to the plan's ``survivors``: the
        others are as good as lost before they sent their keys. After the first round nobody waits for more than those.
        """
        plan, end = self.settings.plan, monotonic() + self.stage_timeout
        least = plan.survivors or plan.clients
        wanted = least if self._taken else plan.clients
        while True:
            there = list(grid.get_node_ids())
            free = [n for n in there if plan.participations is None or self._taken[n] < plan.participations]
            if len(free) >= wanted or monotonic() > end:
                break
            sleep(min(1.0, self.stage_timeout / 10))
        count = min(len(free), plan.clients)
        if count < least:
            raise Aborted(f"{count} nodes may take part: must be at least {least}")
        chosen = SystemRandom().sample(free, count)
        self._taken.update(chosen)
        return chosen

    def _message(self, number: int, stage: Kind, data: bytes, content: RecordDict | None = None) -> Message:
        record = ConfigRecord({**self._about, "number": number, "stage": int(stage), "message": data})
        records = dict(content) if content is not None else {}
        return Message(
            RecordDict({**records, RECORD: record}), dst_node_id=self._nodes[number], message_type=MessageType.TRAIN
        )

    def _exchange(self, server: Server, stage: Kind, inbox: dict[int, bytes]) -> None:
        """Ask for the clients' messages of a stage, and hand them to the server."""
        assert self._grid is not None
        messages = [self._message(number, stage, data) for number, data in inbox.items()]
        self._take(server, self._grid.send_and_receive(messages, timeout=self.stage_timeout))

    def _take(self, server: Server, replies: Iterable[Message]) -> None:
        numbers = {node: number for number, node in enumerate(self._nodes)}
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                if reply.has_error():
                    raise ProtocolError(str(reply.error.reason))
                server.receive(bytes(reply.content.config_records[RECORD]["message"]), numbers[node])  # type: ignore[arg-type]
            except (ProtocolError, KeyError, TypeError) as error:
                log(WARNING, "rqm: node %d is lost in this round: %s", node, error)

    def _step(self, server_round: int, mean: torch.Tensor) -> ArrayRecord | None:
        """Move the model along the decoded mean."""
        values = flat(self._arrays)
        if self.strategy is not None:
            moved = values + mean if self.settings.sends == "update" else values - mean
            return self._wrapped(server_round, unflat(moved, self._arrays))
        if self._optimiser is None:
            self._optimiser = Optimiser(self.settings.plan.server, self.settings.plan.rounds, values.clone())
        self._optimiser.values.copy_(values)
        self._optimiser.move(mean if self.settings.sends == "gradient" else -mean, server_round - 1)
        return unflat(self._optimiser.values, self._arrays)

    def _wrapped(self, server_round: int, arrays: ArrayRecord) -> ArrayRecord | None:
        """What Flower's strategy makes of one answer: the mean of all."""
        assert self.strategy is not None
        key = getattr(self.strategy, "weighted_by_key", "num-examples")
        asked = Message(RecordDict(), dst_node_id=self._nodes[0], message_type=MessageType.TRAIN)
        answer = Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({key: 1})}), reply_to=asked)
        found, _ = self.strategy.aggregate_train(server_round, [answer])
        return found
