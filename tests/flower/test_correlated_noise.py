"""Noise that cancels on Flower: two messages a participation, losses between them, chains that are broken."""

import copy
from collections import Counter

import pytest

pytest.importorskip("flwr")
import torch
from flwr.app import ConfigRecord, Message, RecordDict

from rqm.config.account import account_ledger
from rqm.flower import private_mod
from rqm.flower.round_machine import NoiseChain
from rqm.ledger.node_policy import TEMPLATE
from rqm.secagg.wire import Kind
from rqm.simulation.loop import CohortSampler, RunState
from rqm.verify import verify
from tests.flower.local import LocalGrid, give_policies, gradient_app, plan_folder, plan_of, start, survivors
from tests.flower.seeded import seed_nodes
from tests.flower.test_strategy import Descent
from tests.plans import make_plan
from tests.simulation.small import federation, model

NODES = 12
CONFIG = {
    "rqm.epsilon": 1000.0,
    "rqm.failure-share": 0.0,
    "rqm.clients": 4,
    "rqm.min-survivors": 3,
    "rqm.rounds": 6,
    "rqm.min-separation": 3,
    "rqm.max-participations": 2,
    "rqm.noise": 12.0,
    "rqm.delta": 1e-4,
    "rqm.mechanism.mechanism": "rounding",
    "rqm.mechanism.levels": 2,
    "rqm.mechanism.margin": 1.0,
    "rqm.mechanism.clip": 0.5,
}
KEPT = {name: value for name, value in CONFIG.items() if name != "rqm.noise"}
KEPT |= {"rqm.noise.transient-std": 9.0, "rqm.noise.residual-std": 2.0, "rqm.noise.gain": 5}


class InTurn(LocalGrid):
    """Nodes come as the simulator's clients do: there are those of this round, and of the one before."""

    def __init__(self, config, monkeypatch, lose=lambda node, stage, round_index: False):
        super().__init__(gradient_app(private_mod, federation(), rate=-1.0), NODES, config, lose)
        self.plan, self.round_index = simulators_plan(config), 0
        seed_nodes(monkeypatch, self, self.plan)

    def get_node_ids(self):
        return [100 + user for user in CohortSampler(self.plan, NODES).clients(self.round_index)]


class InTurnDescent(Descent):
    """The simulator's server step; it does not look which nodes are there, but lets those of its round come."""

    def __init__(self, grid):
        super().__init__(grid.plan)
        self.grid = grid

    def configure_train(self, server_round, record, config, grid):
        self.grid.round_index, self.current_arrays = server_round - 1, self.current_arrays or record
        return [Message(RecordDict({"arrays": record}), dst_node_id=1, message_type="train")]


def simulators_plan(config):
    """The plan of the same run in the simulator."""
    mean = plan_of(config).mean
    participation = {"clients": 4, "min_survivors": 3, "rounds": 6, "min_separation": 3, "max_participations": 2}
    plan = make_plan(
        **participation,
        mechanism=mean.mechanism,
        noise=mean.noise,
        sampling=mean.participation.sampling,
        delta=mean.delta,
        transforms={"l2_clip": 1.0, "rotate": True},
        server={"rate": 0.5, "momentum": 0.9, "schedule": "linear"},
    )
    assert plan.private_mean(mean.dim) == mean
    return plan


def values_of(record):
    return torch.cat([torch.from_numpy(array.numpy().copy()).flatten() for array in record.values()])


def run(tmp_path, config=CONFIG, lose=lambda *_: False, grid=None, **options):
    grid = grid or LocalGrid(gradient_app(private_mod, federation()), NODES, config, lose)
    return *start(grid, config, tmp_path, **options), grid


def run_in_turn(tmp_path, config, monkeypatch, lose=lambda *_: False):
    """A run whose nodes come and encode as the simulator's."""
    with monkeypatch.context() as patch:
        grid = InTurn(config, patch, lose)
        return *start(grid, config, tmp_path, strategy=InTurnDescent(grid)), grid


