"""``simulate``: a run without a command line."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, final

from torch import nn

from rqm.data.federated_data import FederatedData
from rqm.ledger.ledger import LEDGER
from rqm.plan.guard import Guard
from rqm.plan.plan import Plan
from rqm.training.trainer import Record, Trainer

if TYPE_CHECKING:
    from rqm.accounting.guarantee import Guarantee


@final
class Simulation(Iterator[Record]):
    """A run without a command line: iterate for a record a round. The ``model`` is being trained meanwhile.

    Every round is charged to a ``ledger``, in the folder that was given, or in one that lasts as long as this object;
    ``rqm account`` reads it.
    """

    def __init__(
        self, plan: Plan, model: nn.Module | None = None, data: FederatedData | None = None, folder: Path | None = None
    ) -> None:
        if data is None:
            from rqm.data import load  # noqa: PLC0415 (some sets need more than torch)

            data = load(plan.data)
        self._trainer = Trainer(plan, data, model)
        if folder is None:
            self._temporary = TemporaryDirectory(prefix="rqm-")
            folder = Path(self._temporary.name)
        self.folder, self.plan, self.mean = folder, self._trainer.plan, self._trainer.mean
        if (folder / LEDGER).exists():
            raise ValueError(f"folder = {folder}: holds a ledger already; a simulation begins a new one")
        counted = Guard(self.mean, budget=plan.budget_epsilon)
        if not counted.allows(0):
            raise ValueError(
                f"budget_epsilon = {plan.budget_epsilon}: must be at least {counted.epsilon(0):.4g}, which one round "
                "costs"
            )
        folder.mkdir(parents=True, exist_ok=True)
        users = len(self._trainer.data.train)
        self.guard = Guard(self.mean, folder, plan=self.plan, budget=plan.budget_epsilon, users=users)
        self._trainer.charge_to(self.guard)

    def __next__(self) -> Record:
        done = self._trainer.done
        if done >= self.plan.participation.rounds or not self.guard.allows(done):
            self.guard.close()
            raise StopIteration
        return self._trainer.step()

    @property
    def model(self) -> nn.Module:
        """The model as it is now."""
        return self._trainer.model

    @property
    def ledger(self) -> Path | None:
        """Where the charges are written; None if there is no noise, and so nothing to charge."""
        return None if self.guard.ledger is None else self.guard.ledger.path

    @property
    def guarantee(self) -> "Guarantee":
        """What the rounds that were carried out guarantee to every user."""
        return self.mean.guarantee(charges=self.guard.charges, workload=self.plan.workload)


def simulate(
    plan: Plan,
    model: nn.Module | None = None,
    data: FederatedData | None = None,
    *,
    folder: Path | str | None = None,
) -> Simulation:
    """Train as the plan says, with the plan's model and data or with the given; yields a record a round.

    The ledger is kept in ``folder``. Randomness is seeded: not private.
    """
    return Simulation(plan, model, data, None if folder is None else Path(folder))
