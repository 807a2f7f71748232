"""kill -9 on a live SuperLink, ServerApps and SuperNodes: nothing is released uncharged, nobody answers twice."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from time import monotonic, sleep

import pytest

pytest.importorskip("flwr")
from rqm.ledger.ledger import LEDGER, read
from rqm.secagg.wire import Kind
from rqm.verify import verify
from tests.flower.users import EXAMPLE, FEDERATION, POLICY, written

SPY = '''from flwr.clientapp import ClientApp

from rqm.flower import private_mod


def spy(message, context, call_next):
    """Write down what is about to leave this node."""
    import json
    import os

    requests = {name: dict(record) for name, record in message.content.config_records.items() if "stage" in record}
    reply = private_mod(message, context, call_next)
    for name, request in requests.items():
        if reply.has_error() or "refused" in reply.content.config_records[name]:
            continue
        line = {"node": context.node_id, "round": request["round"].hex()}
        line |= {key: request[key] for key in ("round_index", "stage")}
        with open(os.environ["RQM_SPY"], "a") as file:
            file.write(json.dumps(line) + "\\n")
    return reply


app = ClientApp(mods=[spy])
'''
CONFIG = "num-server-rounds=400 rqm.epsilon=1000000.0 rqm.clients=3 rqm.min-survivors=2"
NODES, KILLS = 6, 32


class Live:
    """A federation of the example's app with a spy in it, and who is to be killed."""

    def __init__(self, folder, stack, monkeypatch):
        monkeypatch.syspath_prepend(str(EXAMPLE))
        import federation

        policy = POLICY.replace("= 4", "= 3")  # in a round
        self.app = written(folder / "app", policy, "threshold = 2\nstage-timeout = 20.0\n")
        client, server = (self.app / "app" / f"{name}_app.py" for name in ("client", "server"))
        client.write_text(client.read_text().replace("app = PrivateClientApp()\n", SPY))
        server.write_text(server.read_text().replace("train_config=config", "train_config=config, timeout=30"))
        self.folder, self.spied, self.stack = folder, folder / "spied", stack
        self.spied.touch()
        self.all = federation.Federation(folder, folder / "state", stack)
        for environment in (self.all.environment, self.all.server_environment):
            environment["RQM_SPY"] = str(self.spied)
        self.all.enrol(NODES, policy)
        self.link = self.started_link()
        self.nodes = [self.all.node(number, NODES) for number in range(NODES)]
        self.running, self.tried = False, [0.0] * NODES

    def started_link(self):
        return self.all.link("--database", str(self.folder / "link.db"))

    def lines(self):
        return [json.loads(line) for line in self.spied.read_text().splitlines()]

    def progress(self, more, seconds=120):
        """Wait for so many more answers, with a run if there is none; whether they came."""
        if not self.running:
            command = [str(Path(sys.executable).parent / "flwr"), "run", str(self.app), "here"]
            subprocess.run([*command, "--run-config", CONFIG], env=self.all.server_environment, check=True, timeout=300)
            self.running = True
        expected_values, end = len(self.lines()) + more, monotonic() + seconds
        while len(self.lines()) < expected_values:
            if monotonic() > end:
                self.kill_server()
                self.running = False  # begin another
                return False
            sleep(0.05)
            self.revive()
        return True

    def revive(self):
        """Start nodes again; the SuperLink lets them in when it has noticed that they were gone."""
        for number, node in enumerate(self.nodes):
            if node.poll() is not None and monotonic() > self.tried[number] + 15:
                self.end(node)  # what it has left behind
                self.tried[number] = monotonic()
                self.nodes[number] = self.all.node(number, NODES)

    def end(self, node):
        with suppress(ProcessLookupError):
            os.killpg(node.pid, signal.SIGKILL)

    def kill(self, victim, chance):
        if victim == "node":
            self.end(chance.choice([node for node in self.nodes if node.poll() is None]))
        elif victim == "server":
            assert self.kill_server(), "no ServerApp is running"
            self.running = False
        else:
            os.killpg(self.link.pid, signal.SIGKILL)
            self.link.wait()
            self.kill_server()
            self.link, self.running = self.started_link(), False

    def kill_server(self):
        """Kill this federation's ServerApp, which has a process group of its own; whether there was one."""
        outcome, node_ledgers = 0, f"RQM_SPY={self.spied}\0".encode()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # others', or gone meanwhile
                if (
                    b"flwr-serverapp\0" in (process / "cmdline").read_bytes()
                    and node_ledgers in (process / "environ").read_bytes()
                ):
                    os.kill(int(process.name), signal.SIGKILL)
                    outcome += 1
        return outcome > 0


@pytest.mark.slow  # a quarter of an hour, mostly of waiting
def test_thirty_kills_of_a_live_federation(tmp_path, monkeypatch):
    chance, kills = Random(0), Counter()
    with ExitStack() as stack:
        live = Live(tmp_path, stack, monkeypatch)
        assert live.progress(15, 400)  # a whole round
        while kills.total() < KILLS:
            if live.progress(chance.randint(1, 9)):
                victim = chance.choices(["node", "server", "link"], [4, 1, 1])[0]
                live.kill(victim, chance)
                kills[victim] += 1
        assert live.progress(15, 400)
    lines = live.lines()
    answers = Counter((line["node"], line["round"], line["stage"]) for line in lines)
    rounds = {(line["round"], line["round_index"]) for line in lines if line["stage"] >= Kind.MASKED}
    (path,) = (tmp_path / "state" / "federations" / FEDERATION).glob(f"*/{LEDGER}")
    spent = read(path).charges
    print(f"{dict(kills)} killed, {len(lines)} answers in {len(rounds)} rounds, {spent.total()} charges")
    assert set(kills) == {"node", "server", "link"}
    assert max(answers.values()) == 1
    begun = Counter(round_index for _, round_index in rounds)
    assert all(spent[round_index] >= count for round_index, count in begun.items())
    assert not verify(path).wrong
