"""Data on disk: what is written is what is read, and only the users of a round are read."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from rqm import RQM, FederatedData
from rqm.data.memory_mapped import load_from_disk, save_to_disk
from rqm.simulation.loop import RunState
from tests.plans import make_plan
from tests.simulation.small import pictures


def saved(folder, data, **options):
    return save_to_disk(folder, (data.train[i] for i in range(len(data.train))), **options)


def test_what_is_written_is_what_is_read(tmp_path):
    data = pictures(clients=7, each=3)
    loaded = load_from_disk(saved(tmp_path / "new", data, test=(data.test_inputs, data.test_labels)))
    assert isinstance(loaded, FederatedData)
    for original, copy in ((data.train, loaded.train), (data, loaded)):
        for name in ("inputs", "labels", "offsets", "test_inputs", "test_labels"):
            if hasattr(original, name):
                assert np.array_equal(getattr(original, name), getattr(copy, name))
    assert loaded.classes == int(max(data.train.labels.max(), data.test_labels.max())) + 1
    assert len(load_from_disk(saved(tmp_path / "without-test", data)).test_labels) == 0


def test_a_run_is_the_same_from_disk(tmp_path):
    data = pictures(clients=7, each=3)
    plan = make_plan(data="noise", model="small-cnn", clients=5, rounds=2, mechanism=RQM(clip=0.1), device="cpu")
    folder = saved(tmp_path / "new", data, test=(data.test_inputs, data.test_labels), name="noise")
    in_memory, on_disk = RunState(plan, data), RunState(plan, replace(load_from_disk(folder), classes=62))
    for _ in range(2):
        in_memory.step()
        on_disk.step()
    assert torch.equal(in_memory.values, on_disk.values)


USER = np.zeros((2, 3), np.float32), np.array([0, 1])


@pytest.mark.parametrize(
    ("users", "words"),
    [
        ([], "there are none"),
        ([USER, (np.zeros((2, 4)), [0, 1])], r"users\[1\].*must be \(3,\) and torch\.float32"),
        ([(USER[0], [0])], "must be equally many"),
    ],
)
def test_users_that_do_not_fit_are_refused(users, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        save_to_disk(tmp_path / "new", users)


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": ["float32", 3, 3]},
        {"inputs": ["float32", -1, 3]},
        {"inputs": ["float32", -2, -3]},
        {"inputs": ["float32", float("inf")]},
        {"labels": ["object", 2]},
        {"offsets": None},
        {"classes": "many"},
    ],
)
def test_a_folder_with_other_contents_is_refused(change, tmp_path):
    folder = save_to_disk(tmp_path / "good", [USER])
    with pytest.raises(FileExistsError):
        save_to_disk(folder, [USER])
    about = json.loads((folder / "about.json").read_text())
    (folder / "about.json").write_text(json.dumps({**about, **change}))
    with pytest.raises(ValueError, match=r"must be a folder that rqm\.data\.memory_mapped\.save_to_disk wrote"):
        load_from_disk(folder)


READ = """
import sys
from pathlib import Path
from rqm.data import memory_mapped
def resident():
    return next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith("VmRSS"))
memory_mapped.MAX_RESIDENT_BYTES = 2**22
train = memory_mapped.load_from_disk(sys.argv[1]).train
train.sizes_of([5]), train.gather(train.offsets[:1])
start = resident()
train[123]
peak = after_one = resident()
total = 0
for client in range(len(train)):
    total += int(train[client][0].sum())
    peak = max(peak, resident())
print(after_one - start, peak - start, total)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_only_what_is_asked_for_is_read_and_it_is_released_again(tmp_path):
    folder = save_to_disk(tmp_path / "new", ((np.ones((10, 28, 28), np.uint8), np.zeros(10, int)) for _ in range(3000)))
    done = subprocess.run([sys.executable, "-c", READ, folder], capture_output=True, text=True, check=True)
    after_one, peak, total = map(int, done.stdout.split())
    assert after_one < 4_000  # kB, of 23 MB
    assert peak < 9_000
    assert total == 30_000 * 784
