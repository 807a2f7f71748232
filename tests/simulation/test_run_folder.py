"""Runs in folders: the same files after any interruption, and nothing overwritten."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from rqm import RQM, StochasticRounding
from rqm.config.plan import PLAN as PLAN_FILE
from rqm.config.plan import Adapt, ClientWork, Plan, ServerStep, Transforms
from rqm.config.run_files import CHECKPOINT
from rqm.ledger.ledger import LEDGER, read
from rqm.mechanisms.banded import BandedGaussian
from rqm.simulation import checkpoint, run_folder
from rqm.simulation.loop import RunState
from tests.plans import change_plan, make_plan
from tests.simulation.small import federation, model

PLAN = make_plan(
    data="blobs",
    model="linear",
    clients=5,
    rounds=12,
    evaluate_every=4,
    checkpoint_every=5,
    device="cpu",
    mechanism=RQM(clip=0.5),
    server=ServerStep(rate=0.1),
)


def pictures(seed=0):
    """The small federation as pictures of 28×28, so that a shipped model fits."""
    data = federation(seed=seed)
    widen = lambda x: (x.repeat(1, 392).view(-1, 28, 28) * 20 + 128).clamp(0, 255).byte()  # noqa: E731
    train = type(data.train)(widen(data.train.inputs), data.train.labels, data.train.offsets)
    return type(data)("blobs", train, widen(data.test_inputs), data.test_labels, 3)


def lines(folder):
    entries = [json.loads(line) for line in (folder / run_folder.METRICS).read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "parts")} for line in entries]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was not interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run_folder.carry_out(PLAN, pictures(), folder)
    return folder


def same(folder_1, folder_2):
    assert lines(folder_1) == lines(folder_2)
    assert (folder_1 / CHECKPOINT).read_bytes()[-1000:] == (folder_2 / CHECKPOINT).read_bytes()[-1000:]
    summaries = [json.loads((folder / run_folder.SUMMARY).read_text()) for folder in (folder_1, folder_2)]
    heads = [summary.pop("ledger_head") for summary in summaries]
    assert summaries[0] == summaries[1]
    for folder, head in zip((folder_1, folder_2), heads, strict=True):
        _, spent, last, _ = read(folder / LEDGER)
        assert head == last
        assert set(spent) == set(range(PLAN.participation.rounds))  # each was charged, some again


@pytest.mark.parametrize("stop", [1, 4, 5, 7, 11])
def test_a_resumed_run_is_the_run_that_was_not_interrupted(stop, whole, tmp_path):
    class KilledError(Exception):
        pass

    def watch(outcome):
        if outcome.round == stop:
            raise KilledError

    folder = tmp_path / "run"
    with pytest.raises(KilledError):
        run_folder.carry_out(PLAN, pictures(), folder, watch)
    assert Plan.of_run(folder) == change_plan(PLAN, dim=2355, delta=1e-5)  # all that was left open
    run_folder.carry_out(Plan.of_run(folder), pictures(), folder, resume=True)
    same(folder, whole)


CLIPPED = change_plan(PLAN, model="own", checkpoint_every=2, transforms=Transforms(l2_clip=1.0, rotate=True))
LOCAL = change_plan(CLIPPED, client_dropout=0.2, min_survivors=1, server=ServerStep("sgd", rate=0.1))
REMEMBERING = {
    "a clip that moves": change_plan(CLIPPED, adapt=Adapt(start=0.5)),
    "a clip that moves, local steps": change_plan(LOCAL, adapt=Adapt(start=0.5), client=ClientWork("local", batch=5)),
    "corrections": change_plan(LOCAL, client=ClientWork("fedcomgate", batch=5)),
    "corrections, a clip that moves": change_plan(
        LOCAL, adapt=Adapt(start=0.5), client=ClientWork("fedcomgate", batch=5)
    ),
    "accelerated steps": change_plan(LOCAL, client=ClientWork("fedaq", batch=5)),
    "accelerated steps, a clip that moves": change_plan(
        LOCAL, adapt=Adapt(start=0.5), client=ClientWork("fedaq", batch=5)
    ),
    "banded noise": change_plan(
        CLIPPED,
        clients=3,
        mechanism=BandedGaussian(noise_multiplier=0.1, bands=4),
        max_participations=3,
        min_separation=4,
        sampling="fixed-order",
        server=ServerStep(rate=0.5, schedule="linear"),
    ),
    "correlated noise": change_plan(
        CLIPPED,
        clients=4,
        mechanism=StochasticRounding(clip=0.5, levels=2, margin=1.0),
        noise=12.0,
        max_participations=4,
        min_separation=3,
        sampling="fixed-order",
    ),
}
"""Runs whose next round depends on more than the model."""


@pytest.mark.parametrize("stop", [1, 4, 7])
@pytest.mark.parametrize("plan", REMEMBERING.values(), ids=REMEMBERING)
def test_a_resumed_run_remembers_what_the_next_round_depends_on(plan, stop, tmp_path):
    states = []

    def make(plan, data):
        states.append(RunState(plan, data, model()))
        return states[-1]

    expected = make(plan, federation())
    while expected.rounds_done < plan.participation.rounds:
        expected.step()
    answers = iter([False] * (stop - 1) + [True])
    with pytest.raises(TimeoutError):
        run_folder.carry_out(plan, federation(), tmp_path / "run", make=make, out_of_time=lambda: next(answers))
    run_folder.carry_out(plan, federation(), tmp_path / "run", make=make)
    remembered = {**expected.tensors, "clients": expected.updates.client_state}
    for name, tensor in {**states[-1].tensors, "clients": states[-1].updates.client_state}.items():
        assert remembered[name] is tensor or torch.equal(remembered[name], tensor)
    assert all(tensor.any() for name, tensor in expected.tensors.items() if name != "moments")


def test_ctrl_c_ends_the_round_and_saves(whole, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run_folder.carry_out(PLAN, pictures(), folder, lambda r: r.round == 3 and os.kill(os.getpid(), signal.SIGINT))
    assert len(lines(folder)) == 3
    run_folder.carry_out(PLAN, pictures(), folder)
    same(folder, whole)


def test_a_finished_run_stays_finished(whole):
    files = {path.name: path.read_bytes() for path in whole.iterdir()}
    run_folder.carry_out(PLAN, pictures(), whole)
    assert {path.name: path.read_bytes() for path in whole.iterdir()} == files


def test_nothing_is_overwritten(whole, tmp_path):
    files = sorted(path.name for path in whole.iterdir())
    with pytest.raises(FileExistsError, match="--resume"):
        run_folder.carry_out(PLAN, pictures(), whole, resume=False)
    (tmp_path / "else").touch()
    with pytest.raises(FileExistsError, match="--resume"):
        run_folder.carry_out(PLAN, pictures(), tmp_path)
    with pytest.raises(ValueError, match=r"plan\.json is missing"):
        run_folder.carry_out(PLAN, pictures(), tmp_path, resume=True)
    with pytest.raises(ValueError, match="another plan"):
        run_folder.carry_out(change_plan(PLAN, rounds=13), pictures(), whole)
    assert [path.name for path in tmp_path.iterdir()] == ["else"]
    assert sorted(path.name for path in whole.iterdir()) == files


REFUSED = {
    "unknown model": (change_plan(PLAN, model="resnet"), {}),
    "too many clients": (change_plan(PLAN, clients=50), {}),
    "no such device": (change_plan(PLAN, device="quantum"), {}),
    "more turns than users have": (change_plan(PLAN, max_participations=1), {}),
    "another size of model": (change_plan(PLAN, dim=10), {}),
    "no room for the clip": (change_plan(PLAN, mechanism=RQM(clip=1e8), transforms=Transforms(l2_clip=0.1)), {}),
    "a head that is not there": (PLAN, {"expect_head": "1" * 64}),
    "another's certificate": (PLAN, {"certificate": Path(__file__)}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_run_leaves_nothing_behind(name, tmp_path):
    plan, options = REFUSED[name]
    with pytest.raises((ValueError, OSError)):
        run_folder.carry_out(plan, pictures(), tmp_path / "deep" / "run", **options)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty").mkdir()
    with pytest.raises((ValueError, OSError)):
        run_folder.carry_out(plan, pictures(), tmp_path / "empty", **options)
    assert list((tmp_path / "empty").iterdir()) == []
    assert (
        run_folder.carry_out(change_plan(PLAN, rounds=1), pictures(), tmp_path / "empty")["rounds"] == 1
    )  # the corrected run


def test_a_checkpoint_that_does_not_fit_is_refused(whole, tmp_path):
    for name in (PLAN_FILE, run_folder.METRICS, CHECKPOINT, LEDGER):
        (tmp_path / name).write_bytes((whole / name).read_bytes())
    with pytest.raises(ValueError, match="another plan"):
        run_folder.carry_out(change_plan(PLAN, seed=3), pictures(), tmp_path)
    data = (tmp_path / CHECKPOINT).read_bytes()
    for damaged in (data[: len(data) // 2], b"", b"x" * 100):
        (tmp_path / CHECKPOINT).write_bytes(damaged)
        with pytest.raises(ValueError, match="is damaged"):
            run_folder.carry_out(PLAN, pictures(), tmp_path)


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    state = RunState(PLAN, pictures())
    checkpoint.save(state, tmp_path, 0)
    files = (tmp_path / CHECKPOINT).read_bytes()
    state.step()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(state, tmp_path, 0)
    assert (tmp_path / CHECKPOINT).read_bytes() == files
    assert sorted(path.name for path in tmp_path.iterdir()) == [CHECKPOINT]


CHILD = """
import sys
from pathlib import Path
from rqm.simulation import run_folder
from tests.simulation.test_run_folder import PLAN, pictures
run_folder.carry_out(PLAN, pictures(), Path(sys.argv[1]))
"""


def kill_and_go_on(folder, whole, kills):
    rng = np.random.default_rng(kills)
    for _ in range(kills):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(folder)])
        while not (folder / run_folder.METRICS).exists() and child.poll() is None:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.15) if rng.random() < 0.5 else rng.uniform(0, 4))  # also where it starts again
        child.kill()
        child.wait()
    subprocess.run([sys.executable, "-c", CHILD, str(folder)], check=True)
    same(folder, whole)


def test_kill_9_at_random_points_loses_nothing_that_was_saved(whole, tmp_path):
    kill_and_go_on(tmp_path / "run", whole, 2)


@pytest.mark.slow
def test_kill_9_twenty_times(whole, tmp_path):
    kill_and_go_on(tmp_path / "run", whole, 20)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 KB; needs the right to mount one."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mounted)]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount command")
    if done.returncode:
        pytest.skip("not allowed to mount a file system")
    yield mounted
    subprocess.run(["umount", str(mounted)], check=True)


def test_a_disk_that_fills_up_keeps_what_was_saved(small_disk, whole):
    folder = small_disk / "run"
    assert 16_384 < (whole / CHECKPOINT).stat().st_size <= 20_480  # five pages of the sixteen
    (small_disk / "ballast").write_bytes(b"x" * 7 * 4096)  # one checkpoint fits, a second beside it does not
    with pytest.raises(OSError, match="No space left"):
        run_folder.carry_out(PLAN, pictures(), folder)
    state = RunState(PLAN, pictures())
    checkpoint.restore(state, folder)
    assert state.rounds_done == 5
    (small_disk / "ballast").unlink()
    run_folder.carry_out(PLAN, pictures(), folder)
    same(folder, whole)


def test_checkpoints_are_safetensors(whole):
    from safetensors import safe_open

    with safe_open(whole / CHECKPOINT, framework="np") as file:
        assert json.loads(file.metadata()["state"])["round"] == 12
        values = file.get_tensor("values")
    state = RunState(PLAN, pictures())
    checkpoint.restore(state, whole)
    assert (state.values.numpy() == values).all()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_clients():
    from benchmarks.round import MEMORY

    grown = []
    for clients in (10, 160):
        command = [sys.executable, "-c", MEMORY, str(clients)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        grown.append(float(done.stdout))
    assert grown[1] - grown[0] < 40  # 150 more gradients would take 600 MB
