"""The rounds of a run as a state machine, driven without Flower."""

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from rqm import RQM
from rqm.flower.node_state import NodeState
from rqm.flower.round_machine import RoundMachine, State
from rqm.flower.run_settings import Settings
from rqm.randomness import SecureRandom
from rqm.secagg import Client, ProtocolError
from rqm.secagg.wire import Kind
from tests.secagg.test_malicious_clients import dealing_wrongly, other_secret

DIM = 5
SETTINGS = Settings(
    epsilon=1e6, clients=5, rounds=3, min_survivors=4, mechanism=RQM(clip=0.5), l2_clip=2.0, failure_share=0.0
)
PLAN = SETTINGS.plan(("w",), DIM)
STATES = [State.KEYS, State.SHARES, State.VECTORS, State.ACKS, State.REVEAL]


class CountingLedger:
    """Counts charges, up to a limit."""

    def __init__(self, limit=100):
        self.charges, self.limit = Counter(), limit

    def allows(self, round_index):
        return self.charges.total() < self.limit

    def charge(self, round_index):
        self.charges[round_index] += 1


class Run:
    """A machine with honest clients at its nodes; the silent ones do not answer."""

    def __init__(self, folder, nodes=range(10, 15), **ledger):
        self.ledger, self.clients, self.states = CountingLedger(**ledger), {}, []
        node_state = NodeState(folder, PLAN.mean.participation.max_participations)
        self.nodes = list(nodes)
        self.machine = RoundMachine(PLAN, self.ledger, node_state, None, lambda: self.nodes, rounds=3)

    def answer(self, node, request):
        if request.stage == Kind.KEYS:
            params = PLAN.params(request.round_name)
            self.clients[node, request.round_name] = Client(params, request.client)
        client = self.clients[node, request.round_name]
        vector = np.full(DIM, node / 100, dtype=np.float32)
        return client.answer(request.stage, request.message, lambda: PLAN.mean.encode(vector, SecureRandom()))

    def exchange(self, silent=()):
        self.states.append(self.machine.state)
        for node, requests in self.machine.requests().items():
            for request in requests if node not in silent else ():
                self.machine.receive(request, self.answer(node, request))
        self.machine.advance()

    def play(self, round_index, silent=lambda state: ()):
        self.states = []
        self.machine.begin(round_index, self.nodes)
        while not self.machine.has_ended:
            self.exchange(silent(self.machine.state))
        return self.machine


def test_a_round_goes_through_its_states_and_ends_with_the_mean(tmp_path):
    run = Run(tmp_path)
    machine = run.play(0)
    assert run.states == STATES
    assert (machine.state, machine.survivors) == (State.DONE, 5)
    assert machine.mean_vector.shape == (DIM,)
    assert run.ledger.charges == {0: 1}


def test_a_round_is_charged_when_vectors_are_asked_for_and_not_before(tmp_path):
    run = Run(tmp_path)
    run.machine.begin(0, run.nodes)
    for state in STATES[:3]:
        assert run.machine.state == state
        assert run.ledger.charges.total() == (state == State.VECTORS)
        run.exchange()


def test_the_next_rounds_keys_and_shares_travel_with_the_end_of_a_round(tmp_path):
    run = Run(tmp_path)
    run.machine.begin(0, run.nodes)
    for _ in range(3):
        run.exchange()
    for stages in ([Kind.ACKS, Kind.KEYS], [Kind.REVEAL, Kind.SHARES]):
        for requests in run.machine.requests().values():
            assert [request.stage for request in requests] == stages
        run.exchange()
    assert run.machine.state == State.DONE
    assert run.play(1).state == State.DONE
    assert run.states == STATES[2:]
    run.play(2)
    assert not run.machine.is_prepared  # it was the last


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
def test_a_round_with_too_few_clients_is_discarded(state, tmp_path):
    run = Run(tmp_path)
    machine = run.play(0, lambda current: (10, 11) if current == state else ())
    assert machine.state == State.DISCARDED
    assert machine.discard_reason
    assert machine.mean_vector is None
    assert run.ledger.charges.total() == (state not in STATES[:2])
    assert run.play(1).state == State.DONE


def test_a_corrupted_round_is_repeated_without_the_blamed_node_and_charged_again(tmp_path, monkeypatch):
    dealing_wrongly(monkeypatch, {1}, other_secret)
    run = Run(tmp_path)
    machine = run.play(0)
    assert run.states == [*STATES, *STATES]
    assert (machine.state, machine.survivors) == (State.DONE, 4)
    assert run.ledger.charges == {0: 2}
    (blamed,) = machine.node_state.blamed
    assert blamed not in machine.vector_nodes
    later_run = NodeState(tmp_path, None)
    assert later_run.blamed == machine.node_state.blamed  # it is proved, and on disk
    assert not later_run.may_participate(blamed)


def test_a_round_that_the_ledger_cannot_pay_for_asks_nobody(tmp_path):
    run = Run(tmp_path, limit=1)
    assert run.play(0).state == State.DONE
    assert not run.machine.is_prepared
    run.machine.begin(1, run.nodes)
    assert run.machine.state == State.OUT_OF_BUDGET
    assert run.machine.requests() == {}


def test_with_too_few_nodes_a_round_is_discarded_at_once(tmp_path):
    run = Run(tmp_path, nodes=range(3))
    assert run.play(0).state == State.DISCARDED
    assert run.states == []
    assert "3 nodes may take part: must be at least 4" in run.machine.discard_reason


def test_a_hostile_answer_raises_the_protocols_error_and_costs_nobody_else_anything(tmp_path):
    run = Run(tmp_path)
    run.machine.begin(0, run.nodes)
    first, second, *_ = (requests[0] for requests in run.machine.requests().values())
    good = run.answer(run.nodes[0], first)
    for answer in (b"", b"\0" * 50, b"\xff" * 5000, good[:-1], run.answer(run.nodes[1], second)):
        with pytest.raises(ProtocolError):
            run.machine.receive(first, answer)
    with pytest.raises(ProtocolError, match="no request"):
        run.machine.receive(type(first)(Kind.KEYS, b"another", 0, 0, b""), good)
    run.clients.clear()
    while not run.machine.has_ended:
        run.exchange(silent=(run.nodes[0],) if run.machine.state == State.KEYS else ())
    assert run.machine.state == State.DONE


def test_participations_of_a_prepared_round_are_returned_if_no_vector_is_asked_for(tmp_path):
    run = Run(tmp_path)
    run.play(0)
    assert set(run.machine.node_state.participations.values()) == {2}
    run.ledger.limit = 1
    run.machine.begin(1, run.nodes)
    assert set(run.machine.node_state.participations.values()) == {1}


def test_it_does_not_need_flower():
    probe = "import sys; sys.modules['flwr'] = None; import rqm.flower.round_machine"
    subprocess.run([sys.executable, "-c", probe], check=True)
