"""Flower's records at both ends: what a node is sent, its plan included, and what it answers, by mod and strategy."""

import copy
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

from rqm.flower import PrivateStrategy, RunFailedError, Settings, private_mod
from rqm.flower.messages import PLAN_RECORD
from rqm.ledger.node_policy import POLICY, TRUSTING
from tools.fuzz.mutate import damaged
from tools.fuzz.target import Target

NODES = 4
CONFIG: dict[str, Any] = {
    "rqm.epsilon": 1e6,
    "rqm.clients": NODES,
    "rqm.rounds": 1,
    "rqm.mechanism.mechanism": "rqm",
    "rqm.mechanism.clip": 0.5,
    "rqm.threshold": 2,
    "rqm.min-survivors": 3,
    "rqm.stage-timeout": 0.01,
}
ODD: tuple[Any, ...] = (
    *(0, 1, -1, 3, 10**6, 2**31, 2**63, 2**64, -(2**70), 0.0, 1.5, float("nan"), float("inf"), True, False),
    *("", "x", "\0", "1", b"", b"x", b"\0" * 16, b"x" * 5000, [], [1], [1.5, -1.0], ["a"], [b"x"], [True]),
)
Change = Callable[[int, RecordDict], RecordDict]


def model() -> ArrayRecord:
    """A few numbers."""
    return ArrayRecord({"w": Array(np.linspace(-1, 1, 6, dtype=np.float32)), "b": Array(np.zeros(2, np.float32))})


