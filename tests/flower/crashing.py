"""A federation in one process that kills itself at a chosen write, fsync or send, and one that goes on from its files.

    echo FOLDER POINT POINT | python -m tests.flower.crashing

carries out four rounds in FOLDER and dies by SIGKILL before its POINT-th event (a torn write where that is a write);
then another process goes on from what is on the disk, and dies at the second POINT; a last one comes to the end. What
leaves the machine is written to the file ``wire`` at the moment when it leaves. For every line on the standard input it
prints how the processes ended, each forked; the number of events of the last is in the file ``count``.
"""

import hashlib
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from flwr.app import ConfigRecord, Message, RecordDict

from rqm import SecureRandom
from rqm.flower import BudgetSpentError, private_mod
from rqm.flower.messages import PLAN_KEY, PLAN_RECORD, REFUSAL_KEY
from rqm.ledger.node_policy import EPSILONS, LEDGERS, POLICY, NodeGuard, Policy
from tests.flower.local import LocalGrid, arrays, gradient_app, plan_of, private_strategy
from tests.simulation.small import federation, model

CONFIG = {
    "rqm.epsilon": 1e6,
    "rqm.clients": 3,
    "rqm.rounds": 4,
    "rqm.threshold": 2,
    "rqm.mechanism.mechanism": "rqm",
    "rqm.mechanism.clip": 0.5,
    "rqm.mechanism.margin": 30.0,
    "rqm.failure-share": 0.0,
    "rqm.stage-timeout": 0.01,
}
LIMITS = """
epsilon = 1e6
release_epsilon = 1e6
delta = 1e-5
l2_clip = 1.0
clients = 3
honest_clients = 3
max_participations = 24
mechanisms = ["rqm"]
trust_server_with_keys = true
"""
FEDERATION = "federation"
HOOKED = ("write", "pwrite", "fsync", "replace", "truncate", "link")


