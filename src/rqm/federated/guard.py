"""The guard of a run's privacy: charges the ledger before a sum is used, and knows what has been spent."""

from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

from rqm.federated.account import setting_of
from rqm.federated.plan import Plan
from rqm.mechanisms.noiseless import Noiseless
from rqm.privacy.guarantee import one_release
from rqm.privacy.ledger import LEDGER, Ledger, LedgerError, participations


@final
class Guard:
    """The ledger of a run, and ε as it grows, for a user against the server.

    A round that is done again after an interruption is charged again: its clients have then been part of two releases.
    """

    def __init__(
        self, plan: Plan, folder: Path, *, delta: float, budget: float | None = None, expect_head: str | None = None,
        honest: int | float | None = None, dim: int | None = None,
    ) -> None:  # fmt: skip
        setting, dim, bound = setting_of(plan, delta, honest=honest, dim=dim)
        self.plan, self.budget, self.dim = plan, budget, dim
        self.delta = setting.floor()[1]
        assert not isinstance(plan.mechanism, Noiseless)  # has no setting
        self.release = one_release(plan.mechanism, setting, dim=dim, l2_clip=bound)
        about: dict[str, Any] = {"plan": plan.to_dict(), "delta": delta, "dim": dim, "honest": honest}
        self.ledger = Ledger(folder / LEDGER, about, expect_head)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ledger.close()

    def epsilon(self, more: int | None = None) -> float:
        """ε of all that was charged, and of round ``more`` besides."""
        spent = self.ledger.spent
        if more is not None:
            spent[more] += 1
        count = participations(spent, self.plan.participations)
        return self.release.times(count).epsilon(self.delta)[0] if count else 0.0

    def allows(self, turn: int) -> bool:
        """Whether the budget pays for another release of this round."""
        return self.budget is None or self.epsilon(turn) <= self.budget

    def check(self, head: str | None, done: int, coordinates: int) -> None:
        """Refuse another model than was accounted for, and a ledger older than the checkpoint a run goes on from."""
        if coordinates != self.dim:
            raise ValueError(f"the model sends {coordinates} coordinates: {self.dim} were accounted for")
        if done and (head is None or head not in self.ledger):
            raise LedgerError(
                f"{self.ledger.path}: lacks charges that came before the checkpoint; it is an older copy, or "
                "another run's"
            )
