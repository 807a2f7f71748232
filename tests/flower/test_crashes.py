"""A federation is killed at every write, fsync and send: nothing is released uncharged, nobody answers twice."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("flwr")
from rqm.flower.federation_folder import FEDERATIONS
from rqm.ledger.ledger import LEDGER, read
from rqm.secagg.wire import Kind

ROOT = Path(__file__).parents[2]


class Federations:
    """A process that forks federations, each in a folder of its own."""

    def __init__(self) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        self.process = subprocess.Popen([sys.executable, "-m", "tests.flower.crashing"], cwd=ROOT, **pipes)

    def run(self, folder, *points):
        folder.mkdir()
        self.process.stdin.write(" ".join([str(folder), *map(str, points)]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


@pytest.fixture(scope="module")
def federations():
    outcome = Federations()
    yield outcome
    outcome.close()


def check(folder, ends, kills):
    """What left the machine against what is in the files."""
    error = folder / "error"
    assert not error.exists(), error.read_text()
    assert ends == [-9] * kills + [0]
    events = [json.loads(line) for line in (folder / "wire").read_text().splitlines()]
    rounds = {(e["round_index"], e["round"]) for e in events if e["by"] == "server" and e["stage"] >= Kind.MASKED}
    begun = Counter(round_index for round_index, _ in rounds)
    (ledger,) = folder.glob(f"state/{FEDERATIONS}/*/*/{LEDGER}")
    spent = read(ledger).charges
    assert all(spent[round_index] >= count for round_index, count in begun.items())  # no sum that was not paid for
    answers = Counter((e["node"], e["round"], e["stage"]) for e in events if e["by"] == "client")
    assert max(answers.values()) == 1  # nobody answers twice
    vectors = Counter(node for node, _, stage in answers if stage == Kind.MASKED)
    for node, count in vectors.items():  # each paid for in the node's own ledger, too
        (node_ledgers,) = folder.glob(f"home-{node}/node/*/{LEDGER}")
        assert read(node_ledgers).charges.total() >= count
    return sum(answers.values())


def killed(federations, tmp_path, points):
    for number, subset in enumerate(points):
        folder = tmp_path / str(number)
        check(folder, federations.run(folder, *subset), len(subset))


def events(federations, tmp_path):
    """How many there are when nobody is killed: then all is answered once."""
    ends = federations.run(tmp_path / "all")
    assert check(tmp_path / "all", ends, 0) == 4 * 5 * 3
    return int((tmp_path / "all" / "count").read_text())


def test_killed_at_some_points(federations, tmp_path):
    chance, count = Random(0), events(federations, tmp_path)
    assert count > 90
    killed(federations, tmp_path, [(chance.randint(1, count),) for _ in range(2)])


@pytest.mark.slow
def test_killed_at_every_point_and_again_while_it_recovers(federations, tmp_path):
    chance, count = Random(1), events(federations, tmp_path)
    points = [(point, chance.randint(1, 60)) for _ in range(-(-500 // count)) for point in range(1, count + 1)]
    assert 2 * len(points) >= 1000
    killed(federations, tmp_path, points)