class Events:
    """Counts what happens to files and wires; dies at one of them. Nothing may leave while something is not synced."""

    def __init__(self, point: int | None) -> None:
        self.point, self.count, self.dirty = point, 0, set[int]()
        self.real = {name: getattr(os, name) for name in HOOKED}
        for name in HOOKED:
            setattr(os, name, lambda *delivered, name=name: self.on_disk(name, *delivered))

    def event(self) -> bool:
        self.count += 1
        return self.count == self.point

    def on_disk(self, name, *delivered):
        if self.event():
            if "write" in name:
                self.real[name](delivered[0], bytes(delivered[1])[: len(delivered[1]) // 2], *delivered[2:])
            os.kill(os.getpid(), signal.SIGKILL)
        outcome = self.real[name](*delivered)
        if "write" in name:
            self.dirty.add(delivered[0])
        if name == "fsync":
            self.dirty.discard(delivered[0])
        return outcome

    def leaves(self, wire: Path, **details) -> None:
        if self.event():
            os.kill(os.getpid(), signal.SIGKILL)
        assert not self.dirty, f"{details} leaves before a write is on the disk"
        file = os.open(wire, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.real["write"](file, (json.dumps(details) + "\n").encode())
        os.close(file)


class CrashingGrid(LocalGrid):
    """Keeps every node's state in a file, and like Flower writes it after the reply has left."""

    def __init__(self, folder: Path, events: Events) -> None:
        super().__init__(gradient_app(private_mod, federation(clients=3)), 3, CONFIG)
        self.folder, self.events = folder, events
        for node, context in self.contexts.items():
            context.node_config["rqm-policy"] = str(folder / f"home-{node}" / POLICY)
            if (folder / str(node)).exists():
                saved = json.loads((folder / str(node)).read_text())
                context.state = RecordDict(
                    {"rqm": ConfigRecord({n: bytes.fromhex(entry) for n, entry in saved.items()})}
                )

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            for fields in message.content.config_records.values():
                if "stage" in fields:
                    requests = {
                        "stage": fields["stage"],
                        "round_index": fields["round_index"],
                        "round": fields["round"].hex(),
                    }
                    self.events.leaves(self.folder / "wire", by="server", node=node, **requests)
            reply = self.ask(node, message.content)
            replies += [] if reply is None else [reply]
        return replies

    def ask(self, node: int, content: RecordDict):
        """What a node answers; it leaves, then the node's state is written."""
        context = self.contexts[node]
        reply = self.app(Message(RecordDict(dict(content)), dst_node_id=node, message_type="train"), context)
        if reply.has_error():
            return None
        for name, record in reply.content.config_records.items():
            if REFUSAL_KEY not in record:
                fields, digest = content.config_records[name], hashlib.sha256(record["message"]).hexdigest()
                summary = {"stage": fields["stage"], "round": fields["round"].hex(), "digest": digest}
                self.events.leaves(self.folder / "wire", by="client", node=node, **summary)
        saved = {name: bytes(entry).hex() for name, entry in context.state.config_records["rqm"].items()}
        chunk = self.folder / f"{node}.part"
        chunk.write_text(json.dumps(saved))
        os.replace(chunk, self.folder / str(node))
        return reply


def go(folder: Path, point: int | None) -> int:
    """All rounds that are left, from the files there; nodes are first asked again what they were asked last."""
    torch.set_num_threads(1)
    events = Events(point)
    grid = CrashingGrid(folder, events)
    for node in grid.contexts:  # a server that asks again, with a model of its own making
        last = folder / f"last-{node}"
        if last.exists():
            records, plan = json.loads(last.read_text()), (folder / "plan").read_text()
            for record in records.values():
                record |= {name: bytes.fromhex(record[name]) for name in ("round", "message")}
            if records["rqm"]["stage"] > 1:
                fields = {name: ConfigRecord(record) for name, record in records.items()}
                fields[PLAN_RECORD] = ConfigRecord({PLAN_KEY: plan})
                grid.ask(node, RecordDict({**fields, "arrays": arrays(model())}))
    real = grid.send_and_receive

    def noted(messages, *, timeout=None):
        messages = list(messages)
        for message in messages:
            fields = {name: dict(entry) for name, entry in message.content.config_records.items() if "stage" in entry}
            for record in fields.values():
                record |= {name: record[name].hex() for name in ("round", "message")}
            (folder / f"last-{message.metadata.dst_node_id}").write_text(json.dumps(fields))
            (folder / "plan").write_text(message.content[PLAN_RECORD][PLAN_KEY])
        return real(messages)

    grid.send_and_receive = noted
    with suppress(BudgetSpentError):  # a process that died after the last charge leaves no round
        private_strategy(CONFIG, FEDERATION).start(grid, arrays(model()))
    return events.count


def main() -> None:
    """Fork a process for every point; say how each ended. What takes long is done once, before."""
    mean = plan_of(CONFIG).mean
    for charges in range(1, 12):
        mean.account({0: charges})
    mean.add_messages(
        torch.zeros(1, mean.dim), torch.zeros(mean.coordinates, dtype=torch.int32), SecureRandom(), round_index=0
    )
    with TemporaryDirectory() as home:
        (Path(home) / POLICY).write_text(LIMITS)
        NodeGuard(Policy.from_toml(Path(home) / POLICY), Path(home)).allow(mean, b"x")
        costs = (Path(home) / LEDGERS / EPSILONS).read_text()
    for line in sys.stdin:
        folder, *points = line.split()
        ends = []
        for node in range(100, 103):
            (Path(folder) / f"home-{node}" / LEDGERS).mkdir(parents=True)
            (Path(folder) / f"home-{node}" / POLICY).write_text(LIMITS)
            (Path(folder) / f"home-{node}" / LEDGERS / EPSILONS).write_text(costs)
        for point in (*map(int, points), None):
            child = os.fork()
            if not child:
                os.environ["RQM_STATE"] = f"{folder}/state"
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                count = 0
                try:
                    count = go(Path(folder), point)
                except BaseException as error:
                    Path(folder, "error").write_text(repr(error))
                    os._exit(1)
                Path(folder, "count").write_text(str(count))
                os._exit(0)
            ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print(json.dumps(ends), flush=True)


if __name__ == "__main__":
    main()
