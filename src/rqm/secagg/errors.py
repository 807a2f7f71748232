"""How a run of the protocol can fail."""

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
