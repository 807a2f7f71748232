"""A SuperLink and SuperNodes on loopback, with TLS and authentication, for short runs; some nodes are killed."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")
from rqm.config.account import account_ledger
from rqm.verify import verify
from tests.flower.users import CONFIG, EXAMPLE, FEDERATION, POLICY, ROOT, written


def federation(app, state, *options):
    """Run an app in the example's federation of four nodes, each with an identity, a policy and the roster."""
    command = [sys.executable, EXAMPLE / "federation.py", "--app", app, "--state", state, "--limit", "400", *options]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    return re.sub("\x1b\\[[0-9;]*m", "", done.stdout), done


def ledger(state):
    """The ledger of the only plan of the app's federation."""
    (path,) = (state / "federations" / FEDERATION).glob("*/ledger.jsonl")
    return path


def charged_rounds(path):
    return [json.loads(line)["round"] for line in path.read_text().splitlines()[1:]]


@pytest.mark.slow  # Flower polls every few seconds: three minutes, mostly of waiting
def test_a_federation_goes_on_without_one_node_and_discards_a_round_without_two(tmp_path):
    kills = ["--kill", "1", "--kill", "2"]  # one in each round, when it is asked to train
    output, done = federation(written(tmp_path / "app"), tmp_path / "state", "--set", CONFIG, *kills)
    assert done.returncode == 0, output[-3000:] + done.stderr[-6000:]
    assert output.count("killing the SuperNode") == 2
    assert "'survivors': 3" in output  # the run went on without the first
    assert "round 2 is discarded, and charged" in output
    accuracies = [float(outcome) for outcome in re.findall(r"'accuracy': '([\d.e+-]+)'", output)]
    assert accuracies[1] > accuracies[0] + 0.2
    assert accuracies[2] == accuracies[1]
    assert "1 of 2 charged rounds were released" in output
    assert charged_rounds(ledger(tmp_path / "state")) == [0, 1]


@pytest.mark.slow  # four minutes, mostly of waiting
def test_noise_is_settled_and_that_of_a_node_killed_between_its_two_messages_is_recovered(tmp_path):
    config = "num-server-rounds=4 rqm.epsilon=50.0 rqm.clients=3 rqm.min-survivors=2"
    settings = 'min-separation = 2\nmax-participations = 2\nnoise = "correlated"\n'
    app = written(tmp_path / "app", POLICY.replace("= 4", "= 3"), settings)
    options = ["--set", config, "--kill-owing", "--nodes", "6", "--limit", "500"]
    output, done = federation(app, tmp_path / "state", *options)
    assert done.returncode == 0, output[-3000:] + done.stderr[-6000:]
    assert output.count("between its two messages") == 1
    assert output.count("its noise was recovered from the shares of the others") == 1
    assert "its noise stays in the model" not in output
    assert "round 2 is discarded" not in output  # a later one may be: who was killed is still listed for a minute
    path = ledger(tmp_path / "state")
    assert charged_rounds(path)[:2] == [0, 1]
    outcome, _ = account_ledger(path)
    assert f"rqm: ε = {outcome.epsilon:.4g}, δ = 1e-05" in output
    report = verify(path)
    assert not report.wrong
    if charged_rounds(path) == [0, 1, 2, 3]:  # the verifier has no answer where a round ended before it was charged
        assert outcome.epsilon <= report.epsilon * 1.001


@pytest.mark.slow
def test_nodes_refuse_a_server_that_orders_less_noise(tmp_path):
    app = written(tmp_path / "app", POLICY.replace("release_epsilon = 1e12", "release_epsilon = 5.0"))
    output, done = federation(app, tmp_path / "state", "--set", CONFIG)
    text = " ".join(output.split())
    assert done.returncode == 1
    assert "0 nodes of 4 connected can take part: must be at least 3" in text
    assert '4 nodes: it says "rqm: the policy of this node: release_epsilon = ' in text
    assert "Nothing was charged" in text
    assert charged_rounds(ledger(tmp_path / "state")) == []
    assert not list(tmp_path.rglob("model.npz"))


@pytest.mark.slow  # three minutes, mostly of waiting
def test_the_commands_of_the_page_lead_from_nothing_to_a_signed_federation(tmp_path):
    """Every command of it, as it stands there, in a folder of its own."""
    page = (ROOT / "docs" / "deploy.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.DOTALL | re.M)
    assert len(blocks) == 7
    bin_ = Path(sys.executable).parent
    environment = {**os.environ, "APP": str(EXAMPLE), "PATH": f"{bin_}:{os.environ['PATH']}"}
    log = tmp_path / "said"
    with log.open("w") as file:
        options = {"cwd": tmp_path, "env": environment, "stdout": file, "stderr": file, "start_new_session": True}
        process = subprocess.Popen(["bash", "-c", "set -e\n" + "".join(blocks)], **options)
        try:
            code = process.wait(900)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    output = re.sub("\x1b\\[[0-9;]*m", "", log.read_text())
    assert code == 0, output[-4000:]
    assert "4 keys, hash" in output
    assert "'survivors': 3" in output, output[-4000:]  # without the killed node
    assert "2 of 2 charged rounds were released" in output
    assert len(re.findall(r"ε = ", output.rsplit("charged rounds were released", 1)[1])) >= 3  # by both ledgers, too
