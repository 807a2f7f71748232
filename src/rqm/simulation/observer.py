"""What an audit plants in a run, and what it sees of it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Observer:
    """Plants nothing and sees nothing. Audits override what they need.

    Attributes:
        plants: Whether `sends` is called. Clients are then computed one after the other.
    """

    plants = False

    def sends(self, client: int, round_index: int) -> "torch.Tensor | None":
        """The vector that an audit plants in place of a client's.

        Args:
            client: The client.
            round_index: The round, from 0.

        Returns:
            The vector; None if the client sends its own.
        """
        return None

    def learns(self, round_index: int, mean: "torch.Tensor") -> None:
        """Called with the decoded mean of a round, which is all that the server learns.

        Args:
            round_index: The round, from 0. Discarded rounds have no mean.
            mean: The mean.
        """
