"""A private run on Flower, behind a grid that takes a strategy's messages and answers with the mean of all clients."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import sqrt
from pathlib import Path
from time import monotonic, sleep
from typing import Any, final

from flwr.app import ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from rqm._util.text import many
from rqm.flower.arrays import TrainedArrays
from rqm.flower.federation_folder import FederationFolder
from rqm.flower.messages import (
    FAILURE_KEY,
    NEXT_RECORD,
    RECORD,
    SIMULATED_KEY,
    RefusalError,
    read_answer,
    read_reply,
    request_message,
)
from rqm.flower.node_state import NodeState
from rqm.flower.round_machine import RoundMachine, State
from rqm.flower.run_settings import BudgetSpentError, Settings
from rqm.flower.shared_plan import Request, SharedPlan
from rqm.flower.vector_layout import Report
from rqm.ledger.budget_guard import Guard
from rqm.secagg import ProtocolError, Roster

log = logging.getLogger("flwr")


SURE_DEVIATIONS = 4.5
"""Standard deviations of noise by which the count of failed clients must exceed one half before a run stops."""


class RunFailedError(RuntimeError):
    """A run cannot begin, or go on. The message says why."""


@final
class PrivateRun:
    """A run from its first exchange of training to its end.

    Attributes:
        plan: The plan of the run, once it has begun.
        guard: The ledger's guard.
        machine: The rounds.
        refusals: What each node said that refused to take part.
        released: The number of rounds whose mean was released.
    """

    plan: SharedPlan
    guard: Guard
    machine: RoundMachine

    def __init__(
        self,
        settings: Settings,
        federation: str,
        grid: Grid,
        choose: Callable[[ArrayRecord], TrainedArrays],
        *,
        roster: Roster | None = None,
        key: Path | None = None,
        witness: str | Path | None = None,
    ) -> None:
        """Prepare a run; see `rqm.flower.strategy.private` for the arguments."""
        self.settings, self.federation, self.grid, self.choose = settings, federation, grid, choose
        self.roster, self.key, self.witness = roster, key, witness
        self.refusals: dict[int, str] = {}
        self.released, self.has_begun, self.is_simulated = 0, False, False
        self._folder: FederationFolder | None = None
        self._next_round = self._exchanges = 0
        self._trained, self._arrays, self._model = TrainedArrays(()), ArrayRecord(), ArrayRecord()
        self._report: Report | None = None
        self._failures: list[tuple[float, int]] = []
        self._warned: set[str] = set()

    # -- rounds -----------------------------------------------------------------------------------

    def train(self, messages: list[Message], timeout: float | None) -> list[Message]:
        """Run a round instead of an exchange of training messages.

        Args:
            messages: The strategy's messages. Their nodes are ignored; their content must be the same.
            timeout: Seconds that the round waits for vectors.

        Returns:
            One reply with the mean of all clients, or none if the round was discarded or the budget is spent.

        Raises:
            RunFailedError: If the run cannot begin, or must stop.
        """
        content = _common_content(messages)
        name, arrays = _model_record(content)
        self._arrays, self._report = arrays, None
        if not self.has_begun:
            self._begin(content)
        self._exchanges += 1
        if self._exchanges > self.settings.rounds:
            raise RunFailedError(
                f"round {self._exchanges}: the settings account for {self.settings.rounds} (rqm.rounds)"
            )
        round_index, self._next_round = self._next_round, self._next_round + 1
        if round_index >= self.settings.rounds:
            log.warning("rqm: all %d rounds that ε accounts for are charged: no more training", self.settings.rounds)
            return []
        self._exchange_until_end(round_index, content, timeout)
        machine = self.machine
        if machine.state == State.OUT_OF_BUDGET:
            log.warning("rqm: the budget ε = %g is spent: no more training", self.settings.epsilon)
            return []
        if machine.mean_vector is None:
            charged = "charged" if self.guard.charges[round_index] else "not charged"
            log.warning("rqm: round %d is discarded, and %s: %s", self._exchanges, charged, machine.discard_reason)
            return []
        self.released += 1
        self._report = self.plan.layout.read(machine.mean_vector, machine.survivors)
        self._check_failures(self._report)
        update = self._report.update
        if self.settings.records_per_round is not None:
            update = update * (machine.survivors / self.settings.records_per_round)
        self._model = self._trained.moved(arrays, update)
        return [self._reply(messages[0], {name: self._model}, is_evaluation=False)]

    def evaluate(self, messages: list[Message]) -> list[Message]:
        """Answer an exchange of evaluation messages with the metrics that came with the last round's training.

        Args:
            messages: The strategy's messages, which are not sent: their answers would be unprotected.

        Returns:
            One reply with the declared metrics of the model that was received in the last round, or none.
        """
        if not any(metric.is_evaluation for metric in self._metrics):
            self.warn_once(
                "clients' evaluation is off: their answers would be unprotected. Declare metrics with public bounds, "
                "such as rqm.eval-metrics.accuracy = '[0, 1]', or evaluate on public data (evaluate_fn)"
            )
            return []
        if self._report is None:
            return []
        self.warn_once("metrics of evaluation are those of the model before the last round")
        return [self._reply(messages[0], {}, is_evaluation=True)]

    @property
    def _metrics(self) -> tuple[Any, ...]:
        return self.settings.layout(1).metrics

    def _reply(self, request: Message, records: dict[str, Any], *, is_evaluation: bool) -> Message:
        """One reply for all clients, of weight 1."""
        assert self._report is not None
        values: dict[str, Any] = {self._weight_key: 1}
        values |= {
            metric.name: value
            for metric, value in self._report.metrics.items()
            if metric.is_evaluation == is_evaluation
        }
        return Message(RecordDict({**records, "metrics": MetricRecord(values)}), reply_to=request)

    _weight_key = "num-examples"

    def weigh_by(self, key: str) -> None:
        """Set the name under which the strategy looks for the weight of a reply."""
        self._weight_key = key

    def completed(self, arrays: ArrayRecord) -> ArrayRecord:
        """The strategy's new model, with dtypes restored and untrained arrays as they were; it is saved.

        Args:
            arrays: What the strategy made of the reply.

        Returns:
            The model.
        """
        self._model = self._trained.restored(arrays, self._arrays)
        assert self._folder is not None
        self._folder.save_model(self._model)
        return self._model

    def metrics(self) -> dict[str, float]:
        """The number of vectors in the last sum, and ε so far."""
        if not self.has_begun:
            return {}
        epsilon = self.guard.epsilon() if self.guard.has_running_epsilon else None
        survivors = self.machine.survivors if self._report is not None else 0
        return {"survivors": survivors} | ({} if epsilon is None else {"epsilon": epsilon})

    # -- beginning --------------------------------------------------------------------------------

    def _begin(self, content: dict[str, Any]) -> None:
        """Derive the plan, open the ledger and ask nodes whether they can take part. Nothing is charged."""
        self._trained = self.choose(self._arrays)
        size = self._trained.size(self._arrays)
        self._folder = folder = FederationFolder(self.federation, is_dry_run=self.settings.dry_run)
        self.plan, earlier = folder.plan(
            self.settings, self._trained.names, size, lambda text: log.info("rqm: %s", text)
        )
        self.guard = Guard(
            self.plan.mean,
            folder.run,
            budget=self.settings.epsilon,
            key=self.key,
            witness=self.witness,
            earlier=earlier,
        )
        self._next_round = self._first_round()
        self._say_plan(earlier is not None)
        nodes = NodeState(folder.run, self.plan.mean.participation.max_participations)
        nodes.check(len(self.guard.charges), self.plan.min_survivors)
        self.machine = RoundMachine(
            self.plan,
            self.guard,
            nodes,
            self.plan.mean.noise,
            self._available_nodes,
            rounds=self.settings.rounds,
            roster=self.roster,
        )
        self._check_nodes(content)
        self.has_begun = True

    def _first_round(self) -> int:
        """The first round that no earlier run has charged."""
        charges, participation = self.guard.charges, self.plan.mean.participation
        # Who took part in earlier runs is not known, so with correlated noise a whole separation lies between runs.
        gap = 1 if self.plan.mean.noise is None else participation.window
        first = max(charges) + gap if charges else 0
        if first >= participation.rounds or not self.guard.allows(first):
            raise BudgetSpentError(
                f"federation {self.federation!r} has spent its budget: ε = {self.guard.epsilon():.4g} of "
                f"{self.settings.epsilon:g} after {many(sum(charges.values()), 'round')}. Raise rqm.epsilon, or give "
                "another rqm.federation if other users take part "
                f"(of simulated nodes: rqm flower reset-simulated {self.federation})"
            )
        return first

    def _say_plan(self, has_earlier: bool) -> None:
        """Log what the run is before it begins."""
        mean, participation = self.plan.mean, self.plan.mean.participation
        assert self._folder is not None
        log.info("rqm: federation %r, in %s", self.federation, self._folder.run)
        log.info("rqm: %s; %d values are sent as %d coordinates", mean.mechanism, mean.dim, mean.coordinates)
        log.info("rqm: planned: %s", mean.guarantee().headline)
        if has_earlier or self.guard.charges:
            log.info("rqm: earlier runs of this federation have spent ε = %.4g", self.guard.epsilon())
        if participation.min_survivors is None:
            log.warning(
                "rqm: all %d clients of a round must stay to its end, or it is discarded: set rqm.min-survivors",
                participation.clients,
            )
        if self.plan.noise_over_clip > 1:
            log.warning(
                "rqm: the noise in a round's mean update is %.3g times the clip of an update: most models learn "
                "nothing. It falls with more clients, fewer trained values and a larger epsilon",
                self.plan.noise_over_clip,
            )
        if self.plan.min_survivors < self.plan.survivors_that_unmask:
            log.warning(
                "rqm: a node that is lost while it trains needs %d others, or the round is discarded, and charged",
                self.plan.survivors_that_unmask,
            )
        if not self.settings.train_metrics and self.settings.record_clip is None:
            log.info(
                "rqm: clients' training metrics are off: declare them with public bounds, such as "
                "rqm.train-metrics.train_loss = '[0, 5]'"
            )
        if self.plan.layout.failure_share:
            # The share at which the count shows, within all rounds, that training fails everywhere.
            noise = sqrt(mean.expected_error(0.0)) / self.plan.layout.l2_clip
            needed = (2 * SURE_DEVIATIONS * noise) ** 2 / participation.rounds
            if self.plan.layout.failure_share < needed:
                remedy = f" (or set rqm.failure-share = {needed:.2g})" if needed < 0.3 else ""
                log.warning(
                    "rqm: so few clients cannot show whether training fails: look at the nodes' own logs%s",
                    remedy,
                )
        noise_of_metrics, _ = self.plan.layout.extra_noise(sqrt(mean.expected_error(0.0)), self.plan.min_survivors)
        for metric, deviation in noise_of_metrics.items():
            is_useless = deviation > (metric.high - metric.low) / 2
            log.log(
                logging.WARNING if is_useless else logging.INFO,
                "rqm: the metric %s has noise of standard deviation %.2g each round%s",
                metric.name,
                deviation,
                ", more than it can vary: it needs more clients, or a larger rqm.metric-share" if is_useless else "",
            )

    def _available_nodes(self) -> list[int]:
        return [node for node in self.grid.get_node_ids() if node not in self.refusals]

    def _check_nodes(self, content: dict[str, Any]) -> None:
        """Ask all nodes for a check, and end the run if too few can take part."""
        records = {name: record for name, record in content.items() if not isinstance(record, ArrayRecord)}
        nodes = self._awaited_nodes(self._next_round, self.plan.clients)
        roster_hash = b"" if self.roster is None else self.roster.hash
        messages = [request_message(node, self.plan, content=records, roster_hash=roster_hash) for node in nodes]
        simulated: list[bool] = []
        for reply in self.grid.send_and_receive(messages, timeout=self.settings.stage_timeout):
            try:
                simulated.append(bool(read_reply(reply, RECORD).get(SIMULATED_KEY)))
            except RefusalError as error:
                self.refusals[reply.metadata.src_node_id] = str(error)
        needed = self.plan.min_survivors
        if len(simulated) < needed:
            common = Counter(self.refusals.values()).most_common(3)
            reasons = [f"{many(count, 'node')}: {reason}" for reason, count in common]
            if silent := len(nodes) - len(simulated) - len(self.refusals):
                timeout = f"{self.settings.stage_timeout:g} s (rqm.stage-timeout)"
                reasons.append(f"{many(silent, 'node')}: no answer within {timeout}")
            raise RunFailedError(
                f"{many(len(simulated), 'node')} of {len(nodes)} connected can take part: must be at least {needed} "
                f"(rqm.min-survivors). {'; '.join(reasons) or 'Connect more nodes'}. Nothing was charged"
            )
        for node, reason in self.refusals.items():
            log.warning("rqm: node %d does not take part: %s", node, reason)
        self.is_simulated = all(simulated)
        if not self.is_simulated:
            assert self._folder is not None
            self._folder.mark_deployed()

    def _awaited_nodes(self, round_index: int, target: int) -> list[int]:
        """The eligible nodes, once the target is reached, or when time is over."""
        end, connected = monotonic() + self.settings.stage_timeout, -1
        while len(nodes := self.machine.eligible_nodes(round_index)) < target and monotonic() <= end:
            if len(nodes) != connected:
                connected = len(nodes)
                log.info("rqm: %d of %d nodes are connected and may take part; waiting for more", connected, target)
            sleep(min(1.0, self.settings.stage_timeout / 10))
        return nodes

    # -- driving the round machine ------------------------------------------------------------------

    def _exchange_until_end(self, round_index: int, content: dict[str, Any], timeout: float | None) -> None:
        """Exchange messages until the round ends. Every message has the app's configuration; some have the model."""
        machine = self.machine
        nodes = [] if machine.is_prepared else self._awaited_nodes(round_index, self.plan.min_survivors)
        machine.begin(round_index, nodes)
        without_model = {name: record for name, record in content.items() if not isinstance(record, ArrayRecord)}
        while not machine.has_ended:
            requests, is_training = machine.requests(), machine.state == State.VECTORS
            training_nodes = set(machine.vector_nodes if is_training else [])
            messages = [
                request_message(node, self.plan, node_requests, content if node in training_nodes else without_model)
                for node, node_requests in requests.items()
            ]
            failures: list[str] = []
            refusals: list[str] = []
            for reply in self.grid.send_and_receive(
                messages, timeout=timeout if is_training else self.settings.stage_timeout
            ):
                self._receive(requests, reply, failures, refusals)
            machine.advance()
            if is_training and len(refusals) == len(training_nodes):
                reason = Counter(refusals).most_common(1)[0][0]
                raise RunFailedError(f"all {len(training_nodes)} nodes refuse to train: {reason}")
            if failures:
                self._report_failures(failures, len(training_nodes))

    def _receive(
        self, requests: dict[int, list[Request]], reply: Message, failures: list[str], refusals: list[str]
    ) -> None:
        """Hand a node's answers to the round machine; note why training failed, or was refused."""
        node = reply.metadata.src_node_id
        for name, request in zip((RECORD, NEXT_RECORD), requests.get(node, []), strict=False):
            try:
                self.machine.receive(request, read_answer(reply, name))
                failure = read_reply(reply, name).get(FAILURE_KEY)
                if isinstance(failure, str):
                    failures.append(failure)
            except ProtocolError as error:
                log.warning("rqm: node %d is lost in this round: %s", node, error)
                if isinstance(error, RefusalError):
                    refusals.append(str(error))

    def _report_failures(self, failures: list[str], count: int) -> None:
        """Log why training failed on nodes that trust the server; if it failed on all, the run ends."""
        reason, times = Counter(failures).most_common(1)[0]
        if len(failures) == count:
            raise RunFailedError(f"training fails on all {count} nodes: {reason}")
        log.warning("rqm: training failed on %d of %d nodes; %d of them: %s", len(failures), count, times, reason)

    def _check_failures(self, report: Report) -> None:
        """End the run if training certainly fails on more than half of the clients."""
        if report.failures is None:
            return
        survivors = self.machine.survivors
        self._failures.append((report.failures, survivors))
        _, deviation = self.plan.layout.extra_noise(sqrt(self.plan.mean.expected_error(0.0)), survivors)
        assert deviation is not None
        count, rounds = sum(failures for failures, _ in self._failures), len(self._failures)
        clients = sum(clients for _, clients in self._failures)
        if count - SURE_DEVIATIONS * deviation * sqrt(rounds) > clients / 2:
            raise RunFailedError(
                f"training fails on more than half of the clients: {count / rounds:.0f} ± "
                f"{deviation / sqrt(rounds):.0f} of {clients / rounds:.0f} in a round. Each node's log says why"
            )

    # -- the end ----------------------------------------------------------------------------------

    def warn_once(self, text: str) -> None:
        """Log a warning the first time."""
        if text not in self._warned:
            self._warned.add(text)
            log.warning("rqm: %s", text)

    def finish(self) -> None:
        """Log what the run guarantees.

        Raises:
            RunFailedError: If no round was released.
        """
        if not self.has_begun:
            raise RunFailedError("the strategy has sent no training messages through grid.send_and_receive")
        if not self.released:
            raise RunFailedError(f"no round has released a model: {self.machine.discard_reason}")
        assert self._folder is not None
        path = self._folder.save_model(self._model)  # also of a strategy that aggregates in its own `start`
        charges = self.guard.charges
        log.info(
            "rqm: %d of %d charged rounds were released; the model is %s",
            self.released,
            sum(charges.values()),
            "not kept in a dry run" if self.settings.dry_run else path,
        )
        if self._failures:
            count, rounds = sum(failures for failures, _ in self._failures), len(self._failures)
            _, deviation = self.plan.layout.extra_noise(sqrt(self.plan.mean.expected_error(0.0)), self._failures[-1][1])
            assert deviation is not None
            if deviation / sqrt(rounds) < self._failures[-1][1] / 8:  # or it would say nothing
                mean_count = max(0, round(count / rounds))  # noise may take it below 0
                log.info("rqm: training failed on %d ± %.0f clients a round", mean_count, deviation / sqrt(rounds))
        if self.guard.earlier is not None:
            log.info("rqm: together with earlier runs of this federation: ε = %.4g", self.guard.epsilon())
        for line in str(self.plan.mean.guarantee(charges=charges)).splitlines():
            log.info("rqm: %s", line)
        # What is protected, for the log.
        units = {"user": "a user is one node, with all of its data", "record": "a record is one example of a silo"}
        log.info(
            "rqm: %s",
            units[self.plan.mean.threat_model.unit],
        )
        if self.is_simulated:
            log.warning("rqm: all nodes trust the server (simulated): nothing in this run was protected from it")

    def close(self) -> None:
        """Close the ledger and the folder."""
        if hasattr(self, "guard"):
            self.guard.close()
        if self._folder is not None:
            self._folder.close()


