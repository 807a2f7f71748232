"""How a run of the protocol can fail."""


class ProtocolError(Exception):
    """A message breaks the protocol, or asks for something that would reveal more than the sum."""


class Aborted(ProtocolError):  # noqa: N818 (an end, not a mistake)
    """Too few clients are left for the sum: the round ends, and nothing is revealed."""
