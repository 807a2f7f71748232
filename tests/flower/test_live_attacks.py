"""A malicious server on a true SuperLink with TLS and SuperNodes: refused before a key leaves, or harmless."""

import json
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep

import pytest

pytest.importorskip("flwr")
from tests.flower.users import EXAMPLE, POLICY, ROOT, written

CONFIG = "rqm.epsilon={} {}"


class Attacked:
    """A federation of four nodes, whose server is not what it should be."""

    def __init__(self, folder, stack, monkeypatch):
        monkeypatch.syspath_prepend(str(EXAMPLE))
        import federation

        policy = POLICY.replace("release_epsilon = 1e12", "release_epsilon = 1000.0")
        policy = policy.replace("honest_clients = 4", "honest_clients = 3")
        policy = policy.replace("max_participations = 1000", "max_participations = 3")
        self.app = written(folder / "app", policy, "honest-clients = 50\nthreshold = 0\n")
        self.output = folder / "state" / "said.jsonl"
        shutil.copy(ROOT / "tests" / "flower" / "malicious_server.py", self.app / "app" / "server_app.py")
        task = self.app / "app" / "task.py"
        task.write_text(task.read_text().replace("FEATURES = 20", "FEATURES = 2000"))  # to tell an update from noise
        self.all = federation.Federation(folder, folder / "state", stack)
        self.all.enrol(4, policy)
        self.all.link()
        for number in range(4):
            self.all.node(number, 4)

    def run(self, config, seconds=600):
        """All that the server has to tell about a run."""
        earlier = len(self.lines())
        command = [str(Path(sys.executable).parent / "flwr"), "run", str(self.app), "here", "--run-config", config]
        subprocess.run(command, env=self.all.server_environment, check=True, timeout=300, stdout=subprocess.DEVNULL)
        end = monotonic() + seconds
        while not (lines := self.lines()[earlier:]) or lines[-1]["attack"] != "end":
            logs = "".join(path.read_text()[-3000:] for path in self.all.folder.glob("*.log"))
            assert monotonic() < end, f"{lines}\n{logs}"
            sleep(0.5)
        return {line["attack"]: line for line in lines}

    def lines(self):
        return [json.loads(line) for line in self.output.read_text().splitlines()] if self.output.exists() else []


@pytest.mark.slow  # some minutes, mostly of waiting
def test_what_a_malicious_server_gets_of_live_nodes(tmp_path, monkeypatch):
    with ExitStack() as stack:
        live = Attacked(tmp_path, stack, monkeypatch)
        honest = "rqm.clients=4 rqm.honest-clients=3 rqm.min-survivors=4"
        for config, reason in (
            (CONFIG.format(20000.0, honest), "release_epsilon"),
            (
                CONFIG.format(4000.0, "rqm.clients=2 rqm.honest-clients=2 rqm.min-survivors=2"),
                "clients = 2: must be at least 4",
            ),
            (
                CONFIG.format(4000.0, "rqm.clients=4 rqm.honest-clients=4 rqm.min-survivors=4"),
                "honest_clients = 4: must be at most 3",
            ),
            (CONFIG.format(4000.0, f"{honest} rqm.threshold=2"), "threshold = 2: must be at least"),
        ):
            outcome = live.run(config)["keys"]
            assert outcome["answered"] == 0  # no key has left
            assert all(reason in entry for entry in outcome["refused"]), outcome
        assert live.run(CONFIG.format(3900.0, honest))["other plan"]["answered"] == 3
        outcome = live.run(CONFIG.format(4000.0, honest), 1200)
    print(json.dumps(outcome, indent=1))
    for attack, reason in (
        ("mixed plans", "client 1"),
        ("plays the others", "client 1 is not in the roster"),
        ("isolates two", "2 clients take part: must be at least 4"),
        ("two stories", "must be"),
        ("a round again", "a round that it has begun before"),
    ):
        assert outcome[attack]["answered"] == 0
        assert all(reason in entry for entry in outcome[attack]["refused"]), outcome[attack]
    assert max(outcome["two stories"]["correlations"]) < 5  # as noise: the largest of sixteen normal numbers
    assert outcome["two stories"]["unmasked"] > 10  # what would be seen otherwise
    assert outcome["more rounds"]["vectors"] == [4, 4, 0]
    assert all("max_participations = 4: must be at most 3" in entry for entry in outcome["more rounds"]["refused"])
