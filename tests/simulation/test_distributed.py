"""Several processes give the same run bit for bit."""

import pytest
import torch
from safetensors.numpy import load_file

from rqm.config.plan import Plan
from rqm.config.run_files import read_metrics
from rqm.data import load
from rqm.simulation.distributed import can_share, processes
from rqm.simulation.loop import RunState
from tests.commands import process

SMALL = Plan.from_dict(
    {
        "model": "linear",
        "rounds": 3,
        "clients": 9,
        "mechanism": {"mechanism": "rounding", "levels": 4, "margin": 3.0, "clip": 0.1},
        "transforms": {"l2_clip": 1.0, "rotate": True},
    }
)
PLANS = {
    "gradients": {},
    "local steps": {"client": {"work": "local", "epochs": 2, "batch": 16, "rate": 0.1}},
    "two vectors": {"server": {"optimizer": "sgd"}, "client": {"work": "fedaq", "steps": 2, "batch": 16, "rate": 0.1}},
    "a clip that moves": {"adapt": {"start": 0.5}},
    "convolutions": {"model": "small-cnn"},
}


def plan_of(changes):
    return Plan.from_dict({**SMALL.to_dict(), **changes})


@pytest.fixture(scope="module")
def data():
    return load("glyphs")


class ThreeParts:
    """Three processes in one: each computes its part of the clients."""

    def __init__(self, updates):
        self.updates = updates

    def __getattr__(self, name):
        return getattr(self.updates, name)

    def encode(self, client_ids, round_index, messages):
        losses = 0
        for rank in range(3):
            piece = messages.fork()
            losses = losses + self.updates.encode(client_ids, round_index, piece, slice(rank, None, 3))
            assert piece.total.any()
            messages.merge(piece)
        return losses


@pytest.mark.parametrize("changes", PLANS.values(), ids=PLANS)
def test_parts_of_three_processes_add_up_to_the_same_bits(data, changes):
    results = []
    for size in (1, 3):
        state = RunState(plan_of(changes), data)
        assert can_share(state)
        if size > 1:
            state.updates = ThreeParts(state.updates)
        outcomes = [state.step() for _ in range(2)]
        results.append((state.values.clone(), [outcome.clients_loss for outcome in outcomes]))
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


@pytest.mark.parametrize(
    "changes",
    [
        {"mechanism": {"mechanism": "noiseless", "clip": 1.0}},  # sums of floats
        {"client": {"work": "fedcomgate", "steps": 2, "batch": 16, "rate": 0.1}},  # clients that remember
        {"secagg": "real"},
        {"model": "paper-cnn", "dropout": 0.5},
    ],
)
def test_runs_that_cannot_be_shared(data, changes):
    assert not can_share(RunState(plan_of(changes), data))


def test_a_single_process_makes_a_plain_state(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")  # without the rest it says nothing
    with processes(load) as make:
        assert make is RunState


@pytest.mark.slow
@pytest.mark.parametrize("door", ["rqm train", "rqm.simulation"])
def test_two_processes_write_the_files_of_one(door, tmp_path):
    """Ledgers aside, which have keys and times of their own."""
    settings = [f"{key}={value}" for key, value in (("rounds", 3), ("clients", 9), ("mechanism.keep", 0.5))]
    chosen = [piece for setting in settings for piece in ("--set", setting)]
    module = ["rqm", "train"] if door == "rqm train" else ["rqm.simulation"]
    shared = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for name, start in (("one", []), ("two", shared)):
        done = process(*start, "-m", *module, "glyphs", *chosen, "--out", tmp_path / name)
        assert done.returncode == 0, done.stderr
    alone, two = (load_file(tmp_path / name / "checkpoint.safetensors") for name in ("one", "two"))
    assert alone.keys() == two.keys()
    assert all((alone[name] == two[name]).all() for name in alone)
    same = [
        [{k: v for k, v in line.items() if k not in ("seconds", "parts")} for line in read_metrics(tmp_path / name)]
        for name in ("one", "two")
    ]
    assert same[0] == same[1]
