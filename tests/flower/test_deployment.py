"""A true SuperLink and four SuperNodes on loopback, with TLS and authentication, in short; two of them are killed."""

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
from tests.flower.users import EXAMPLE, POLICY, ROOT, written

CONFIG = (
    'rqm.rounds=2 rqm.clients=4 rqm.min-survivors=3 rqm.model="linear" rqm.mechanism.clip=0.045 '
    "stage-timeout=60 train-timeout=60"
)


def federation(app, *options):
    """Run an app in the example's federation of four nodes, each with an identity, a policy and the roster."""
    command = [sys.executable, EXAMPLE / "federation.py", "--app", app, "--nodes", "4", "--limit", "400", *options]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)


@pytest.mark.slow  # Flower polls every few seconds: three minutes, mostly of waiting
def test_a_federation_goes_on_without_one_node_and_discards_a_round_without_two(tmp_path):
    kills = ["--kill", "1", "--kill", "2"]  # one in each round, when it is asked to train
    done = federation(written(tmp_path / "app"), "--ledger", tmp_path, "--set", CONFIG, *kills)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    output = re.sub("\x1b\\[[0-9;]*m", "", done.stdout)
    assert output.count("killing the SuperNode") == 2
    assert "'survivors': 3" in output  # the run went on without the first
    assert "round 2 is discarded, and charged" in output
    accuracies = [float(outcome) for outcome in re.findall(r"'accuracy': '([\d.e+-]+)'", output)]
    assert accuracies[1] > accuracies[0] + 0.02
    assert accuracies[2] == accuracies[1]
    assert "for every user against the server, certified, after 2 rounds" in output
    charged = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()[1:]]
    assert [entry["round"] for entry in charged] == [0, 1]


CORRELATED = """\
clients = 3
min-survivors = 2
rounds = 4
min-separation = 2
max-participations = 2
noise = 12.0
data = "glyphs"
model = "linear"
sends = "gradient"
delta = 1e-5
seed = 1

[tool.flwr.app.config.rqm.mechanism]
mechanism = "rounding"
clip = 0.0452
margin = 1.0
levels = 2

[tool.flwr.app.config.rqm.transforms]
"""


@pytest.mark.slow  # four minutes, mostly of waiting
def test_noise_is_settled_and_that_of_a_node_killed_between_its_two_messages_is_recovered(tmp_path):
    app = written(tmp_path / "app")
    earlier, later = (app / "pyproject.toml").read_text().split("[tool.flwr.app.config.rqm]\n")
    later = later.split("[tool.flwr.app.config.rqm.transforms]\n")[1]
    (app / "pyproject.toml").write_text(f"{earlier}[tool.flwr.app.config.rqm]\n{CORRELATED}{later}")
    (app / "policy.toml").write_text(POLICY.replace("= 4", "= 3").replace('["rqm"]', '["rounding"]'))
    options = ["--ledger", tmp_path / "ledger", "--kill-owing"]
    done = federation(app, *options, "--nodes", "6", "--limit", "500")
    output = re.sub("\x1b\\[[0-9;]*m", "", done.stdout)
    assert done.returncode == 0, output[-3000:] + done.stderr[-6000:]
    assert output.count("between its two messages") == 1
    assert output.count("its noise was recovered from the shares of the others") == 1
    assert "its noise stays in the model" not in output
    assert "round 2 is discarded" not in output  # a later one may be: who was killed is still listed for a minute
    charged = [json.loads(line) for line in (tmp_path / "ledger" / "ledger.jsonl").read_text().splitlines()[1:]]
    assert [entry["round"] for entry in charged] == [0, 1, 2, 3]
    fields = re.findall(r"\(ε = ([\d.e+]+), δ = 1e-05\) for every user against the server, certified, after 4", output)
    outcome, _ = account_ledger(tmp_path / "ledger")
    assert f"{outcome.epsilon:.4g}" == fields[0]
    assert outcome.epsilon <= verify(tmp_path / "ledger" / "ledger.jsonl").epsilon * 1.001


@pytest.mark.slow
def test_nodes_refuse_a_server_that_orders_less_noise(tmp_path):
    app = written(tmp_path / "app")
    (app / "policy.toml").write_text(POLICY.replace("release_epsilon = 1e12", "release_epsilon = 5.0"))
    done = federation(app, "--ledger", tmp_path, "--set", CONFIG)
    output = re.sub("\x1b\\[[0-9;]*m", "", done.stdout)
    assert len(re.findall(r"it says 'rqm: the policy of this node: ε for a release = ", output)) == 2 * 4
    assert "'survivors': 3" not in output
    assert "'survivors': 4" not in output
    assert "round 2 is discarded, and not charged: 0 clients are left after KEYS" in output


@pytest.mark.slow  # three minutes, mostly of waiting
def test_the_commands_of_the_page_lead_from_nothing_to_a_signed_federation(tmp_path):
    """Every command of it, as it stands there, in a folder of its own."""
    page = (ROOT / "docs" / "deploy.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.DOTALL | re.M)
    assert len(blocks) == 7
    bin_ = Path(sys.executable).parent
    environment = {**os.environ, "APP": str(ROOT / "examples" / "flower"), "PATH": f"{bin_}:{os.environ['PATH']}"}
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
    assert "for every record against the server, certified, after 2 rounds" in output
    assert len(re.findall(r"ε", output.rsplit("after 2 rounds", 1)[1])) >= 2  # by both ledgers
