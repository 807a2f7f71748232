"""Checkpoints: one file that is either the old or the new one, whatever happens while it is written."""

import json
from pathlib import Path

import numpy as np
import torch

from rqm._util.checks import not_finite, whole
from rqm._util.files import parse_table, write_atomically
from rqm._util.tensor_file import dump, parse
from rqm.plan.folder import CHECKPOINT, METRICS, STATE, read_checkpoint
from rqm.plan.plan import Plan
from rqm.training.trainer import Trainer

TENSORS = ("values", "moments", "clip", "state")
"""What a checkpoint holds; the last two only of plans whose clip moves, and of methods whose server remembers more."""
SECRET = "transient.safetensors"
"""Noise that the next round takes back, where it is secure: readable by its owner alone, and gone at the end."""
CLIENTS = "clients.{}.safetensors"
"""What clients remember after so many rounds: theirs, so it is kept as the former is."""
LOW = 12
"""Bits of an integer in the second of two arrays of floats, both of which hold theirs exactly."""


def save(trainer: Trainer, folder: Path, metrics_bytes: int, head: str | None = None) -> None:
    """Write the state of a run, how much of its metrics belongs to it and the head of its ledger, atomically."""
    _keep_secret(trainer, folder)
    state = {"round": trainer.done, "metrics_bytes": metrics_bytes, "plan": trainer.plan.to_dict(), "ledger_head": head}
    arrays = {name: getattr(trainer, name).cpu().numpy() for name in _tensors(trainer)}
    own = trainer.corrections
    if own is not None and trainer.done < trainer.plan.participation.rounds:
        data = dump({"corrections": own.cpu().numpy()}, {})
        write_atomically(folder / CLIENTS.format(trainer.done), data, private=True)
    write_atomically(folder / CHECKPOINT, dump(arrays, {STATE: json.dumps(state)}))
    for path in folder.glob(CLIENTS.format("*")):  # of checkpoints before, and of a run that is done
        if (
            own is None
            or trainer.done == trainer.plan.participation.rounds
            or path.name != CLIENTS.format(trainer.done)
        ):
            path.unlink()


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
        if arrays.keys() != set(_tensors(trainer)):
            raise ValueError(f"it holds {', '.join(arrays) or 'nothing'}: must be {' and '.join(_tensors(trainer))}")
        plan = Plan.from_dict(state.get("plan"))  # type: ignore[arg-type]
        for name, array in arrays.items():
            if not np.isfinite(array).all():
                raise not_finite(name, array)
        done = whole("round", state["round"], 0, plan.participation.rounds)
        written = metrics.stat().st_size if metrics.exists() else 0
        size = whole(f"metrics_bytes (of {METRICS})", state["metrics_bytes"], 0, written)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: is damaged ({error}); delete it to begin again") from None
    if not trainer.plan.can_continue(plan):
        raise ValueError(f"{path}: belongs to another plan; resume with the plan that is saved beside it")
    for name, array in arrays.items():
        shape = tuple(getattr(trainer, name).shape)
        if shape != array.shape:
            raise ValueError(f"{path}: {name} has shape {array.shape}: must be {shape}")
    own = _corrections(trainer, folder, done)
    for name, array in arrays.items():
        target: torch.Tensor = getattr(trainer, name)
        target.copy_(torch.from_numpy(array))
    if own is not None and trainer.corrections is not None:
        trainer.corrections.copy_(own)
    trainer.skip_to(done)
    return size, state.get("ledger_head")


def _tensors(trainer: Trainer) -> list[str]:
    return [name for name in TENSORS if getattr(trainer, name) is not None]


def _corrections(trainer: Trainer, folder: Path, done: int) -> torch.Tensor | None:
    """What clients remember at a checkpoint, where they remember something; of a run that is done nobody asks."""
    own, path = trainer.corrections, folder / CLIENTS.format(done)
    if own is None or done == trainer.plan.participation.rounds:
        return None
    try:
        arrays, _ = parse(path.read_bytes())
        found = arrays["corrections"]
        if found.shape != tuple(own.shape) or not np.isfinite(found).all():
            raise ValueError(f"it holds {found.shape} values: must be {tuple(own.shape)}, all finite")
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{path}: what clients remember cannot be read ({error}); begin again elsewhere") from None
    return torch.from_numpy(found)


def _keep_secret(trainer: Trainer, folder: Path) -> None:
    """Write what the round after this one takes back, before the checkpoint that goes with it."""
    noise = trainer.secret
    if noise is None or trainer.done == trainer.plan.participation.rounds:  # what was added last is never taken back
        (folder / SECRET).unlink(missing_ok=True)
        return
    values = noise.cpu().numpy()
    arrays = {"high": (values >> LOW).astype(np.float32), "low": (values & (2**LOW - 1)).astype(np.float32)}
    data = dump(arrays, {STATE: json.dumps({"round": trainer.done})})
    write_atomically(folder / SECRET, data, private=True)


def recall(trainer: Trainer, folder: Path) -> None:
    """Let a trainer whose next round was never begun take back what the last one added, if that was kept."""
    path = folder / SECRET
    if not trainer.aggregator.secure or not path.exists():
        return
    try:
        arrays, texts = parse(path.read_bytes())
        done = whole("round", parse_table(texts[STATE])["round"], 1)
        high, low = (arrays[name] for name in ("high", "low"))
        clients, size = trainer.plan.participation.clients, trainer.coordinates
        wanted = (size,) if trainer.mean.has_second_message else (clients, size)
        if high.shape != wanted or low.shape != wanted:
            raise ValueError(f"it holds {high.shape} values: must be {wanted}")
        values = (high.astype(np.int64) << LOW) + low.astype(np.int64)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path}: is damaged ({error}); delete it, and that noise stays in the model") from None
    if done == trainer.done:
        trainer.recall(torch.from_numpy(values.astype(np.int32)))
