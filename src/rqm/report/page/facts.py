"""What is known of a run from its folder: plan, metrics, privacy, and how the model does on the test set."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from rqm.channel import Channel
from rqm.federated import run
from rqm.mechanisms.noiseless import Noiseless
from rqm.plan.account import account, account_ledger
from rqm.plan.plan import PLAN, Plan
from rqm.privacy.guarantee import Guarantee
from rqm.privacy.ledger import LEDGER
from rqm.privacy.worst_case import QUICK_CLIENTS, Bound, renyi


@final
@dataclass(frozen=True)
class Tested:
    """The model on the test set: how often each class (row) was taken for each, and some pictures."""

    confusion: Any
    pictures: Any
    labels: Any
    said: Any
    sure: Any


@final
@dataclass(frozen=True)
class Run:
    """One run. ``group`` is what runs that differ only in their seed have in common."""

    folder: Path
    group: str
    plan: Plan
    lines: list[dict[str, Any]]
    summary: dict[str, Any] | None

    @property
    def done(self) -> int:
        """Rounds that were carried out."""
        return int(self.lines[-1]["round"]) if self.lines else 0

    @property
    def same(self) -> str:
        """What runs have in common that differ in their seed only."""
        return json.dumps({**self.plan.to_dict(), "seed": 0}, sort_keys=True)

    def evaluated(self, key: str) -> tuple[Any, Any]:
        """Rounds and values where the server evaluated."""
        some = [line for line in self.lines if np.isfinite(line.get(key, np.nan))]
        return np.array([line["round"] for line in some], dtype=float), np.array([line[key] for line in some])

    def total(self, key: str) -> float:
        """The sum of a value over all rounds."""
        return float(sum(line.get(key, 0) or 0 for line in self.lines))

    @property
    def accuracy(self) -> float | None:
        """The last that was measured."""
        _, values = self.evaluated("accuracy")
        if self.summary:
            return float(self.summary["accuracy"])
        return float(values[-1]) if len(values) else None


def read(folder: Path, group: str = "") -> Run:
    """Read the folder of a run, finished or not; a line of metrics that was cut off by a crash is left out."""
    if not (folder / PLAN).exists():
        raise FileNotFoundError(f"RUN_DIR = {folder}: holds no run ({PLAN} is missing)")
    lines = []
    for text in (folder / run.METRICS).read_text().splitlines() if (folder / run.METRICS).exists() else []:
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break
    try:
        plan = Plan.of_run(folder)
        summary = json.loads((folder / run.SUMMARY).read_text()) if run.finished(folder) else None
    except json.JSONDecodeError as error:
        raise ValueError(f"{folder}: a file is damaged ({error})") from None
    return Run(folder, group or folder.name, plan, lines, summary)


def find(folders: list[Path]) -> list[Run]:
    """All runs in some folders: of a run, or of a sweep (variant/seed)."""
    found = []
    for folder in folders:
        if (folder / PLAN).exists():
            found.append(read(folder))
            continue
        inner = sorted(path.parent for path in folder.glob(f"*/*/{PLAN}")) if folder.is_dir() else []
        if not inner:
            raise FileNotFoundError(f"RUN_DIR = {folder}: holds no run ({PLAN} is missing), and no sweep")
        found += [read(path, path.parent.name) for path in inner]
    return found


def privacy(one: Run) -> tuple[Guarantee | None, dict[str, Any], str]:
    """What is guaranteed to every user, what the ledger says, and why there is nothing to say if so.

    From the ledger where there is one, so that it is what was spent, not what was planned.
    """
    if isinstance(one.plan.mechanism, Noiseless):
        return None, {}, "The gradients are summed without noise: there is no differential privacy at all."
    if (one.folder / LEDGER).exists():
        found, charged = account_ledger(one.folder)
        return found, charged, "" if found else "Nothing has been charged yet."
    try:
        return account(one.plan), {}, ""
    except (ValueError, TypeError) as error:
        return None, {}, f"No ε can be stated for this plan: {error}."


def coordinate(one: Run) -> Bound | None:
    """What one coordinate of one round may leak, attained and certified, where that is quick to find."""
    mech = one.plan.mechanism
    if not isinstance(mech, Channel) or one.plan.clients > QUICK_CLIENTS or one.plan.transforms.l2_clip is not None:
        return None
    try:
        return renyi(mech, 2, one.plan.clients)
    except ValueError:  # a law that is too steep to be summed
        return None


def on_test_set(one: Run, data: Path | None) -> Tested | str:
    """The saved model on the test set; or why that is not known."""
    import torch  # noqa: PLC0415 (an extra)

    from rqm.datasets import load  # noqa: PLC0415
    from rqm.federated import checkpoint  # noqa: PLC0415
    from rqm.federated.loop import TEST_BATCH, Trainer, images  # noqa: PLC0415

    if not (one.folder / checkpoint.NAME).exists():
        return "there is no checkpoint of the model"
    try:
        federated = load(one.plan.data, data)
        trainer = Trainer(one.plan, federated)
        checkpoint.restore(trainer, one.folder)
    except (FileNotFoundError, ValueError, ModuleNotFoundError) as error:
        return str(error)
    trainer.model.eval()
    with torch.no_grad():
        parts = [
            torch.softmax(trainer.model(images(x)), 1).cpu()
            for x in torch.split(trainer.data.test_inputs, TEST_BATCH)
        ]  # fmt: skip
    sure, said = torch.cat(parts).max(dim=1)
    labels, pictures = federated.test_labels.numpy(), federated.test_inputs.numpy()
    confusion = np.zeros((federated.classes, federated.classes), dtype=np.int64)
    np.add.at(confusion, (labels, said.numpy()), 1)
    return Tested(confusion, pictures, labels, said.numpy(), sure.numpy())
