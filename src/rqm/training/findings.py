"""What is found out about a run, finished or not: privacy, the law, the model on the test set.

It is saved in the run's folder, so that reports only read; and found anew when the run has gone on since.
"""

from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from rqm import __version__
from rqm._util.files import read_json, write_json
from rqm._util.text import picture_to_text
from rqm.accounting.guarantee import Guarantee
from rqm.ledger.ledger import LEDGER
from rqm.ledger.signing import LedgerError
from rqm.mechanisms.base import Mechanism
from rqm.plan.account import account, account_ledger
from rqm.plan.folder import CHECKPOINT, FINDINGS
from rqm.plan.leak import leak
from rqm.plan.plan import PLAN, Plan

SHOWN = 20
"""Pictures of a kind that are shown."""
MOST_LEVELS = 256
"""Laws of more outcomes are not drawn."""


def findings(folder: Path, data: Path | None = None) -> dict[str, Any]:
    """What is known of a run: what was saved, if nothing has happened since; else found out, and saved if possible."""
    state = _state(folder)
    try:
        known = read_json(folder / FINDINGS, "findings")
    except (OSError, ValueError):
        known = {}
    if known.get("state") == state and "why" not in known.get("model", "why"):
        return dict(known)
    plan = Plan.of_run(folder)
    found = {
        "state": state,
        "privacy": _privacy(plan, folder),
        "coordinate": leak(plan, [2.0]),
        "law": _law(plan.mechanism),
        "model": _model(plan, folder, data),
    }
    with suppress(OSError):  # a folder may not be ours to write in
        write_json(folder / FINDINGS, found)
    return found


def _state(folder: Path) -> dict[str, str]:
    files = {name: folder / name for name in (PLAN, LEDGER, CHECKPOINT)}
    return {"version": __version__} | {
        name: sha256(path.read_bytes()).hexdigest() for name, path in files.items() if path.exists()
    }


def _privacy(plan: Plan, folder: Path) -> dict[str, Any]:
    """What is guaranteed to every user, what the ledger says, and why there is nothing to say if so.

    From the ledger where there is one, so that it is what was spent, not what was planned.
    """
    if not plan.mechanism.adds_noise:
        return {"why": "The gradients are summed without noise: there is no differential privacy at all."}
    if (folder / LEDGER).exists():
        try:
            found, charged = account_ledger(folder)
        except ValueError as error:
            if isinstance(error, LedgerError):
                raise
            return {"why": f"No ε is stated: {error}."}
        if found is None:
            return {"charged": charged, "why": "Nothing has been charged yet."}
        return {"guarantee": described(found), "charged": charged}
    try:
        return {"guarantee": described(account(plan))}
    except (ValueError, TypeError) as error:
        return {"why": f"No ε can be stated for this plan: {error}."}


def described(guarantee: Guarantee) -> dict[str, Any]:
    """A guarantee as plain values, with its trade-off curve."""
    rates = np.concatenate([np.geomspace(1e-6, 0.1, 41), np.linspace(0.12, 1, 23)])
    curve = [rates.tolist(), guarantee.trade_off(rates).tolist()]
    return {**guarantee.to_dict(), "trade_off": curve}


def _law(mech: Mechanism) -> dict[str, Any] | None:
    """The law at a few inputs, in units of the clip."""
    if not mech.has_integer_messages or mech.discrete.levels > MOST_LEVELS:
        return None
    channel = mech.discrete
    return {
        "outcomes": (channel.grid.values / channel.clip).tolist(),
        "laws": {f"x = {x:g} c": channel.pmf(x * channel.clip).tolist() for x in (-1.0, 0.0, 0.6)},
        "variance_max": channel.variance_max / channel.clip**2,
    }


def _model(plan: Plan, folder: Path, data: Path | None) -> dict[str, Any]:
    """The saved model on the test set: how often each class (row) was taken for each, and some pictures."""
    if not (folder / CHECKPOINT).exists():
        return {"why": "there is no checkpoint of the model"}
    try:
        from rqm.data import load  # noqa: PLC0415 (these need torch)
        from rqm.training import checkpoint  # noqa: PLC0415
        from rqm.training.evaluation import predict  # noqa: PLC0415
        from rqm.training.trainer import Trainer  # noqa: PLC0415

        federated = load(plan.data, data)
        trainer = Trainer(plan, federated)
        checkpoint.restore(trainer, folder)
    except (FileNotFoundError, ValueError, ModuleNotFoundError) as error:
        return {"why": str(error)}
    said, sure = predict(trainer.model, trainer.data.test_inputs)
    labels, pictures = federated.test_labels.numpy(), federated.test_inputs.numpy()
    confusion = np.zeros((federated.classes, federated.classes), dtype=np.int64)
    np.add.at(confusion, (labels, said), 1)
    some = np.random.default_rng(0).permutation(len(labels))[:SHOWN]
    mistaken = np.flatnonzero(said != labels)
    mistaken = mistaken[np.argsort(-sure[mistaken])][:SHOWN]

    def sample(row: Any) -> dict[str, Any]:
        return {
            "picture": picture_to_text(pictures[row]),
            "label": int(labels[row]),
            "said": int(said[row]),
            "sure": float(sure[row]),
        }

    return {
        "confusion": confusion.tolist(),
        "some": [sample(row) for row in some],
        "mistaken": [sample(row) for row in mistaken],
    }