BOTH = [pytest.param(CONFIG, id="all goes"), pytest.param(KEPT, id="a part stays", marks=pytest.mark.slow)]


@pytest.mark.parametrize("config", BOTH)
def test_the_model_is_the_simulators(config, tmp_path, monkeypatch):
    """But for the rounding of weights: their differences are sent."""
    result, _, grid = run_in_turn(tmp_path, config, monkeypatch)
    trainer = RunState(grid.plan, federation(), model())
    for _ in range(6):
        trainer.step()
    assert (values_of(result.arrays) - trainer.values).abs().max() < 1e-6 * trainer.values.abs().max()
    second = [fields for fields, reply in grid.observed if fields == Kind.MASKED and not reply.has_error()]
    assert len(second) == 4 * 6 + 4 * 5


@pytest.mark.parametrize(
    ("stage", "config"),
    [(stage, CONFIG) for stage in (Kind.KEYS, Kind.MASKED)]
    + [pytest.param(stage, CONFIG, marks=pytest.mark.slow) for stage in (Kind.SHARES, Kind.ACKS, Kind.REVEAL)]
    + [pytest.param(Kind.MASKED, KEPT, marks=pytest.mark.slow)],
)
def test_the_noise_of_a_node_that_drops_out_before_it_settles_is_recovered(stage, config, tmp_path, monkeypatch):
    whole, _, grid = run_in_turn(tmp_path / "whole", config, monkeypatch)
    someone = 100 + CohortSampler(grid.plan, NODES).clients(2)[1]

    def lose(node, now, round_index):
        return node == someone and round_index == 3 and now >= stage

    result, _, _ = run_in_turn(tmp_path / "lost", config, monkeypatch, lose)
    assert (values_of(result.arrays) == values_of(whole.arrays)).all()


def test_a_node_that_drops_out_in_its_own_round_settles_nothing(tmp_path, monkeypatch):
    someone = 100 + CohortSampler(simulators_plan(CONFIG), NODES).clients(2)[1]
    for stage, expected in ((Kind.MASKED, 3), (Kind.REVEAL, 4)):

        def lose(node, now, round_index, stage=stage):
            return node == someone and round_index == 2 and now == stage

        result, _, _ = run_in_turn(tmp_path / stage.name, CONFIG, monkeypatch, lose)
        assert survivors(result) == [4, 4, expected, 4, 4, 4]


class Watched(LocalGrid):
    """Notes what is asked of whom; ``away`` says, of what is asked, who does not hear of it."""

    def __init__(self, config, away=lambda fields: False, nodes=NODES):
        super().__init__(gradient_app(private_mod, federation()), nodes, config)
        self.away, self.requests, self.answers = away, [], []

    def send_and_receive(self, messages, *, timeout=None):
        messages = [(entry, dict(entry.content.config_records["rqm"])) for entry in messages]
        self.requests += [{**fields, "node": entry.metadata.dst_node_id} for entry, fields in messages]
        replies = super().send_and_receive([entry for entry, fields in messages if not self.away(fields)])
        self.answers += replies
        return replies

    def turns(self, stage=Kind.MASKED, kind=lambda number: number < 4):
        """Who is asked for a message in each round."""
        outcome = [entry for entry in self.requests if entry["stage"] == stage and kind(entry["client"])]
        return [{entry["node"] for entry in outcome if entry["round_index"] == round_index} for round_index in range(6)]


def second(number):
    return number >= 4


