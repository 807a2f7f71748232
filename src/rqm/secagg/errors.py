"""How a round of secure aggregation can fail."""

from collections.abc import Mapping


class ProtocolError(Exception):
    """A message breaks the protocol, or asks for something that would reveal more than the sum."""


class Aborted(ProtocolError):  # noqa: N818 (an end, not a mistake)
    """Too few clients are left for the sum: the round ends, and nothing is revealed."""


class CorruptedRound(Aborted):
    """The shares of some clients do not unmask the sum: repeat the round without the blamed clients.

    Attributes:
        blamed: A reason for each blamed client.
        proved: Whether they are proved to have broken the protocol. Otherwise clients contradict
            each other, and these are the most likely ones.
    """

    def __init__(self, blamed: Mapping[int, str], *, proved: bool) -> None:
        self.blamed, self.proved = dict(blamed), proved
        super().__init__("; ".join(self.blamed.values()))


def require(count: int, minimum: int, subject: str, error: type[ProtocolError] = ProtocolError) -> None:
    """Raise if there are too few of something.

    Args:
        count: How many there are.
        minimum: How many there must be.
        subject: What was counted, in the plural.
        error: What to raise: `Aborted` where the round ends.
    """
    if count < minimum:
        raise error(f"{count} {subject}: must be at least {minimum}")
