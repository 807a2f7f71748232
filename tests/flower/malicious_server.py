"""A ServerApp that attacks its nodes, in the place of the example's; what they answer is written down.

What it asks first is by the run's configuration; nodes that send keys are attacked with all that a server could try.
"""

import json
import os
from pathlib import Path
from time import monotonic, sleep

import numpy as np
from app.task import local_data, new_model, train
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp

from rqm.flower import Settings
from rqm.flower.arrays import TrainedArrays
from rqm.flower.grid import IsolatingGrid
from rqm.flower.messages import request_message
from rqm.flower.shared_plan import Request
from rqm.kernels.packing import unpack
from rqm.randomness import SecureRandom
from rqm.secagg import Client, Identity, Roster, Server, new_round, wire
from rqm.secagg.wire import STAGES, Kind

app = ServerApp()
NODES = 4


class Attacker:
    """A server that asks what it likes, of whom it likes."""

    def __init__(self, grid, config):
        self.grid, self.rate = IsolatingGrid(grid), config["learning-rate"]
        self.folder = Path(os.environ["RQM_STATE"])
        self.folder.mkdir(exist_ok=True)
        net = new_model()
        self.start, self.trained = ArrayRecord(net.state_dict()), TrainedArrays.of(ArrayRecord(net.state_dict()), net)
        self.content = {"arrays": self.start, "config": ConfigRecord({"learning-rate": self.rate})}
        threshold = config.pop("rqm.threshold", 0)
        self.plan = Settings.from_run_config(config).plan(self.trained.names, self.trained.size(self.start))
        object.__setattr__(self.plan, "threshold", threshold)  # an honest server's plan cannot have a bad one
        self.roster = Roster.read(Path(os.environ["RQM_ROSTER"]))
        end = monotonic() + 120
        while len(nodes := sorted(grid.get_node_ids())) < NODES and monotonic() < end:
            sleep(1)
        self.nodes = dict(enumerate(nodes))

    def say(self, attack, **more):
        with (self.folder / "said.jsonl").open("a") as file:
            file.write(json.dumps({"attack": attack, **more}) + "\n")

    def params(self, round_):
        return self.plan.params(round_, self.roster.hash)

    def ask(self, stage, round_, messages, round_index=0):
        """The answers of some clients, and the reasons of those who refuse."""
        requests = []
        for number, message in messages.items():
            request = Request(stage, round_, round_index, number, message)
            requests.append(request_message(self.nodes[number], self.plan, [request], self.content))
        numbers = {node: number for number, node in self.nodes.items()}
        answers, refused = {}, {}
        for reply in self.grid.send_and_receive(requests, timeout=120):
            number = numbers[reply.metadata.src_node_id]
            if reply.has_error():
                refused[number] = reply.error.reason
            else:
                answers[number] = reply.content.config_records["rqm"]["message"]
        return answers, refused

    def play(self, round_, until, round_index=0, count=NODES):
        """An honest round up to what the server would send for a stage; with all vectors that came."""
        server, inbox = Server(self.params(round_), self.roster), dict.fromkeys(range(count), b"")
        vectors = {}
        for stage in STAGES:
            if stage == until:
                return server, inbox, vectors
            answers, refused = self.ask(stage, round_, inbox, round_index)
            if refused:
                return refused, {}, vectors
            if stage == Kind.MASKED:
                vectors = answers
            for number, answer in answers.items():
                server.receive(answer, number)
            inbox = server.advance()
        raise AssertionError(until)

    def frame(self, kind, round_, number, body):
        return wire.frame(kind, self.params(round_).digest, number, body)


def keys(attacker, name):
    """Whether anybody sends keys at all."""
    round_ = new_round()
    answers, refused = attacker.ask(Kind.KEYS, round_, dict.fromkeys(attacker.nodes, b""))
    attacker.say(name, answered=len(answers), refused=sorted(set(refused.values())))
    return not refused


def other_plan(attacker):
    """Keys of the others for a round of the same name, under this run's plan; kept for the next run."""
    answers, _ = attacker.ask(Kind.KEYS, b"mixed", {1: b"", 2: b"", 3: b""})
    bodies = {u: bytes(wire.unframe(a, Kind.KEYS, attacker.params(b"mixed").digest)).hex() for u, a in answers.items()}
    (attacker.folder / "mixed.json").write_text(json.dumps(bodies))
    attacker.say("other plan", answered=len(bodies))


def mixed(attacker):
    """Those keys among the participants of a round under another plan."""
    saved_values = {
        int(u): bytes.fromhex(key) for u, key in json.loads((attacker.folder / "mixed.json").read_text()).items()
    }
    answers, _ = attacker.ask(Kind.KEYS, b"mixed", {0: b""})
    saved_values[0] = bytes(wire.unframe(answers[0], Kind.KEYS, attacker.params(b"mixed").digest))
    parties = attacker.frame(Kind.PARTIES, b"mixed", 0, wire.encode(saved_values))
    answers, refused = attacker.ask(Kind.SHARES, b"mixed", {0: parties})
    attacker.say("mixed plans", answered=len(answers), refused=list(refused.values()))