@pytest.mark.parametrize("config", BOTH)
def test_nodes_come_back_once_with_their_noise_and_with_a_vector_no_sooner_than_the_separation(config, tmp_path):
    result, _, grid = run(tmp_path, config, grid=Watched(config))
    first, again = grid.turns(), grid.turns(kind=second)
    assert again == [set(), *first[:5]]
    for round_index in range(5):
        assert not first[round_index].intersection(*[set().union(*first[max(0, round_index - 2) : round_index])])
    assert not any(entry.has_error() for entry in grid.answers)
    assert survivors(result) == [4] * 6
    models = [entry for entry in grid.requests if entry["stage"] == Kind.MASKED]
    assert len(models) == 4 * 11
    outcome, charged = account_ledger(plan_folder(tmp_path))
    assert charged["charges"] == 6
    assert outcome.epsilon == result.train_metrics_clientapp[6]["epsilon"]
    assert outcome.participations == 2
    checked = verify(plan_folder(tmp_path) / "ledger.jsonl")
    assert outcome.epsilon <= checked.epsilon * 1.001


def test_with_too_few_settlements_a_new_chain_begins_and_the_run_goes_on(tmp_path):
    grid = Watched(CONFIG, lambda fields: fields["round_index"] == 2 and fields["client"] in (4, 5))
    result, _, _ = run(tmp_path, grid=grid)
    assert survivors(result) == [4, 4, 0, 4, 4, 4]
    chains = [
        {entry["chain"] for entry in grid.requests if entry["round_index"] == round_index} for round_index in range(6)
    ]
    assert chains[0] == chains[1] == chains[2] != chains[3] == chains[4] == chains[5]
    assert [len(nodes) for nodes in grid.turns(kind=second)] == [0, 4, 0, 0, 4, 4]
    first = grid.turns(stage=Kind.KEYS)  # the ledger counts on the separation, whatever was broken
    assert not any(first[round_index] & first[round_index - gap] for round_index in range(2, 6) for gap in (1, 2))
    _, charged = account_ledger(plan_folder(tmp_path))
    assert charged["charges"] == 5  # no vector was asked for in the discarded round


@pytest.fixture
def policies(tmp_path):
    """A policy and a folder of its own for everybody."""
    text = TEMPLATE.replace("clients = 20", "clients = 4").replace("honest_fraction = 0.8", "honest_clients = 4")
    text = text.replace("roster =", "trust_server_with_keys = true  # roster =")
    text = text.replace("epsilon = 8.0", "epsilon = 5000.0").replace("release_epsilon = 2.0", "release_epsilon = 900.0")

    def give(grid):
        give_policies(grid, tmp_path / "nodes", text)
        return grid

    return give


def errors(grid):
    return {reply.error.reason for reply in grid.answers if reply.has_error()}


def test_a_participation_is_paid_once_for_both_messages(policies, tmp_path):
    config = {**CONFIG, "rqm.rounds": 3, "rqm.max-participations": 1}
    _, _, grid = run(tmp_path / "run", config=config, grid=policies(Watched(config)))
    assert not errors(grid)
    paid = {}
    for node in grid.contexts:
        ledgers = list((tmp_path / "nodes" / str(node)).glob("node/*/ledger.jsonl"))
        paid[node] = sum(account_ledger(entry)[1]["charges"] for entry in ledgers)
    taken = Counter(node for round_index in grid.turns() for node in round_index)
    assert paid == {node: taken[node] for node in grid.contexts}
    assert set(paid.values()) == {1}


@pytest.mark.slow
def test_a_node_refuses_to_come_back_too_soon(policies, tmp_path, monkeypatch):
    """Of a server that forgets who took part when, and asks the same nodes in every other round."""
    forgetful = lambda chain, node, round_index: node not in chain.settling_nodes and node < 108  # noqa: E731
    monkeypatch.setattr(NoiseChain, "can_send_vector", forgetful)
    grid = policies(Watched(CONFIG))
    start(grid, CONFIG, tmp_path / "run")
    assert any("must be 3 rounds later" in error for error in errors(grid))
    sent = [entry for entry in grid.requests if entry["stage"] == Kind.ACKS and entry["client"] < 4]
    turns = {(entry["chain"], entry["node"], entry["round_index"]) for entry in sent}
    assert len(turns) > 8
    for chain, node, round_index in turns:
        assert not any((chain, node, round_index + gap) in turns for gap in (1, 2))


