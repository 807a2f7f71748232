"""Less noise by order of the server: a node that has a policy sends no key, and counts for itself."""

from pathlib import Path

import pytest

pytest.importorskip("flwr")
from rqm.flower import PrivateStrategy, Settings
from rqm.plan.policy import TEMPLATE
from rqm.secagg.wire import Kind
from tests.flower.local import arrays
from tests.flower.test_attacks import CONFIG, Tampered, survivors
from tests.training.small import model


@pytest.fixture
def policy(tmp_path):
    """A policy that allows what ``CONFIG`` asks for, and no more."""
    text = TEMPLATE.replace("clients = 20", "clients = 6").replace("honest = 10", "honest = 4")
    (tmp_path / "policy.toml").write_text(text.replace("release_epsilon = 2.0", "release_epsilon = 2.4"))
    return {"rqm-policy": str(tmp_path / "policy.toml")}


def held_to(policy, config, folder, **options):
    grid = Tampered(lambda *_: None, config)
    for context in grid.contexts.values():
        context.node_config |= policy
    private = PrivateStrategy(Settings.from_run_config(config), folder=folder, stage_timeout=0.2, **options)
    return private.start(grid, arrays(model())), private, grid


ASKED_FOR = {
    "clients = 2: must be at least 6": {"rqm.clients": 2, "rqm.survivors": 2, "rqm.threshold": 0},
    "survivors = 3: must be at least 4": {"rqm.survivors": 3},
    "ε for a release": {
        "rqm.mechanism.margin": 0.0,
        "rqm.mechanism.levels": 2**14,
        "rqm.mechanism.mechanism": "rounding",
    },
    "ε for a release = ": {"rqm.mechanism.margin": 3.0},
    "l2_clip = 8.0: must be at most 1.0": {"rqm.transforms.l2_clip": 8.0},
}


@pytest.mark.parametrize("reason", ASKED_FOR)
def test_a_server_that_orders_less_noise_gets_no_key(policy, reason, tmp_path):
    _, private, grid = held_to(policy, {**CONFIG, **ASKED_FOR[reason]}, tmp_path / "run")
    assert {stage for stage, _ in grid.asked} == {Kind.KEYS}
    assert not any(reply.has_content() for _, reply in grid.seen)
    assert len(private.refused) == len({message.metadata.dst_node_id for _, message in grid.asked})
    assert all(reason in said for said in private.refused.values())


def test_a_node_counts_its_own_participations_whatever_the_server_says(policy, tmp_path, monkeypatch):
    """30 releases under a cap of the server's own: each node stops by itself."""
    monkeypatch.setenv("RQM_STATE", str(tmp_path / "state"))
    path = Path(policy["rqm-policy"])
    path.write_text(path.read_text().replace("participations = 10", "participations = 12"))  # of six nodes, here
    for turn in range(3):  # another ledger, another server
        result, private, _ = held_to(policy, CONFIG, tmp_path / str(turn), key=tmp_path / "key")
        assert survivors(result) == ([6, 6] if turn == 0 else [0, 0])
    assert "participations = 13: must be at most 12" in str(private.refused)
