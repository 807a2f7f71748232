"""What a report shows of a run: its guarantee, the pmf of its mechanism, and its model on the test set.

It is saved in the run's folder, and computed again after the run has continued.
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
from rqm.config.account import account, account_ledger
from rqm.config.coordinate_divergences import leak
from rqm.config.plan import PLAN, Plan
from rqm.config.run_files import CHECKPOINT, FINDINGS
from rqm.ledger.ledger import LEDGER
from rqm.ledger.signing import LedgerError
from rqm.mechanisms.base import Mechanism


def findings(folder: Path, data: Path | None = None) -> dict[str, Any]:
    """What a report shows of a run.

    Args:
        folder: The folder of the run.
        data: The folder of the data; None: the usual one.

    Returns:
        Tables by the names `state`, `privacy`, `coordinate`, `law` and `model`. A table that cannot be computed says
        `why`.
    """
    files = {name: folder / name for name in (PLAN, LEDGER, CHECKPOINT)}
    hashes = {name: sha256(path.read_bytes()).hexdigest() for name, path in files.items() if path.exists()}
    state = {"version": __version__, **hashes}
    try:
        saved = read_json(folder / FINDINGS, "findings")
    except (OSError, ValueError):
        saved = {}
    if saved.get("state") == state and "why" not in saved.get("model", "why"):
        return dict(saved)
    plan = Plan.of_run(folder)
    computed = {
        "state": state,
        "privacy": _privacy(plan, folder),
        "coordinate": leak(plan, [2.0]),
        "law": _pmfs(plan.mechanism),
        "model": _model(plan, folder, data),
    }
    with suppress(OSError):  # the folder may be read-only
        write_json(folder / FINDINGS, computed)
    return computed


def _privacy(plan: Plan, folder: Path) -> dict[str, Any]:
    """The guarantee of what was charged; of what is planned if there is no ledger."""
    if not plan.mechanism.adds_noise:
        return {"why": "The gradients are summed without noise: there is no differential privacy at all."}
    charged: dict[str, Any] = {}
    try:
        if not (folder / LEDGER).exists():
            return {"guarantee": described(account(plan))}
        guarantee, charged["charged"] = account_ledger(folder)
    except LedgerError:
        raise
    except (ValueError, TypeError) as error:
        return {"why": f"No ε can be stated for this run: {error}."}
    if guarantee is None:
        return {**charged, "why": "Nothing has been charged yet."}
    return {**charged, "guarantee": described(guarantee)}


def described(guarantee: Guarantee) -> dict[str, Any]:
    """A guarantee as plain values, with its trade-off curve."""
    rates = np.concatenate([np.geomspace(1e-6, 0.1, 41), np.linspace(0.12, 1, 23)])
    return {**guarantee.to_dict(), "trade_off": [rates.tolist(), guarantee.trade_off(rates).tolist()]}


def _pmfs(mechanism: Mechanism) -> dict[str, Any] | None:
    """The pmf of a mechanism for a few inputs, in units of the clip; None if there are too many outcomes to draw."""
    if not mechanism.has_integer_messages or mechanism.discrete.levels > 256:
        return None
    discrete = mechanism.discrete
    return {
        "outcomes": (discrete.grid.values / discrete.clip).tolist(),
        "laws": {f"x = {x:g} c": discrete.pmf(x * discrete.clip).tolist() for x in (-1.0, 0.0, 0.6)},
        "variance_max": discrete.variance_max / discrete.clip**2,
    }


def _model(plan: Plan, folder: Path, data: Path | None) -> dict[str, Any]:
    """The confusion matrix of the saved model (a row for each class), and some pictures of the test set."""
    if not (folder / CHECKPOINT).exists():
        return {"why": "there is no checkpoint of the model"}
    try:
        from rqm.data import load  # noqa: PLC0415 (these need torch)
        from rqm.simulation import checkpoint  # noqa: PLC0415
        from rqm.simulation.evaluation import predict  # noqa: PLC0415
        from rqm.simulation.loop import RunState  # noqa: PLC0415

        federation = load(plan.data, data)
        state = RunState(plan, federation)
        checkpoint.restore(state, folder)
    except (FileNotFoundError, ValueError, ModuleNotFoundError) as error:
        return {"why": str(error)}
    predicted, confidence = predict(state.model, state.data.test_inputs)
    labels, pictures = federation.test_labels.numpy(), federation.test_inputs.numpy()
    confusion = np.zeros((federation.classes, federation.classes), dtype=np.int64)
    np.add.at(confusion, (labels, predicted), 1)
    errors = np.flatnonzero(predicted != labels)

    def examples(rows: Any) -> list[dict[str, Any]]:
        return [
            {
                "picture": picture_to_text(pictures[row]),
                "label": int(labels[row]),
                "said": int(predicted[row]),
                "sure": float(confidence[row]),
            }
            for row in rows[:20]
        ]

    return {
        "confusion": confusion.tolist(),
        "some": examples(np.random.default_rng(0).permutation(len(labels))),
        "mistaken": examples(errors[np.argsort(-confidence[errors])]),
    }
