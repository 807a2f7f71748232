"""`PrivateMean`: the mean of users' vectors, with a guarantee for every user."""

from dataclasses import dataclass, field
from typing import ClassVar, final

from rqm.accounting.participation import ThreatModel
from rqm.core.base import BaseMean


@final
@dataclass(frozen=True, kw_only=True)
class PrivateMean(BaseMean):
    """The mean of the users' vectors, round after round, and what it reveals about one user.

    Every vector of `dim` values is scaled to `l2_clip` (C) at most, rotated by a public random
    rotation, encoded coordinate by coordinate, and sent as integers. Only the sum over a round's
    clients is revealed, modulo `modulus`. The function `rqm.private_mean` finds a mechanism for a
    given ε.

    Attributes:
        dim: Values of a vector.
        mechanism: How a coordinate is encoded.
        participation: Who takes part and when.
        threat_model: What is assumed about the adversary.
        l2_clip: C; None: only coordinates are clipped.
        rotate: Whether vectors are rotated, which pads them to a power of two.
        noise: Correlated noise that each client adds to its integers, in steps between two
            levels, and cancels one round later by a second message (docs/cancel.md). None: noise
            is independent.
        coordinates: How many of the rotated coordinates are sent, a public choice for each round
            (docs/few-coordinates.md); None: all.
        zero_distance: The largest L2 distance of a vector from the vector that a zeroed-out user
            sends, over C. It is above 1 only if that user's vector is not zero
            (docs/proofs/participation.md#lemma-13).
        delta: The δ of `guarantee` if none is given; None: 10⁻⁵, or one over the population if
            that is less.
        seed: Seed of the public rotation and of the choice of coordinates.

    >>> import numpy as np
    >>> from rqm import Participation, StochasticRounding, SecureRandom
    >>> who = Participation(clients=1000)
    >>> mean = PrivateMean(dim=50, mechanism=StochasticRounding(clip=0.5, margin=3.0, levels=2), participation=who)
    >>> message = mean.encode(np.ones(50), SecureRandom())  # a client; 64 integers: rotated vectors are padded
    >>> estimate = mean.decode(1000 * message, 1000)  # the server, from the sum of all messages
    >>> estimate.shape, round(mean.guarantee(1e-6).epsilon, 2)
    ((50,), 0.12)
    """

    unit: ClassVar[str] = "user"
    sums_records: ClassVar[bool] = False

    threat_model: ThreatModel = field(default_factory=ThreatModel)

    @property
    def has_second_message(self) -> bool:
        """Whether a client cancels its noise by a message of its own in the next round."""
        return self.noise is not None
