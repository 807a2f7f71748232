"""Checkpoints: one file that is either the old or the new one, whatever happens while it is written.

The file is in the format of safetensors, and its metadata hold the state as JSON. It is written and read here in a few
lines, so that training needs nothing but torch, NumPy and SciPy.
"""

import json
import struct
from pathlib import Path

import numpy as np
import torch

from rqm._util.files import write_atomically
from rqm.plan.folder import CHECKPOINT
from rqm.plan.plan import Plan
from rqm.training.trainer import Trainer

TENSORS = ("values", "moments")


def save(trainer: Trainer, folder: Path, metrics_bytes: int, head: str | None = None) -> None:
    """Write the state of a run, how much of its metrics belongs to it and the head of its ledger, atomically."""
    state = {"round": trainer.done, "metrics_bytes": metrics_bytes, "plan": trainer.plan.to_dict(), "ledger_head": head}
    arrays = {name: getattr(trainer, name).cpu().numpy() for name in TENSORS}
    write_atomically(folder / CHECKPOINT, dump(arrays, {"state": json.dumps(state)}))


def restore(trainer: Trainer, folder: Path) -> tuple[int, str | None]:
    """Put a trainer where the checkpoint was; return how many bytes of metrics belong to it, and the ledger's head."""
    path = folder / CHECKPOINT
    if not path.exists():
        return 0, None
    try:
        arrays, metadata = parse(path.read_bytes())
        state, arrays = json.loads(metadata["state"]), {name: arrays[name] for name in TENSORS}
        done, size, plan = int(state["round"]), int(state["metrics_bytes"]), Plan.from_dict(state["plan"])
    except (KeyError, TypeError, ValueError, struct.error) as error:
        raise ValueError(f"{path}: is damaged ({error}); delete it to begin again") from None
    if not trainer.plan.goes_on(plan):
        raise ValueError(f"{path}: belongs to another plan; resume with the plan that is saved beside it")
    for name, array in arrays.items():
        target: torch.Tensor = getattr(trainer, name)
        if tuple(target.shape) != array.shape:
            raise ValueError(f"{path}: {name} has shape {array.shape}: must be {tuple(target.shape)}")
        target.copy_(torch.from_numpy(array))
    trainer.skip_to(done)
    return size, state.get("ledger_head")


def dump(arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> bytes:
    """Arrays of float32 and strings about them as a safetensors file."""
    header: dict[str, object] = {"__metadata__": metadata}
    end = 0
    for name, array in arrays.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [end, end + 4 * array.size]}
        end += 4 * array.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([struct.pack("<Q", len(text)), text, *(array.astype("<f4").tobytes() for array in arrays.values())])


def parse(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """What ``dump`` wrote; a ValueError if it is not whole."""
    (length,) = struct.unpack_from("<Q", data)
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    metadata = header.pop("__metadata__")
    if len(body) != max(entry["data_offsets"][1] for entry in header.values()):
        raise ValueError(f"holds {len(body)} bytes of tensors, not as many as its header says")
    arrays = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        arrays[name] = np.frombuffer(body[start:end], dtype="<f4").reshape(entry["shape"]).copy()
    return arrays, metadata
