"""What the server keeps of a federation: plans, ledgers, participations and models, in one folder for its users.

    $RQM_STATE/federations/NAME/PLAN/    shared-plan.json, ledger.jsonl, participants.json, blamed.json, model.npz

A federation is a group of users who are protected together. Runs with the same settings and model continue one
ledger. Runs with others have ledgers of their own, whose ε compose.
"""

import json
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import asdict
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any, final

import numpy as np
from flwr.app import ArrayRecord

from rqm._util.files import lock, read_json, state_folder, write_atomically, write_json
from rqm.bounds import Bound, compose
from rqm.flower.run_settings import Settings
from rqm.flower.shared_plan import SharedPlan
from rqm.ledger.budget_guard import charged_mean
from rqm.ledger.ledger import LEDGER, read

PLAN_FILE, MODEL_FILE = "shared-plan.json", "model.npz"
"""The files of a run's plan and of its model."""


def app_name(depth: int = 2) -> str:
    """The publisher and name of the Flower app whose code calls.

    Args:
        depth: How many calls up the app's code is.

    Returns:
        The name; empty if there is no `pyproject.toml` of a Flower app above that code.
    """
    path = Path(sys._getframe(depth).f_code.co_filename).resolve()
    for folder in path.parents:
        try:
            values = tomllib.loads((folder / "pyproject.toml").read_text())
            return f"{values['tool']['flwr']['app']['publisher']}.{values['project']['name']}"
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return ""


FEDERATIONS = "federations"
"""The folder of all federations, in that of the user's state."""


def simulated_state() -> Path:
    """The state of `rqm flower simulate`, apart from that of real federations."""
    return state_folder().absolute() / "simulated"


@final
class FederationFolder:
    """The folder of a federation, locked against other runs until it is closed.

    Attributes:
        name: The federation.
        path: Its folder; a temporary one in a dry run.
        run: The folder of the current plan, once `plan` was called.
    """

    def __init__(self, name: str, *, is_dry_run: bool = False) -> None:
        """Open the folder.

        Raises:
            ValueError: If there is no name, or one that cannot be a folder's.
            RuntimeError: If another run of the federation is in progress.
        """
        if not name:
            raise ValueError("rqm.federation: must be given: a name for the users who are protected")
        if not re.fullmatch(r"[\w.@-]{1,100}", name) or name.startswith("."):
            raise ValueError(f"rqm.federation = {name!r}: must have letters, digits, '.', '-', '_' and '@' only")
        self.name, self.is_dry_run = name, is_dry_run
        self.path = (
            Path(tempfile.mkdtemp(prefix="rqm-dry-run-"))
            if is_dry_run
            else state_folder().absolute() / FEDERATIONS / name
        )
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.run = self.path
        self._lock = (self.path / "lock").open("ab")
        if not lock(self._lock.fileno()):
            self._lock.close()
            raise RuntimeError(f"{self.path}: another run of this federation is in progress; wait for its end")

    def close(self) -> None:
        """Let other runs open the folder. That of a dry run is deleted."""
        self._lock.close()
        if self.is_dry_run:
            shutil.rmtree(self.path, ignore_errors=True)

    def plan(
        self, settings: Settings, trained: tuple[str, ...], size: int, report: Callable[[str], None]
    ) -> tuple[SharedPlan, Bound | None]:
        """The plan of a run, as it was saved or newly derived, and what other plans have spent.

        Args:
            settings: The settings of the run.
            trained: The names of the trained arrays.
            size: Number of trained values.
            report: Told what is derived or continued.

        Returns:
            The plan, and the bound of all rounds that were charged under other plans; None if there are none.

        Raises:
            BudgetSpentError: If the others leave nothing for a new plan.
            ValueError: If no mechanism reaches ε, or a file is damaged.
        """
        self.run = self.path / _key(settings, trained, size)
        earlier = self._spent_elsewhere()
        path = self.run / PLAN_FILE
        if path.exists():
            report(f"continues with the plan in {self.run}")
            try:
                return SharedPlan.from_json(json.dumps(read_json(path, "a plan")["plan"])), earlier
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}: is damaged, or of another version of rqm: restore it ({error})") from None
        report("derives the mechanism from epsilon")
        plan = settings.plan(trained, size, earlier)
        self.run.mkdir(mode=0o700, exist_ok=True)
        write_json(path, {"plan": json.loads(plan.to_json()), "simulated": True})
        return plan, earlier

    def _spent_elsewhere(self) -> Bound | None:
        """The bound of all rounds that were charged under other plans of this federation."""
        parts = []
        for path in sorted(self.path.glob(f"*/{LEDGER}")):
            if path.parent != self.run and path.stat().st_size:
                content = read(path)
                if content.charges:
                    parts.append((charged_mean(content.subject).account(content.charges).bound, 1))
        return compose(parts) if parts else None

    def mark_deployed(self) -> None:
        """Note that nodes take part that are not simulated: their ledger must never be reset."""
        path = self.run / PLAN_FILE
        write_json(path, {**read_json(path, "a plan"), "simulated": False})

    def save_model(self, arrays: ArrayRecord) -> Path:
        """Write the model, in one step, as NumPy's `savez` does."""
        file = BytesIO()
        np.savez(file, **{name: array.numpy() for name, array in arrays.items()})  # type: ignore[arg-type]
        path = self.run / MODEL_FILE
        write_atomically(path, file.getvalue())
        return path


def reset_simulated(name: str) -> Path:
    """Delete the state of a federation in which only simulated nodes took part.

    Args:
        name: The federation.

    Returns:
        The folder that was deleted.

    Raises:
        ValueError: If there is none, or nodes took part that were not simulated.
    """
    parents = [simulated_state() / FEDERATIONS, state_folder() / FEDERATIONS]
    paths = [folder for parent in parents for folder in parent.glob("*") if folder.name == name]
    if not paths:
        known = sorted({folder.name for parent in parents for folder in parent.glob("*")})
        raise ValueError(f"federation = {name}: there is no such federation; known are {', '.join(known) or 'none'}")
    path = paths[0]
    for ledger in path.glob(f"*/{LEDGER}"):
        plan = ledger.parent / PLAN_FILE
        if not plan.exists() or read_json(plan, "a plan").get("simulated") is not True:
            raise ValueError(
                f"{ledger.parent}: nodes took part that were not simulated: their ledger must be kept for as long as "
                "they are to be protected"
            )
    shutil.rmtree(path)
    return path


def _key(settings: Settings, trained: tuple[str, ...], size: int) -> str:
    """The name of a plan's folder: a hash of everything that it is derived from."""
    values: dict[str, Any] = asdict(settings)
    for name in ("stage_timeout", "dry_run", "federation"):
        del values[name]
    if settings.mechanism is not None:
        values["mechanism"] = settings.mechanism.to_dict()
    text = json.dumps([values, trained, size], sort_keys=True, default=str)
    return sha256(text.encode()).hexdigest()[:16]