def asked_again(grid, change, which=lambda fields: True):
    """Ask a node a second time for what it has just answered, with something changed; what it says."""
    message, reply = next((m, r) for m, r in reversed(grid.pairs) if which(dict(m.content.config_records["rqm"])))
    fields = {**message.content.config_records["rqm"], **change}
    content = {**dict(message.content), "rqm": ConfigRecord(fields)}
    delivered = Message(RecordDict(content), dst_node_id=message.metadata.dst_node_id, message_type="train")
    assert not reply.has_error()
    return grid.app(delivered, grid.contexts[message.metadata.dst_node_id])


def settles_keys(fields):
    """Whether a request is for the keys of a client that only settles."""
    return fields["stage"] == Kind.KEYS and second(fields["client"])


class Paired(Watched):
    """Keeps every message with its answer, and the node's state before it."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.pairs, self.states = [], {}

    def send_and_receive(self, messages, *, timeout=None):
        outcome = []
        for message in messages:
            node, fields = message.metadata.dst_node_id, dict(message.content.config_records["rqm"])
            self.states[node, fields["round_index"], fields["stage"]] = copy.deepcopy(self.contexts[node].state)
            for reply in super().send_and_receive([message]):
                self.pairs.append((message, reply))
                outcome.append(reply)
        return outcome


def test_noise_is_settled_once_whatever_the_node_remembers(tmp_path):
    """A process that died after its answer left, before its state was saved; and a server that asks again."""
    grid = Paired(CONFIG)
    run(tmp_path, grid=grid)

    def of_second(fields):
        return fields["stage"] == Kind.MASKED and fields["client"] >= 4

    output = asked_again(grid, {}, of_second)
    assert "in no round" in output.error.reason or "already" in output.error.reason
    message, _ = next((m, r) for m, r in reversed(grid.pairs) if of_second(dict(m.content.config_records["rqm"])))
    node, round_index = message.metadata.dst_node_id, message.content.config_records["rqm"]["round_index"]
    grid.contexts[node].state = grid.states[node, round_index, Kind.MASKED]
    assert "already" in asked_again(grid, {}, of_second).error.reason
    # a whole second round that follows the same sum, with the state of before
    grid.contexts[node].state = grid.states[node, round_index, Kind.KEYS]

    another = asked_again(grid, {"round": b"another"}, settles_keys)
    assert not another.has_error()  # keys alone tell nothing, and nobody else will follow


@pytest.mark.parametrize(
    "change", [{"round_index": 4}, {"chain": b"other"}, {"previous_sum": bytes(32)}, {"settling": 3}]
)
def test_a_settlement_goes_into_no_other_round(change, tmp_path):
    grid = Paired({**CONFIG, "rqm.rounds": 4})
    run(tmp_path, config={**CONFIG, "rqm.rounds": 4}, grid=grid)

    message, _ = next((m, r) for m, r in reversed(grid.pairs) if settles_keys(m.content.config_records["rqm"]))
    node = message.metadata.dst_node_id
    grid.contexts[node].state = grid.states[node, 3, Kind.KEYS]
    assert not asked_again(grid, {"round": b"again"}, settles_keys).has_error()
    grid.contexts[node].state = grid.states[node, 3, Kind.KEYS]
    reason = asked_again(grid, {"round": b"once more", **change}, settles_keys).error.reason
    assert any(words in reason for words in ("does not follow", "another index", "client = ", "number = "))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rqm.min-survivors": 2}, "survivors = 2: must be more than 2 of 4"),
        ({"rqm.noise": 0.1}, "noise"),
        pytest.param(
            {"rqm.clients": 1100, "rqm.min-survivors": 1000, "rqm.noise": 2048.0},
            "must be below",  # in the second round
            marks=pytest.mark.slow,  # ε of so many clients
        ),
    ],
)
def test_settings_that_protect_nobody_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        plan_of({**CONFIG, **change})
