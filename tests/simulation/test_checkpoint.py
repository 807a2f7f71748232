"""Checkpoints: damage is detected, and nothing is restored in part."""

import json
from hashlib import sha256

import numpy as np
import pytest

from rqm._util.tensor_file import dump, parse
from rqm.config.run_files import CHECKPOINT, METRICS, read_checkpoint, recorded_head
from rqm.simulation import checkpoint
from rqm.simulation.loop import RunState
from tests.plans import make_plan
from tests.simulation.small import federation, model

PLAN = make_plan(data="blobs", model="own", clients=4, rounds=6, device="cpu")
HEAD = "ab" * 32


@pytest.fixture
def saved(tmp_path):
    """A trainer after two rounds, and its folder."""
    state = RunState(PLAN, federation(), model())
    for _ in range(2):
        state.step()
    (tmp_path / METRICS).write_text("x" * 100)
    checkpoint.save(state, tmp_path, 90, HEAD)
    return state, tmp_path


def fresh():
    return RunState(PLAN, federation(), model())


def rewritten(folder, **changes):
    """The checkpoint with another state, or other arrays, and a checksum that is right."""
    arrays, texts = parse((folder / CHECKPOINT).read_bytes())
    for name in arrays.keys() & changes.keys():
        arrays[name] = changes.pop(name)(arrays[name])
    state = json.loads(texts["state"]) | changes
    (folder / CHECKPOINT).write_bytes(dump(arrays, {"state": json.dumps(state)}))


def test_a_restored_state_equals_the_saved_one(saved):
    state, folder = saved
    restored = fresh()
    assert checkpoint.restore(restored, folder) == (90, HEAD)
    assert restored.rounds_done == 2
    assert (restored.values == state.values).all()
    assert recorded_head(folder) == HEAD
    assert checkpoint.restore(fresh(), folder / "nowhere") == (0, None)


def test_every_flipped_bit_is_detected(saved):
    _, folder = saved
    original, state = (folder / CHECKPOINT).read_bytes(), fresh()
    old = state.values.clone()
    rng = np.random.default_rng(0)
    header = 8 + int.from_bytes(original[:8], "little")
    bits = [*rng.integers(0, 8 * header, 300), *rng.integers(8 * header, 8 * len(original), 200)]
    for bit in bits:
        damaged = bytearray(original)
        damaged[bit // 8] ^= 1 << (bit % 8)
        (folder / CHECKPOINT).write_bytes(damaged)
        with pytest.raises(ValueError, match="is damaged"):
            checkpoint.restore(state, folder)
        with pytest.raises(ValueError, match="is damaged"):
            recorded_head(folder)
    assert state.rounds_done == 0
    assert (state.values == old).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"round": -5}, "round = -5: must be a whole number ≥ 0"),
        ({"round": 7}, "round = 7: must be a whole number from 0 to 6"),
        ({"round": 2.5}, "round = 2.5: must be a whole number"),
        ({"round": True}, "round = True"),
        ({"round": None}, "round = None"),
        ({"round": 10**400}, "round = 1000"),
        ({"metrics_bytes": -1}, "metrics_bytes = -1"),
        ({"metrics_bytes": 101}, "must be a whole number from 0 to 100"),
        ({"metrics_bytes": "90"}, "metrics_bytes = '90'"),
        ({"ledger_head": 3}, "ledger_head = 3"),
        ({"plan": []}, "plan = "),
        ({"plan": None}, "plan = None"),
        ({"values": lambda a: np.where(a == a[0], np.nan, a)}, "values contains nan"),
        ({"moments": lambda a: a + np.inf}, "moments contains inf"),
    ],
)
def test_impossible_values_are_refused(saved, changes, words):
    _, folder = saved
    rewritten(folder, **changes)
    with pytest.raises(ValueError, match="is damaged") as caught:
        checkpoint.restore(fresh(), folder)
    assert words in str(caught.value)
    assert str(caught.value).startswith(str(folder / CHECKPOINT))


def test_arrays_of_another_size_are_refused(saved):
    _, folder = saved
    rewritten(folder, moments=lambda a: a[:-1])
    state = fresh()
    old = state.values.clone()
    with pytest.raises(ValueError, match="moments has shape"):
        checkpoint.restore(state, folder)
    assert (state.values == old).all()


def test_missing_metrics_are_detected(saved):
    _, folder = saved
    (folder / METRICS).unlink()
    with pytest.raises(ValueError, match="must be a whole number from 0 to 0"):
        checkpoint.restore(fresh(), folder)


def test_a_checkpoint_without_a_checksum_is_refused_with_the_remedy(saved):
    """Version 0.1.0 wrote none."""
    _, folder = saved
    data = (folder / CHECKPOINT).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    del header["__metadata__"]["sha256"]
    text = json.dumps(header).encode()
    (folder / CHECKPOINT).write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    with pytest.raises(ValueError, match=r"it has no checksum.*use the rqm that wrote it"):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"", b"\0"),
        (b'"dtype": "F32"', b'"dtype": "F16"'),
        (b'"shape": [51]', b'"shape": [5.]'),
        (b'"values"', b'"state"'),
        (b'\\"round\\": 2', b'\\"round\\": -'),
    ],
)
def test_wrong_contents_are_refused_despite_a_right_checksum(old, new, saved):
    _, folder = saved
    data = (folder / CHECKPOINT).read_bytes()
    start = data.index(b'"sha256": "') + len(b'"sha256": "')
    damaged = data.replace(old, new, 1) if old else data + new
    assert damaged != data
    damaged = damaged[:start] + b"0" * 64 + damaged[start + 64 :]
    damaged = damaged[:start] + sha256(damaged).hexdigest().encode() + damaged[start + 64 :]
    (folder / CHECKPOINT).write_bytes(damaged)
    with pytest.raises(ValueError, match="is damaged") as error:
        checkpoint.restore(fresh(), folder)
    assert "checksum" not in str(error.value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1234567",
        b"\xff" * 100,
        (2).to_bytes(8, "little") + b"[]",
        (2).to_bytes(8, "little") + b"{}",
        (22).to_bytes(8, "little") + b'{"__metadata__": null}',
        (600_000).to_bytes(8, "little") + b'{"a":' * 120_000,
    ],
)
def test_other_bytes_are_a_value_error(data, tmp_path):
    (tmp_path / CHECKPOINT).write_bytes(data)
    with pytest.raises(ValueError, match="is damaged"):
        read_checkpoint(tmp_path)
