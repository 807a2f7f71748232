"""What the documents say about malicious clients, and about keys."""

import re
from math import sqrt
from pathlib import Path

import numpy as np
import pytest

from rqm import Participation, PrivateMean, StochasticRounding
from rqm.config.experiments import find
from rqm.config.sweep import Sweep

ROOT = Path(__file__).parents[2]
PLANS = [
    ("user-level", "1 bit, ε=10", 36),
    ("user-level", "1 bit, ε=3", 100),
    ("cancel", "independent, 1 bit, ε=1", 278),
]
STATED = "36 clips with one bit and 1,000 clients at ε = 10, 100 at ε = 3, 278 at ε = 1, and more with more levels"


def text(name):
    return " ".join((ROOT / name).read_text().split())


def influence(mean):
    """How far one client's in-range integers move the sum of decoded vectors, in clips."""
    channel = mean.mechanism.discrete
    largest = np.full(mean.coordinates, channel.levels - 1)
    zero = mean.coordinates * [(channel.levels - 1) / 2]
    return float(np.linalg.norm((largest - zero) * channel.grid.step)) / mean.l2_bound


def test_one_clients_integers_decode_to_many_clips():
    """An encoder that ignores the clip is not noticed: its integers are in range."""
    participation = Participation(2)
    mechanism = StochasticRounding(clip=0.5, margin=20.0, levels=2)
    mean = PrivateMean(dim=64, mechanism=mechanism, participation=participation)
    honest = np.zeros(64, dtype=np.int64)
    difference = mean.decode(honest + 1, 2) - mean.decode(honest, 2)
    assert 2 * np.linalg.norm(difference) == pytest.approx(2 * influence(mean))
    assert influence(mean) == pytest.approx(0.5 * 21 * sqrt(64))


@pytest.mark.parametrize(("experiment", "variant", "clips"), PLANS)
def test_in_the_shipped_plans_it_is_what_the_documents_state(experiment, variant, clips):
    plan = Sweep.from_toml(find(experiment)).variants[variant]
    assert plan.participation.clients == 1000
    assert influence(plan.private_mean()) == pytest.approx(clips, abs=0.5)
    finer = Sweep.from_toml(find("user-level")).variants["RQM, 4 bits, ε=10"]
    assert influence(finer.private_mean()) > 36


@pytest.mark.parametrize("name", ["SECURITY.md", "docs/protocol.md"])
def test_no_document_says_that_a_malicious_client_is_bounded_by_its_clip(name):
    page = text(name)
    assert "bounded by its clip" not in page
    assert "bounded by the clip" not in page
    assert STATED in page


def test_no_node_is_given_a_key_of_the_server():
    page = text("docs/deploy.md")
    (block,) = re.findall(r"^ +FLWR_HOME=.*?--node-config", (ROOT / "docs" / "deploy.md").read_text(), re.S | re.M)
    assert "--ssl-keyfile node-$node/tls.key" in block
    assert "RQM_STATE=$PWD/node-$node" in block
    assert "server/" not in block
    assert "No private key leaves its folder, and no node gets a key of the server." in page