@final
class PrivateGrid:
    """The grid that a wrapped strategy works with. Everything but sending messages is the other grid's."""

    def __init__(self, grid: Grid, run: PrivateRun) -> None:
        self._grid, self._run = grid, run

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Run a private round for training messages, and answer evaluation from what it reported.

        Args:
            messages: The strategy's messages.
            timeout: Seconds that a round waits for vectors.

        Returns:
            At most one reply.

        Raises:
            RunFailedError: If the messages are of several types, or neither of training nor of evaluation.
        """
        messages = list(messages)
        if not messages:
            return []
        kinds = {message.metadata.message_type.split(".")[0] for message in messages}
        if kinds == {MessageType.TRAIN}:
            return self._run.train(messages, timeout)
        if kinds == {MessageType.EVALUATE}:
            return self._run.evaluate(messages)
        raise RunFailedError(f"messages of type {', '.join(sorted(kinds))}: no answer to them would be protected")

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Refuse to send messages whose answers would be unprotected.

        Raises:
            RunFailedError: Always.
        """
        raise RunFailedError("grid.push_messages: must not be used by a private strategy; use grid.send_and_receive")


@contextmanager
def adapted(strategy: Any, run: PrivateRun) -> Iterator[None]:
    """Adapt a strategy's aggregation, for as long as it runs, to one reply a round.

    Args:
        strategy: The strategy, whose methods are replaced and put back.
        run: The run.
    """
    run.weigh_by(getattr(strategy, "weighted_by_key", "num-examples"))
    aggregate_train, aggregate_evaluate = strategy.aggregate_train, strategy.aggregate_evaluate

    def train(server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        arrays, metrics = aggregate_train(server_round, replies) if replies else (None, None)
        arrays = arrays if arrays is None else run.completed(arrays)
        return arrays, MetricRecord({**(metrics or {}), **run.metrics()})

    def evaluate(server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        replies = list(replies)
        return aggregate_evaluate(server_round, replies) if replies else None

    def tolerant(name: str, aggregate: Callable[..., MetricRecord]) -> Callable[..., MetricRecord]:
        def aggregated(records: list[RecordDict], *args: Any) -> MetricRecord:
            reported = [key for content in records for record in content.metric_records.values() for key in record]
            if len(reported) <= len(records):  # only the weight
                return MetricRecord()
            try:
                return aggregate(records, *args)
            except KeyError as error:
                run.warn_once(f"{name} asks for the metric {error}, which is off: declare it in rqm.train-metrics")
                return MetricRecord()

        return aggregated

    replaced: dict[str, Any] = {"aggregate_train": train, "aggregate_evaluate": evaluate}
    for name in ("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"):
        if callable(getattr(strategy, name, None)):
            replaced[name] = tolerant(name, getattr(strategy, name))
    before = {name: vars(strategy)[name] for name in replaced if name in vars(strategy)}
    vars(strategy).update(replaced)
    try:
        yield
    finally:
        for name in replaced:
            del vars(strategy)[name]
        vars(strategy).update(before)


def _common_content(messages: list[Message]) -> dict[str, Any]:
    """The content of all messages, which must be the same: nodes are chosen independently of it."""
    first = messages[0].content
    for message in messages[1:]:
        if message.content is not first and message.content != first:
            names = [name for name in first if message.content.get(name) != first[name]]
            raise RunFailedError(
                f"the strategy's messages differ between nodes ({', '.join(names) or 'other records'}): must be the "
                "same for all. Nothing was charged for this round"
            )
    return dict(first.items())


def _model_record(content: dict[str, Any]) -> tuple[str, ArrayRecord]:
    """The record with the model, and its name."""
    records = [(name, record) for name, record in content.items() if isinstance(record, ArrayRecord)]
    if len(records) != 1:
        raise RunFailedError(f"the strategy's messages have {len(records)} records of arrays: must be one, the model")
    return records[0]
