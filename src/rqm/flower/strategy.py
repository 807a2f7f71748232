"""The server's side: a strategy that sees only sums, charges the ledger before each, and stops at the budget.

It runs secure aggregation over the grid around a round of training: keys and shares before it, acknowledgements and
shares after it, together with the keys and shares of the next round. A strategy of Flower's own can be wrapped; it then
gets the mean of all clients as if it were the answer of one, so that its server optimiser works as ever.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from logging import INFO, WARNING
from math import inf
from pathlib import Path
from secrets import SystemRandom
from time import monotonic, sleep
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log

from rqm.flower.beside import LIARS, PARTICIPANTS, tell, told
from rqm.flower.chain import Chain
from rqm.flower.grid import PatientGrid
from rqm.flower.large import of_large
from rqm.flower.records import RECORD, RefusalError
from rqm.flower.rounds import Round, as_one_answer, exchange
from rqm.flower.settings import Settings
from rqm.flower.vectors import flat, unflat
from rqm.plan.guard import Guard
from rqm.plan.sizes import OWN
from rqm.secagg import Aborted, CorruptedRound, Roster, Server, new_round
from rqm.secagg.wire import Kind
from rqm.training.server_optimizer import ServerOptimizer

STRIKES = 3
"""In so many spoilt rounds a node may be the likely liar before it is not chosen again in this run."""


class PrivateStrategy(Strategy):
    """Private federated training with secure aggregation.

    ``settings`` are those of the run (``Settings.from_run_config(context.run_config)``). With a ``strategy`` of
    Flower's, that one's server step is used; without, the plan's. The ledger is kept in ``folder``: one for each
    population of users, for as long as they are to be protected; who signs and who witnesses it, see ``Guard``.
    With a ``roster`` (the file that the nodes' policies name) clients sign their keys: then nobody plays another one.
    ``stage_timeout`` is how long a stage waits for slow clients, in seconds; training itself has the timeout of
    ``start``. ``seeded`` takes answers of ``seeded_mod``, and no others: for simulation, not private, no ε is stated.

    Clients are sampled anew each round, no user more often than ``participations`` allows; users are nodes. A node
    that breaks the protocol loses its place in the round. A round that some have spoilt is done, and charged, again
    without them. Who is proved to have done so, or is the likely one three times, is in ``liars``, with the reason, and
    not chosen again; those proved are also in a file beside the ledger, and so for good. Who said no, by his policy or
    since something was wrong, is in ``refused`` with what he said.
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
        self.roster = None if roster is None else Roster.read(Path(roster))
        self.settings, self.strategy, self.folder = settings, strategy, Path(folder)
        self.stage_timeout, self.expect_head, self.seeded = stage_timeout, expect_head, seeded
        self.stopped = False
        self.guard: Guard | None = None
        self.liars: dict[int, str] = {}
        self.refused: dict[int, str] = {}
        self.note = ""
        self._key, self._witness = key, witness
        self._optimiser: ServerOptimizer | None = None
        self._taken: Counter[int] = Counter()
        self._doubts: Counter[int] = Counter()
        self._grid: Grid | None = None
        self._timeout: float | None = None
        self._now: Round | None = None
        self._next: Round | None = None
        self._chain: Chain | None = None
        self._given, self._arrays, self._turn, self._rounds = RecordDict(), ArrayRecord(), 0, 0

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
        rounds = self.settings.plan.participation.rounds
        num_rounds = rounds if num_rounds is None else num_rounds
        if not 1 <= num_rounds <= rounds:
            raise ValueError(f"num_rounds = {num_rounds}: must be from 1 to {rounds}, what the plan accounts for")

        def evaluate(turn: int, arrays: ArrayRecord) -> MetricRecord | None:
            return None if self.stopped or evaluate_fn is None else evaluate_fn(turn, arrays)

        self.folder.mkdir(parents=True, exist_ok=True)
        self.stopped, self._timeout, self._rounds, self._next = False, timeout, num_rounds, None
        self._chain = None if self.settings.plan.noise is None else Chain()
        try:
            grid = PatientGrid(grid)
            return super().start(grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate)
        finally:
            if self.guard is not None:
                self.expect_head = self.guard.head  # where this ledger must go on, if there is another start
                self.guard.close()
                self.guard = None

    def summary(self) -> None:
        """Log what will be guaranteed."""
        plan = self.settings.plan
        delta = plan.any_mean.delta
        log(INFO, "\t├──> rqm: %s, %d clients a round, δ = %g", plan.mechanism, plan.participation.clients, delta)
        if self.strategy is not None:
            self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample clients, charge, and exchange keys and shares; return the messages that ask for training."""
        self._now, self._grid, self._arrays, self._turn = None, grid, arrays, server_round - 1
        config["server-round"] = server_round
        self._given = RecordDict({"arrays": of_large(arrays), "config": config})
        self._open(arrays)
        ready, self._next = self._next, None
        try:
            ready = ready or self._prepared(self._sample(self._awaited(grid)), self._turn)
        except Aborted as error:
            self.note = str(error)
            self._break()
            return []
        return self._begin(ready)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Finish the round: unmask, decode, step. A round with too few clients is discarded; it was charged."""
        if self.stopped and self._now is None:
            return None, None
        mean, survivors = self._finish(replies), 0
        if mean is not None:
            assert self._now is not None
            survivors = len(self._now.server.vector_survivors)
        metrics: dict[str, Any] = {"survivors": survivors, **self._state(server_round)}
        if mean is None:
            assert self.guard is not None
            paid = "and charged" if self.guard.charges[self._turn] else "and nobody was asked for anything"
            log(WARNING, "rqm: round %d is discarded, %s: %s", server_round, paid, self.note)
            return None, MetricRecord(metrics)
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

    def _open(self, arrays: ArrayRecord) -> None:
        """Open the ledger when the model's size is known, and see who was chosen before."""
        if self.guard is not None:
            return
        plan = replace(self.settings.plan, dim=len(flat(arrays)), model=OWN)
        self.guard = Guard(
            plan.private_mean(),
            self.folder,
            plan=plan,
            budget=plan.budget_epsilon,
            expect_head=self.expect_head,
            key=self._key,
            witness=self._witness,
            seeded=self.seeded,
        )
        self._taken = Counter(told(self.folder / PARTICIPANTS, int))
        self.liars |= told(self.folder / LIARS, str)
        known, least = self._taken.total(), self._least * len(self.guard.charges)
        if plan.participation.max_participations is not None and known < least:
            raise ValueError(
                f"{self.folder / PARTICIPANTS}: tells of {known} participations: the ledger beside it was charged for "
                f"at least {least}; put the file back, or begin another ledger for other users"
            )

    def _state(self, server_round: int) -> dict[str, float]:
        """What has been spent, where that means something."""
        assert self.guard is not None
        epsilon = self.guard.epsilon() if self.guard.has_running_epsilon and not self.seeded else None
        if self.seeded:
            log(WARNING, "rqm: seeded randomness, NOT PRIVATE: no ε is stated")
        elif epsilon is None:
            log(INFO, "rqm: no L2 clip: what is guaranteed is per coordinate, and protects nobody")
        else:
            log(
                INFO,
                "rqm: (ε = %.4g, δ = %.3g) for every %s against the server, certified, after %d rounds",
                epsilon,
                self.guard.mean.delta,
                self.guard.mean.threat_model.unit,
                server_round,
            )
        return {} if epsilon is None else {"epsilon": epsilon}

    def _free(self, grid: Grid, turn: int) -> list[int]:
        """The nodes that are there and may take part in a round."""
        assert self.guard is not None
        most, apart = self.settings.plan.participation.max_participations or inf, self.guard.mean.participation.window
        free = [n for n in grid.get_node_ids() if self._taken[n] < most and n not in self.liars]
        return free if self._chain is None else [n for n in free if self._chain.free(n, turn, apart)]

    def _awaited(self, grid: Grid) -> list[int]:
        """The same when enough are there, or time is over; after the first round ``survivors`` are enough."""
        wanted, end = (
            self._least if self._taken else self.settings.plan.participation.clients,
            monotonic() + self.stage_timeout,
        )
        while len(free := self._free(grid, self._turn)) < wanted and monotonic() <= end:
            sleep(min(1.0, self.stage_timeout / 10))
        return free

    def _sample(self, free: list[int]) -> list[int]:
        """Choose a round's nodes, in random order, among those who may take part.

        A round goes on with fewer, down to the plan's ``survivors``: the others are as good as lost before they sent
        their keys. Who was chosen is on the disk before anybody is asked for anything.
        """
        plan = self.settings.plan
        count = min(len(free), plan.participation.clients)
        if count < self._least:
            raise Aborted(f"{count} nodes may take part: must be at least {self._least}")
        nodes = SystemRandom().sample(free, count)
        self._taken.update(nodes)
        if plan.participation.max_participations is not None:
            tell(self.folder / PARTICIPANTS, self._taken)
        return nodes

    def _break(self) -> None:
        """Never take back what was added before this."""
        if self._chain is not None:
            self._chain.begin()

    @property
    def _least(self) -> int:
        return self.settings.plan.participation.min_survivors or self.settings.plan.participation.clients

    def _prepared(self, nodes: list[int], turn: int) -> Round:
        """A round of these nodes, of which nothing has been asked yet."""
        assert self.guard is not None
        name, link = new_round(), None if self._chain is None else self._chain.link(turn)
        signed = b"" if self.roster is None else self.roster.hash
        params = self.settings.params(self.guard.mean.dim, name, signed, link)
        server = Server(params, self.roster, previous=None if self._chain is None else self._chain.owed)
        if self._chain is not None:
            self._chain.asked(nodes, turn)
            nodes = [*nodes, *[-1] * (params.vector_clients - len(nodes)), *self._chain.nodes]
        return Round(server, nodes, turn, name, self.guard.mean.dim, link)

    def _dismiss(self) -> None:
        """Give up the round that was prepared: nobody was asked for a vector in it, so nobody has taken part."""
        if self._next is not None:
            self._taken.subtract(self._next.nodes)
            self._next = None

    def _begin(self, ready: Round) -> list[Message]:
        """Charge for a round, then exchange keys and shares, as far as that is not done; ask for training.

        The charge is on the disk before anybody is asked for a vector.
        """
        assert self.guard is not None
        if not self.guard.allows(self._turn):
            self.stopped = True
            log(WARNING, "rqm: the budget ε = %s is spent: no more rounds", self.guard.budget)
            return []
        self.guard.charge(self._turn)
        try:
            while not ready.begun:
                self._exchange(ready)
                ready.advance()
        except Aborted as error:
            self.note = str(error)
            self._break()
            return []
        self._now, first = ready, ready.server.params.vector_clients
        log(INFO, "rqm: %d clients have keys and shares, and are asked to train", sum(u < first for u in ready.inbox))
        return ready.training(self._given)

    def _ahead(self) -> None:
        """Prepare the next round beside the end of this one, if there will be one, and nodes for it are there.

        Where noise is taken back the next round is about who is in this one's sum, and must wait for it.
        """
        assert self.guard is not None
        assert self._grid is not None
        turn = self._turn + 1
        if self._next is None and self._chain is None and turn < self._rounds and self.guard.allows(turn):
            try:
                self._next = self._prepared(self._sample(self._free(self._grid, turn)), turn)
            except Aborted as error:
                log(INFO, "rqm: the next round waits for its nodes: %s", error)

    def _finish(self, replies: Iterable[Message]) -> torch.Tensor | None:
        """The mean of the clients' vectors; None if too few are left, or no clients can have sent such a sum.

        A round that somebody has spoilt is done again without him, and charged again.
        """
        while self._now is not None:
            now, server, nodes = self._now, self._now.server, self._now.nodes
            try:
                for reply in replies:
                    now.take(reply, RECORD, self._lost, seeded=self.seeded)
                for _ in (Kind.ACKS, Kind.REVEAL):
                    now.advance()
                    self._ahead()
                    self._exchange(now, self._next)
                return self._decoded(now)
            except CorruptedRound as error:
                self._now, self.note = None, str(error)
                self._dismiss()  # a liar may be in it, and nodes know of two rounds at most
                found = {nodes[number]: reason for number, reason in error.blamed.items()}
                self._doubts.update(list(found))
                self.liars |= {n: reason for n, reason in found.items() if error.proved or self._doubts[n] >= STRIKES}
                if error.proved:
                    tell(self.folder / LIARS, {**told(self.folder / LIARS, str), **found})
                self._break()
                left = [node for node in nodes[: server.params.vector_clients] if node not in found and node >= 0]
                log(WARNING, "rqm: the round is done again without those who have spoilt it: %s", error)
                if len(left) >= self._least:
                    assert self._grid is not None
                    messages = self._begin(self._prepared(left, self._turn))
                    replies = list(self._grid.send_and_receive(messages, timeout=self._timeout))
            except Aborted as error:
                self._now, self.note = None, str(error)
                self._break()
            finally:
                for one, other in server.disputes:
                    log(WARNING, "rqm: of nodes %d and %d one has lied", nodes[one], nodes[other])
        return None

    def _decoded(self, now: Round) -> torch.Tensor | None:
        assert self.guard is not None
        mean, server, sums = self.guard.mean, now.server, torch.from_numpy(now.server.finish())
        if self._chain is not None:
            sums = self._chain.without_lost(sums, server, mean)
            self._chain.go_on(server, now.nodes)
        try:
            found: torch.Tensor = mean.decode(sums, len(server.vector_survivors), round_index=self._turn)
        except ValueError as error:
            self._now, self.note = None, f"no clients can have sent such a sum ({error})"
            return None
        records = self.settings.plan.records  # whose sum is divided by a public number of them
        return found if records is None else found * (len(server.vector_survivors) / records.batch)

    def _exchange(self, now: Round, following: Round | None = None) -> None:
        """Ask for the messages of a round's stage; and of the next one's, which then goes on by itself."""
        assert self._grid is not None
        rounds = [now] if following is None or following.begun else [now, following]
        exchange(self._grid, rounds, self._lost, timeout=self.stage_timeout, seeded=self.seeded)
        for one in rounds[1:]:
            try:
                one.advance()
            except Aborted as error:
                log(WARNING, "rqm: the next round is prepared anew: %s", error)
                self._dismiss()

    def _lost(self, node: int, error: Exception) -> None:
        """Say that a node is lost in a round."""
        log(WARNING, "rqm: node %d is lost in this round: %s", node, error or type(error).__name__)
        if isinstance(error, RefusalError):
            self.refused[node] = str(error)

    def _step(self, server_round: int, mean: torch.Tensor) -> ArrayRecord | None:
        """Move the model along the decoded mean."""
        values = flat(self._arrays)
        if self.strategy is not None:
            moved = values + mean if self.settings.sends == "update" else values - mean
            assert self._now is not None
            return as_one_answer(self.strategy, server_round, unflat(moved, self._arrays), self._now.nodes[0])
        if self._optimiser is None:
            self._optimiser = ServerOptimizer(
                self.settings.plan.server, self.settings.plan.participation.rounds, values.clone()
            )
        self._optimiser.values.copy_(values)
        self._optimiser.step(mean if self.settings.sends == "gradient" else -mean, server_round - 1)
        return unflat(self._optimiser.values, self._arrays)
