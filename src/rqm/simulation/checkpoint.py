"""Checkpoints: a file holds either the old or the new state of a run, whatever happens while it is written."""

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rqm._util.checks import not_finite, whole
from rqm._util.files import write_atomically
from rqm._util.tensor_file import Arrays, dump, parse
from rqm.config.plan import Plan
from rqm.config.run_files import CHECKPOINT, METRICS, STATE, read_checkpoint
from rqm.simulation.loop import RunState

CLIENTS = "clients.{}.safetensors"
"""The file of what clients remember after a number of rounds: the corrections of local steps, and correlated noise that
was drawn with secure randomness. It is readable by its owner alone, and is removed with its checkpoint."""


def save(state: RunState, folder: Path, metrics_bytes: int, head: str | None = None) -> None:
    """Write the state of a run atomically.

    Args:
        state: The run.
        folder: Its folder.
        metrics_bytes: How many bytes of the metrics were written before.
        head: The head of its ledger.
    """
    done, clients = state.rounds_done, _client_tensors(state)
    path = folder / CLIENTS.format(done)
    if clients:
        write_atomically(path, dump(_arrays(clients), {}), private=True)
    header = {"round": done, "metrics_bytes": metrics_bytes, "plan": state.plan.to_dict(), "ledger_head": head}
    write_atomically(folder / CHECKPOINT, dump(_arrays(state.tensors), {STATE: json.dumps(header)}))
    for old_path in folder.glob(CLIENTS.format("*")):
        if old_path != path or not clients:
            old_path.unlink()


def restore(state: RunState, folder: Path) -> tuple[int, str | None]:
    """Put a run where its last checkpoint was. Nothing is changed before all of it has been checked.

    Args:
        state: The run.
        folder: Its folder.

    Returns:
        How many bytes of the metrics were written before, and the head of the ledger.

    Raises:
        ValueError: If the checkpoint is damaged or belongs to another plan.
    """
    path, metrics, checkpoint = folder / CHECKPOINT, folder / METRICS, read_checkpoint(folder)
    if checkpoint is None:
        return 0, None
    arrays, header = checkpoint
    try:
        if arrays.keys() != state.tensors.keys():
            raise ValueError(f"it holds {', '.join(arrays) or 'nothing'}: must be {' and '.join(state.tensors)}")
        plan = Plan.from_dict(header.get("plan"))  # type: ignore[arg-type]
        for name, array in arrays.items():
            if not np.isfinite(array).all():
                raise not_finite(name, array)
        done = whole("round", header["round"], 0, plan.participation.rounds)
        written = metrics.stat().st_size if metrics.exists() else 0
        size = whole(f"metrics_bytes (of {METRICS})", header["metrics_bytes"], 0, written)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: is damaged ({error}); delete it to begin again") from None
    if not state.plan.can_continue(plan):
        raise ValueError(f"{path}: belongs to another plan; resume with the plan that is saved beside it")
    for name, tensor in state.tensors.items():
        if arrays[name].shape != tuple(tensor.shape):
            raise ValueError(f"{path}: {name} has shape {arrays[name].shape}: must be {tuple(tensor.shape)}")
    if done < state.plan.participation.rounds:
        _restore_clients(state, folder / CLIENTS.format(done), done)
    for name, tensor in state.tensors.items():
        tensor.copy_(torch.from_numpy(arrays[name]))
    state.rounds_done = done
    return size, header.get("ledger_head")


def _arrays(tensors: dict[str, Tensor]) -> Arrays:
    return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}


def _client_tensors(state: RunState) -> dict[str, Tensor]:
    """What clients remember from one round to the next; nothing after the last round."""
    if state.rounds_done == state.plan.participation.rounds:
        return {}
    tensors = {
        "corrections": state.updates.client_state,
        "noise": state.secure_sum.chain.secret(state.rounds_done),
    }
    # The file holds 32 bits a value, of any kind.
    return {name: tensor.view(torch.float32) for name, tensor in tensors.items() if tensor is not None}


def _restore_clients(state: RunState, path: Path, done: int) -> None:
    """Put the clients where they were."""
    corrections = state.updates.client_state
    if corrections is None and not path.exists():
        return
    try:
        arrays, _ = parse(path.read_bytes())
        if "noise" in arrays:
            state.secure_sum.chain.restore(done, torch.from_numpy(arrays["noise"]).view(torch.int32))
        if corrections is not None:
            values = arrays["corrections"]
            if values.shape != tuple(corrections.shape) or not np.isfinite(values).all():
                raise ValueError(f"it holds {values.shape} values: must be {tuple(corrections.shape)}, all finite")
            corrections.copy_(torch.from_numpy(values))
    except (OSError, ValueError, KeyError) as error:
        remedy = "begin again elsewhere" if corrections is not None else "delete it, and its noise stays in the model"
        raise ValueError(f"{path}: what clients remember cannot be read ({error}); {remedy}") from None
