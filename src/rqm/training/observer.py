"""What an audit puts into a run, and what it sees of it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Observer:
    """Sees nothing and plants nothing; audits override what they need."""

    plants = False
    """Whether ``sends`` is to be asked: clients are then simulated one after the other."""

    def sends(self, client: int, turn: int) -> "torch.Tensor | None":
        """What this client sends in this round instead of its gradient; None for its own."""
        return None

    def learns(self, turn: int, mean: "torch.Tensor") -> None:
        """The server has decoded the mean of a round: all that it learns."""
