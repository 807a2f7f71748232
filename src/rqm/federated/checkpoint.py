"""Checkpoints: one file that is either the old or the new one, whatever happens while it is written."""

import json
import os
from pathlib import Path

import torch

from rqm.federated.loop import Trainer

NAME = "checkpoint.safetensors"


def save(trainer: Trainer, folder: Path, metrics_bytes: int) -> None:
    """Write the state of a run and how much of its metrics belongs to it, atomically."""
    from safetensors.torch import save as dump  # noqa: PLC0415 (an extra)

    state = {"round": trainer.done, "metrics_bytes": metrics_bytes, "plan": trainer.plan.to_dict()}
    data = dump({"values": trainer.values, "moments": trainer.moments}, {"state": json.dumps(state)})
    write_atomically(folder / NAME, data)


def restore(trainer: Trainer, folder: Path) -> int:
    """Put a trainer where the checkpoint was; return how many bytes of metrics belong to it."""
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415 (an extra)

    path = folder / NAME
    if not path.exists():
        return 0
    try:
        with safe_open(path, framework="pt") as file:
            state = json.loads(file.metadata()["state"])
            tensors = {name: file.get_tensor(name) for name in ("values", "moments")}
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: is damaged ({error}); delete it to begin again") from None
    if state["plan"] != json.loads(json.dumps(trainer.plan.to_dict())):
        raise ValueError(f"{path}: belongs to another plan; resume with the plan that is saved beside it")
    for name, tensor in tensors.items():
        target: torch.Tensor = getattr(trainer, name)
        if target.shape != tensor.shape:
            raise ValueError(f"{path}: {name} has shape {tuple(tensor.shape)}: must be {tuple(target.shape)}")
        target.copy_(tensor)
    trainer.done = int(state["round"])
    return int(state["metrics_bytes"])


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file in one step: after a crash or on a full disk it is what it was before."""
    temporary = path.with_name(path.name + ".part")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
