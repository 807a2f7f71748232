"""`rqm.simulate`: a run whose rounds the caller carries out one by one."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, final

from torch import nn

from rqm.config.plan import Plan
from rqm.data.federated_data import FederatedData
from rqm.ledger.ledger import LEDGER
from rqm.simulation.loop import Outcome, RunState
from rqm.simulation.run_folder import open_guard

if TYPE_CHECKING:
    from rqm.accounting.guarantee import Guarantee


@final
class Simulation(Iterator[Outcome]):
    """A run as an iterator: each step carries out a round and returns its `Outcome`.

    See `simulate` for its arguments.
    """

    def __init__(
        self, plan: Plan, model: nn.Module | None = None, data: FederatedData | None = None, folder: Path | None = None
    ) -> None:
        if data is None:
            from rqm.data import load  # noqa: PLC0415 (some sets need more than torch)

            data = load(plan.data)
        self._state = RunState(plan, data, model)
        if folder is None:
            self._temporary = TemporaryDirectory(prefix="rqm-")
            folder = Path(self._temporary.name)
        self.folder, self.plan, self.mean = folder, self._state.plan, self._state.mean
        if (folder / LEDGER).exists():
            raise ValueError(f"folder = {folder}: holds a ledger already; a simulation begins a new one")
        self.guard = open_guard(self._state, folder, {})

    def __next__(self) -> Outcome:
        done = self._state.rounds_done
        if done >= self.plan.participation.rounds or not self.guard.allows(done):
            self.guard.close()
            raise StopIteration
        return self._state.step()

    @property
    def model(self) -> nn.Module:
        """The model as it is now."""
        return self._state.model

    @property
    def ledger(self) -> Path | None:
        """The file of the charges; None if there is no noise, and so nothing to charge."""
        return None if self.guard.ledger is None else self.guard.ledger.path

    @property
    def guarantee(self) -> "Guarantee":
        """What the rounds so far guarantee to every user."""
        return self.mean.guarantee(charges=self.guard.charges, workload=self.plan.workload)


def simulate(
    plan: Plan,
    model: nn.Module | None = None,
    data: FederatedData | None = None,
    *,
    folder: Path | str | None = None,
) -> Simulation:
    """Train as a plan says. Randomness is seeded: **not private**.

    Args:
        plan: The plan.
        model: A model; None: the plan's.
        data: The users' data; None: the plan's.
        folder: Where the ledger is kept; None: a temporary folder, which lasts as long as the simulation.

    Returns:
        An iterator over the outcomes of the rounds.

    Raises:
        ValueError: If the folder holds a ledger, or the plan's budget does not pay for one round.
    """
    return Simulation(plan, model, data, None if folder is None else Path(folder))