def played(attacker):
    """The server plays all others, with identities of its own."""
    round_ = new_round()
    params, answers = attacker.params(round_), attacker.ask(Kind.KEYS, round_, {0: b""})[0]
    fakes = [Identity(bytes([u + 1]) * 32) for u in range(NODES)]
    everybody = Roster.of([entry.public for entry in fakes])
    saved_values = {0: bytes(wire.unframe(answers[0], Kind.KEYS, params.digest))}
    for u in range(1, NODES):
        fake = Client(attacker.plan.params(round_, everybody.hash), u, fakes[u], everybody)
        saved_values[u] = bytes(wire.unframe(fake.answer(Kind.KEYS), Kind.KEYS, fake.params.digest))
    parties = attacker.frame(Kind.PARTIES, round_, 0, wire.encode(saved_values))
    answers, refused = attacker.ask(Kind.SHARES, round_, {0: parties})
    attacker.say("plays the others", answered=len(answers), refused=list(refused.values()))


def isolated(attacker):
    """Two of four are told of each other alone."""
    round_ = new_round()
    _, inbox, _ = attacker.play(round_, Kind.SHARES)
    size, alone = attacker.params(round_).keys_size, {}
    for u in (0, 1):
        body = wire.unframe(inbox[u], Kind.PARTIES, attacker.params(round_).digest)
        outcome = {v: bytes(key) for v, key in wire.read_entries(body, size, NODES)[0].items() if v in (0, 1)}
        alone[u] = attacker.frame(Kind.PARTIES, round_, u, wire.encode(outcome))
    answers, refused = attacker.ask(Kind.SHARES, round_, alone)
    attacker.say("isolates two", answered=len(answers), refused=sorted(set(refused.values())))


def two_stories(attacker):
    """Half of them are told that client 0 is in the sum, half that it is lost. Vectors are masked, and stay so."""
    round_ = new_round()
    params = attacker.params(round_)
    _, inbox, vectors = attacker.play(round_, Kind.ACKS)
    for u in (2, 3):
        tags = {v: tag for v, tag in params.read(inbox[u], Kind.SURVIVORS, u)[1].items() if v}
        story = wire.pack_set({1, 2, 3}, NODES) + wire.encode(tags) + wire.encode([0])
        inbox[u] = attacker.frame(Kind.SURVIVORS, round_, u, story)
    answers, _ = attacker.ask(Kind.ACKS, round_, inbox)
    acks = {u: wire.read_entries(wire.unframe(a, Kind.ACKS, params.digest), 16, NODES)[0] for u, a in answers.items()}
    proofs = {}
    for u in answers:
        fields = {v: acks[v][u] for v in answers if v != u and u in acks[v] and not (v == 0 and u > 1)}
        proofs[u] = attacker.frame(Kind.PROOF, round_, u, wire.encode(fields))
    answers, refused = attacker.ask(Kind.REVEAL, round_, proofs)
    sent = []
    for message in vectors.values():
        body = bytes(wire.unframe(message, Kind.MASKED, params.digest)[: params.masked_size])
        sent.append(unpack(body, params.bits, params.count))
    attacker.say(
        "two stories",
        answered=len(answers),
        refused=sorted(set(refused.values())),
        correlations=[max(abs(c) for c in correlations(attacker, vector)) for vector in sent],
        unmasked=max(correlations(attacker, own_levels(attacker, 0))),
    )


def update(attacker, number):
    """What a node's training changes, packed as the node does."""
    net = new_model()
    train(net, *local_data(number), attacker.rate)
    change = attacker.trained.read(ArrayRecord(net.state_dict())) - attacker.trained.read(attacker.start)
    return attacker.plan.layout.pack(change, {})


def correlations(attacker, levels):
    """Of what was sent with every node's true update, times √d: for noise, normal numbers."""
    for number in range(NODES):
        rotated, _ = attacker.plan.mean.transform(0).forward(update(attacker, number)[None])
        yield float(np.corrcoef(np.asarray(rotated[0]), levels.astype(float))[0, 1] * len(levels) ** 0.5)


def own_levels(attacker, number):
    """What that node would send if nobody masked it."""
    return np.asarray(attacker.plan.mean.encode(update(attacker, number), SecureRandom(), round_index=0))


def again(attacker):
    """A round of the same name a second time; then more rounds than the owners allow."""
    round_ = new_round()
    attacker.ask(Kind.KEYS, round_, dict.fromkeys(attacker.nodes, b""))
    answers, refused = attacker.ask(Kind.KEYS, round_, dict.fromkeys(attacker.nodes, b""))
    attacker.say("a round again", answered=len(answers), refused=sorted(set(refused.values())))
    vectors = []
    for round_index in (1, 1, 1):
        refused, _, outcome = attacker.play(new_round(), Kind.ACKS, round_index)
        vectors.append(len(outcome))
    attacker.say("more rounds", vectors=vectors, refused=sorted(set(refused.values())))


@app.main()
def main(grid, context):
    """All of it."""
    attacker = Attacker(grid, dict(context.run_config))
    if keys(attacker, "keys"):
        if not (attacker.folder / "mixed.json").exists():
            other_plan(attacker)
        else:
            for attack in (mixed, played, isolated, two_stories, again):
                attack(attacker)
    attacker.say("end")