def app() -> ClientApp:
    """Returns the model as it came."""
    made = ClientApp(mods=[private_mod])

    @made.train()
    def train(message: Message, context: Context) -> Message:
        content = RecordDict({"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 3})})
        return Message(content, reply_to=message)

    return made


class Here(Grid):  # type: ignore[misc, unused-ignore]
    """All nodes in this process; ``told`` and ``said`` may change what goes either way."""

    def __init__(self, told: Change | None = None, said: Change | None = None) -> None:
        self.told, self.said, self.app = told, said, app()
        self.replies: list[Message] = []
        self.contexts = {100 + place: context(place) for place in range(NODES)}

    def get_node_ids(self) -> list[int]:
        """All of them."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Ask one after the other."""
        before = len(self.replies)
        for message in messages:
            node, content = message.metadata.dst_node_id, RecordDict(dict(message.content))
            content = content if self.told is None else self.told(node, content)
            reply = self.app(asked(node, content), self.contexts[node])
            if self.said is not None and reply.has_content():
                reply.content = self.said(node, RecordDict(dict(reply.content)))
            message.metadata.__dict__["_message_id"] = str(len(self.replies))
            self.replies.append(reply)
        return [str(place) for place in range(before, len(self.replies))]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """What was answered."""
        return [self.replies[int(place)] for place in message_ids]

    set_run = run = create_message = send_and_receive = None  # type: ignore[assignment]


def context(place: int, state: RecordDict | None = None) -> Context:
    """What a node keeps between messages."""
    own: dict[str, Any] = {"partition-id": place, "num-partitions": NODES}
    return Context(1, 100 + place, own, state or RecordDict(), dict(CONFIG), 0)


def asked(node: int, content: RecordDict) -> Message:
    """A message as a node gets it."""
    return Message(content, dst_node_id=node, message_type="train")


def changed(content: RecordDict, rng: Random) -> RecordDict:
    """Records with something missing, extra, or wrong."""
    out: dict[str, Any] = dict(content)
    name = rng.choice([*out, *([PLAN_RECORD] if PLAN_RECORD in out else [])] or ["rqm"])
    kind, record = rng.random(), out.get(name)
    if kind < 0.05:
        out.pop(name, None)
    elif kind < 0.1:
        out[rng.choice(("rqm", "extra", name))] = rng.choice(
            (MetricRecord({"x": 1.0}), ConfigRecord({"x": 1}), model())
        )
    elif isinstance(record, ConfigRecord):
        out[name] = _config(record, rng)
    elif isinstance(record, ArrayRecord):
        values = rng.choice(
            (np.full(3, np.nan, "f4"), np.zeros((2, 3)), np.zeros(0, "f4"), np.arange(6), np.ones(10**5))
        )
        out[name] = ArrayRecord({"w": Array(values)})
    return RecordDict(out)


def _config(record: ConfigRecord, rng: Random) -> ConfigRecord:
    values = dict(record)
    for _ in range(rng.choice((1, 1, 2))):
        key = rng.choice([*values, "extra"])
        value, kind = values.get(key), rng.random()
        if isinstance(value, bytes) and kind < 0.6:
            values[key] = damaged(value, rng)
        elif isinstance(value, str) and kind < 0.6:
            values[key] = _changed_text(value, rng)
        elif kind < 0.75:
            values.pop(key, None)
        else:
            values[key] = rng.choice(ODD)
    return ConfigRecord(values)


def _changed_text(text: str, rng: Random) -> str:
    """A plan with one value changed, or with characters that are not what they were."""
    try:
        values = json.loads(text)
    except ValueError:  # it was changed before
        values = None
    if not values or not isinstance(values, dict) or rng.random() < 0.2:
        return damaged(text.encode(), rng).decode("utf-8", "replace")
    table: Any = values
    key = rng.choice(list(table))
    while isinstance(table[key], dict | list) and table[key] and rng.random() < 0.8:
        table = table[key]
        key = rng.choice(list(table) if isinstance(table, dict) else range(len(table)))
    table[key] = rng.choice((None, True, 0, -1, 1, 2.5, 10**30, 1e308, "x", "", [], {}, [1], {"x": 1}, [[]]))
    return json.dumps(values)


class Quiet(Target):
    """No logs, and marks in a folder of one's own."""

    allowed = ()

    def prepare(self) -> None:
        """As a node starts."""
        logging.disable(logging.CRITICAL)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1
        os.environ["RQM_STATE"] = str(self.folder / "state")
        self.settings = Settings.from_run_config(CONFIG)

    def forget(self) -> None:
        """Let a message be answered again, by nodes that take what the server says."""
        shutil.rmtree(self.folder / "state", ignore_errors=True)
        (self.folder / "state").mkdir()
        (self.folder / "state" / POLICY).write_text(TRUSTING)

    def round(self, grid: Grid) -> Any:
        """A whole run, of one round."""
        self.forget()
        strategy = PrivateStrategy(FedAvg(fraction_evaluate=0.0), self.settings, federation="fuzzed")
        try:
            return strategy.start(grid, model())
        except RunFailedError:  # too few can take part, or no round is released
            return None


class ToNode(Quiet):
    """What a node is sent, at every stage, with its state as it was. It answers, whatever comes."""

    name = "Flower, node"

    def prepare(self) -> None:
        """A round that goes well, in which the first node's messages and states are kept."""
        super().prepare()
        self.kept: list[tuple[RecordDict, RecordDict]] = []
        grid = Here()

        def keep(node: int, content: RecordDict) -> RecordDict:
            if node == 100:
                self.kept.append((RecordDict(dict(content)), copy.deepcopy(grid.contexts[100].state)))
            return content

        grid.told = keep
        if self.round(grid) is None:
            raise AssertionError("a good run fails")
        self.app = app()
        for content, state in self.kept:
            self.forget()
            if self.app(asked(100, RecordDict(dict(content))), context(0, copy.deepcopy(state))).has_error():
                raise AssertionError("a good message is refused")
        if len(self.kept) < 6:
            raise AssertionError(f"{len(self.kept)} messages: must be a check and five stages")

    def attack(self, rng: Random) -> None:
        """A bad message; or a good one to a node with a bad state."""
        self.forget()
        content, state = rng.choice(self.kept)
        content, state = RecordDict(dict(content)), copy.deepcopy(state)
        if rng.random() < 0.9:
            content = changed(content, rng)
        else:
            state = changed(state, rng)
        reply = self.app(asked(100, content), context(0, state))
        if not isinstance(reply, Message):
            raise AssertionError("no answer")


class ToStrategy(Quiet):
    """What nodes answer: a round ends, whatever comes."""

    name = "Flower, server"
    part = 0.05

    def attack(self, rng: Random) -> None:
        """One answer in four is bad."""

        def said(_node: int, content: RecordDict) -> RecordDict:
            return changed(content, rng) if rng.random() < 0.25 else content

        self.round(Here(said=said))


TARGETS = (ToNode, ToStrategy)
