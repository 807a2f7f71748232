"""Checkpoints: one file that is either the old or the new one, whatever happens while it is written."""

import json
from pathlib import Path

import numpy as np
import torch

from rqm._util.checks import not_finite, whole
from rqm._util.files import write_atomically
from rqm._util.safetensors import dump
from rqm.plan.folder import CHECKPOINT, METRICS, STATE, read_checkpoint
from rqm.plan.plan import Plan
from rqm.training.trainer import Trainer

TENSORS = ("values", "moments")


def save(trainer: Trainer, folder: Path, metrics_bytes: int, head: str | None = None) -> None:
    """Write the state of a run, how much of its metrics belongs to it and the head of its ledger, atomically."""
    state = {"round": trainer.done, "metrics_bytes": metrics_bytes, "plan": trainer.plan.to_dict(), "ledger_head": head}
    arrays = {name: getattr(trainer, name).cpu().numpy() for name in TENSORS}
    write_atomically(folder / CHECKPOINT, dump(arrays, {STATE: json.dumps(state)}))


def restore(trainer: Trainer, folder: Path) -> tuple[int, str | None]:
    """Put a trainer where the checkpoint was; return how many bytes of metrics belong to it, and the ledger's head.

    Nothing is changed before all of it has been checked.
    """
    path, found = folder / CHECKPOINT, read_checkpoint(folder)
    if found is None:
        return 0, None
    arrays, state = found
    metrics = folder / METRICS
    try:
        if arrays.keys() != set(TENSORS):
            raise ValueError(f"it holds {', '.join(arrays) or 'nothing'}: must be {' and '.join(TENSORS)}")
        plan = Plan.from_dict(state.get("plan"))  # type: ignore[arg-type]
        for name, array in arrays.items():
            if not np.isfinite(array).all():
                raise not_finite(name, array)
        done = whole("round", state["round"], 0, plan.rounds)
        written = metrics.stat().st_size if metrics.exists() else 0
        size = whole(f"metrics_bytes (of {METRICS})", state["metrics_bytes"], 0, written)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: is damaged ({error}); delete it to begin again") from None
    if not trainer.plan.goes_on(plan):
        raise ValueError(f"{path}: belongs to another plan; resume with the plan that is saved beside it")
    for name, array in arrays.items():
        shape = tuple(getattr(trainer, name).shape)
        if shape != array.shape:
            raise ValueError(f"{path}: {name} has shape {array.shape}: must be {shape}")
    for name, array in arrays.items():
        target: torch.Tensor = getattr(trainer, name)
        target.copy_(torch.from_numpy(array))
    trainer.skip_to(done)
    return size, state.get("ledger_head")
