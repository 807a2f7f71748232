"""Data on disk: what was written is what is read, and a round touches what it asks for."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from rqm import RQM, FederatedData
from rqm.data.mapped import ABOUT, mapped, write
from rqm.training.trainer import Trainer
from tests.plans import make_plan
from tests.training.small import pictures


def users(data):
    return ((inputs.numpy(), labels.numpy()) for inputs, labels in (data.train[i] for i in range(len(data.train))))


def test_what_is_written_is_what_is_read(tmp_path):
    data = pictures(clients=7, each=3)
    found = mapped(write(tmp_path / "new", users(data), (data.test_inputs.numpy(), data.test_labels.numpy())))
    assert isinstance(found, FederatedData)
    assert torch.equal(found.train.inputs, data.train.inputs)
    assert torch.equal(found.train.labels, data.train.labels)
    assert (found.train.offsets == data.train.offsets).all()
    assert torch.equal(found.test_inputs, data.test_inputs)
    assert found.classes == int(max(data.train.labels.max(), data.test_labels.max())) + 1
    untested = mapped(write(tmp_path / "other", users(data)))
    assert len(untested.test_labels) == 0


def test_a_run_is_the_same_from_disk(tmp_path):
    data = pictures(clients=7, each=3)
    plan = make_plan(data="noise", model="small-cnn", clients=5, rounds=2, mechanism=RQM(clip=0.1), device="cpu")
    test = data.test_inputs.numpy(), data.test_labels.numpy()
    found = mapped(write(tmp_path / "new", users(data), test, name="noise"))
    here, there = Trainer(plan, data), Trainer(plan, replace(found, classes=62))
    for _ in range(2):
        here.step()
        there.step()
    assert torch.equal(here.values, there.values)


def test_what_does_not_fit_is_refused(tmp_path):
    one = np.zeros((2, 3), np.float32), np.array([0, 1])
    for number, (given, what) in enumerate(
        [
            ([], "there are none"),
            ([one, (np.zeros((2, 4)), [0, 1])], r"users\[1\].*must be of \(3,\) and float32"),
            ([(one[0], [0])], "must be as many"),
        ]
    ):
        with pytest.raises(ValueError, match=what):
            write(tmp_path / str(number), given)
    folder = write(tmp_path / "good", [one])
    with pytest.raises(FileExistsError):
        write(folder, [one])
    about = json.loads((folder / ABOUT).read_text())
    for change in ({"inputs": ["float32", 3, 3]}, {"labels": ["object", 2]}, {"offsets": None}, {"classes": "many"}):
        (folder / ABOUT).write_text(json.dumps({**about, **change}))
        with pytest.raises(ValueError, match=r"must be a folder that rqm\.data\.mapped\.write has written"):
            mapped(folder)
    (folder / ABOUT).write_text(json.dumps({**about, "inputs": ["float32", -1, 3]}))
    with pytest.raises(ValueError, match="and a shape"):
        mapped(folder)


TOUCHED = """
import sys
from pathlib import Path
from rqm.data.mapped import mapped
def held():
    return next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith("VmRSS"))
data = mapped(sys.argv[1])
before = held()
data.train.sizes_of([5]), data.train[123]
print(held() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_only_what_is_asked_for_is_read(tmp_path):
    folder = write(tmp_path / "new", ((np.zeros((10, 28, 28), np.uint8), np.zeros(10, int)) for _ in range(3000)))
    done = subprocess.run([sys.executable, "-c", TOUCHED, folder], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 4_000  # kB, of the 23 MB that are there


READ = """
import sys
from pathlib import Path
from rqm.data import mapped
def held():
    return next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith("VmRSS"))
mapped.HELD = 2**22
data = mapped.mapped(sys.argv[1])
whole = int(data.train.take(data.train.offsets[:1])[0].sum())
before = most = held()
for client in range(len(data.train)):
    whole += int(data.train[client][0].sum())
    most = max(most, held())
print(most - before, whole)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_what_was_read_is_not_held_for_ever(tmp_path):
    folder = write(tmp_path / "new", ((np.ones((10, 28, 28), np.uint8), np.zeros(10, int)) for _ in range(3000)))
    done = subprocess.run([sys.executable, "-c", READ, folder], capture_output=True, text=True, check=True)
    most, whole = map(int, done.stdout.split())
    assert most < 9_000  # kB, of the 23 MB that were read
    assert whole == 30_001 * 784
