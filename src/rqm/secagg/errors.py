"""How a run of the protocol can fail."""

from collections import Counter
from collections.abc import Mapping


class ProtocolError(Exception):
    """A message breaks the protocol, or asks for something that would reveal more than the sum."""


class Aborted(ProtocolError):  # noqa: N818 (an end, not a mistake)
    """Too few clients are left for the sum: the round ends, and nothing is revealed."""


class Spoiled(Aborted):
    """Some clients have so dealt their secrets that the sum cannot be unmasked: begin again without these ``liars``.

    They are ``proved`` to have lied, or the likely ones of those who contradict each other.
    """

    def __init__(self, liars: Mapping[int, str], *, proved: bool) -> None:
        self.liars, self.proved = dict(liars), proved
        super().__init__("; ".join(self.liars.values()))


def likely(doubted: set[tuple[int, int]]) -> dict[int, str]:
    """Whom to leave out, of pairs who contradict each other: who does so most often, until no pair is left.

    Two who are honest never do, so one liar who accuses all, or deals badly to all, is left out alone. Of two of whom
    neither has more against him, both are.
    """
    found: dict[int, str] = {}
    while doubted:
        often = Counter(client for two in doubted for client in two)
        most = max(often.values())
        worst = {client for client, count in often.items() if count == most}
        found |= {u: f"client {u} and {most} neighbours contradict each other about its or their shares" for u in worst}
        doubted = {two for two in doubted if worst.isdisjoint(two)}
    return found
