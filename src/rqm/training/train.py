"""``rqm.train``: a model of one's own, data of one's own, and an ε."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import randbits
from tempfile import TemporaryDirectory
from typing import Any, final

import torch
from torch import nn

from rqm._util.files import write_json
from rqm._util.words import many
from rqm.data.federated_data import FederatedData, as_federated_data
from rqm.ledger.ledger import LEDGER
from rqm.plan.folder import CHECKPOINT, METRICS, SUMMARY, read_metrics
from rqm.plan.plan import PLAN, ClientWork, Plan
from rqm.training import run
from rqm.training.defaults import Wanted, plan_for
from rqm.training.fitting import check_model, size
from rqm.training.models import Loss
from rqm.training.statement import Statement
from rqm.training.trainer import Record, Trainer

MODEL, GUARANTEE = "model.pt", "guarantee.json"
"""What ``save`` writes beside the files of the run: the weights, for ``torch.load``, and what was promised."""


@final
@dataclass(frozen=True, eq=False)
class Trained:
    """A trained ``model``, what its training promises every user, and how it went.

    ``history`` has a table for every round, as in ``metrics.jsonl``: ``loss`` and ``accuracy`` are of the test set,
    where it was looked at, and are released (no ε covers the people in it); what is marked as not released stays here.
    """

    model: nn.Module
    guarantee: Statement
    history: list[dict[str, Any]]
    plan: Plan
    folder: Path
    _kept: TemporaryDirectory[str] | None = field(default=None, repr=False)

    @property
    def evaluation(self) -> dict[str, Any]:
        """Loss and accuracy on the test set at the end, and that they are released; empty without a test set."""
        seen = [line for line in self.history if "loss" in line]
        if not seen:
            return {}
        return {name: seen[-1][name] for name in ("round", "loss", "accuracy") if name in seen[-1]} | {"released": True}

    def save(self, folder: Path | str) -> Path:
        """Save the weights (``model.pt``), the guarantee, the ledger and the other files of the run in a folder."""
        folder = Path(folder)
        if folder.resolve() != self.folder.resolve():
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise FileExistsError(f"{folder}: must be a new or empty folder, or that of the run")
            folder.mkdir(parents=True, exist_ok=True)
            for name in (PLAN, METRICS, SUMMARY, CHECKPOINT, LEDGER):
                if (self.folder / name).exists():
                    shutil.copyfile(self.folder / name, folder / name)
        torch.save({name: value.cpu().clone() for name, value in self.model.state_dict().items()}, folder / MODEL)
        write_json(folder / GUARANTEE, self.guarantee.to_dict())
        return folder

    def __str__(self) -> str:
        """How good the model is, and what was promised."""
        seen = self.evaluation
        said = [f"{name} {seen[name]:.4g}" for name in ("accuracy", "loss") if name in seen]
        return (f"{', '.join(said)} on the test set (released). " if said else "") + str(self.guarantee)

    def _repr_html_(self) -> str:
        return f"<p>{many(len(self.history), 'round')}</p>{self.guarantee._repr_html_()}"


def train(  # noqa: PLR0913 (all but three of them follow from rules)
    model: nn.Module,
    data: Any,
    *,
    epsilon: float,
    delta: float | None = None,
    rounds: int = 100,
    clients: int | None = None,
    users: Any = None,
    loss: Loss | None = None,
    test: Any = None,
    local: ClientWork | None = None,
    seed: int | None = None,
    out: Path | str | None = None,
    resume: bool | None = None,
    evaluate_every: int | None = None,
    device: str = "auto",
    progress: bool | Callable[[Record], object] = True,
    **rules: Any,
) -> Trained:
    """Train a torch model with differential privacy for every user; what is not given follows from public rules.

    ``data`` is a list with one data set a user: (inputs, labels), or a torch data set. Or (inputs, labels) of all, with
    ``users``: the id of each example's owner; or a ``rqm.FederatedData``. ``loss`` is given the model's outputs and the
    labels; without one it is the cross-entropy. On ``test``, a data set of your own, the model is evaluated: that is
    released, and no ε covers the people in it.

    In each of the ``rounds`` so many ``clients``, who take turns, compute a gradient (or take ``local`` steps). Other
    ``rules`` are ``l2_clip`` (1), the server's ``rate``, ``honest_clients`` and ``noise`` ("independent", "correlated",
    or None for the better of the two). An infinite ``epsilon`` trains without noise, to compare.

    Randomness is the operating system's, and such a run is private; with a ``seed`` it is a simulation that can be
    repeated, and says so. The run is kept in the folder ``out``, where the same call goes on after an interruption.

    >>> import numpy as np, torch
    >>> people = [(np.full((3, 2), 1.0 - 2 * (i % 2)), np.full(3, i % 2)) for i in range(400)]
    >>> result = train(torch.nn.Linear(2, 2), people, epsilon=3, rounds=20, clients=40, rate=1, progress=False)
    >>> result.guarantee.epsilon <= 3, len(result.history), result.model(torch.ones(2)).argmax().item()
    (True, 20, 0)
    """
    wanted = Wanted(epsilon, delta, rounds, clients, **rules)
    federation, (folder, kept) = as_federated_data(data, users, test), _folder(out)
    check_model(model, federation, loss)
    each = max(1, rounds // 10) if evaluate_every is None else evaluate_every
    often = rounds if kept else 1  # a round that is done again is charged again
    others = {"client": local or ClientWork(), "device": device, "evaluate_every": each, "checkpoint_every": often}
    public = _public_seed(seed, folder)
    plan = plan_for(wanted, len(federation.train), size(model), public, data=federation.name, **others)
    trainers: list[Trainer] = []

    def make(plan: Plan, data: FederatedData) -> Trainer:
        trainers.append(Trainer(plan, data, model, loss=loss, secure=seed is None))
        return trainers[0]

    with _watched(rounds, progress) as watch:
        run.carry_out(plan, federation, folder, watch, resume=resume, make=make, seeded=seed is not None)
    trainer = trainers[0]
    return Trained(_own(trainer), _told(trainer, wanted, seed), read_metrics(folder), trainer.plan, folder, kept)


def _folder(out: Path | str | None) -> tuple[Path, TemporaryDirectory[str] | None]:
    """Where the run is kept: in a folder for good, or in one that lasts as long as the result."""
    if out is not None:
        return Path(out), None
    kept = TemporaryDirectory(prefix="rqm-")
    return Path(kept.name), kept


def _public_seed(seed: int | None, folder: Path) -> int:
    """The seed of all that is public, as the order of the users and the rotation: of a run that goes on, its own."""
    if seed is not None:
        return seed
    return Plan.of_run(folder).seed if (folder / PLAN).exists() else randbits(31)


def _own(trainer: Trainer) -> nn.Module:
    """The model, ready to predict, with gradients of nobody."""
    for one in trainer.model.parameters():
        one.grad = None
    return trainer.model.eval()


def _told(trainer: Trainer, wanted: Wanted, seed: int | None) -> Statement:
    """What was charged, in words."""
    if not trainer.mean.is_private:
        return Statement(None)
    charges = trainer.guard.charges
    details = trainer.mean.guarantee(charges=charges, workload=trainer.plan.workload)
    again = sum(charges.values()) - len(charges)
    return Statement(details, seed, again=again, asked=wanted.epsilon)


@contextmanager
def _watched(rounds: int, progress: bool | Callable[[Record], object]) -> Iterator[Callable[[Record], object]]:
    """A bar with the time that is left, where there is somebody to look at it."""
    if not isinstance(progress, bool):
        yield progress
        return
    try:
        from rich.console import Console  # noqa: PLC0415 (a bare GPU machine has none)
        from rich.progress import (  # noqa: PLC0415
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )
    except ModuleNotFoundError:
        yield lambda _: None
        return
    columns = (TextColumn("round"), BarColumn(bar_width=12), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        *columns, TextColumn("left  {task.description}"), console=Console(stderr=True), disable=not progress
    ) as bar:
        task, seen = bar.add_task("", total=rounds), ""

        def watch(record: Record) -> None:
            nonlocal seen
            if record.loss is not None:
                seen = f"loss {record.loss:.3f}" + (
                    "" if record.accuracy is None else f", accuracy {record.accuracy:.1%}"
                )
            spent = "" if record.epsilon is None else f"ε {record.epsilon:.3g} so far"
            bar.update(task, completed=record.round, description=", ".join(filter(None, (seen, spent))))

        yield watch
