"""A trusted server's Gaussian that remembers: noise of a round is partly taken back in later ones."""

from dataclasses import dataclass
from typing import ClassVar, cast, final, get_args

from rqm._util.checks import real, shown, whole
from rqm._util.schedules import Schedule
from rqm.mechanisms.base import Correlation, option
from rqm.mechanisms.gaussian import ByGaussian


@final
@dataclass(frozen=True)
class BandedGaussian(ByGaussian):
    """Banded matrix factorization (Choquette-Choo et al. 2023): a trusted server's noise, partly taken back later.

    The rounds' noise is C⁻¹z, where z is white with a deviation of ``noise_multiplier`` times the L2 clip and C has so
    many bands, optimised for the noise of the models of a server with this ``momentum`` and ``schedule``, and columns
    of norm 1. So for users whose participations lie at least ``bands`` rounds apart, or who take part once, all rounds
    together tell what they would tell with independent noise of that multiplier, and the models are much less noisy.
    """

    kind: ClassVar[str] = "banded-gaussian"
    trusted_server: ClassVar[bool] = True

    bands: int = option(8, "Rounds that noise is correlated over; 1: independent.")
    momentum: float = option(0.9, "The server's momentum, which the bands are optimised for.")
    schedule: str = option("linear", "The schedule of the server's rate, which the bands are optimised for.")

    def __post_init__(self) -> None:
        """Validate every parameter."""
        ByGaussian.__post_init__(self)
        object.__setattr__(self, "bands", whole("bands", self.bands, 1))
        momentum = real("momentum", self.momentum, "at least 0 and below 1", 0, 1, closed="[")
        object.__setattr__(self, "momentum", momentum)
        if self.schedule not in get_args(Schedule):
            raise ValueError(f"schedule = {shown(self.schedule)}: must be one of {', '.join(get_args(Schedule))}")

    @property
    def correlation(self) -> Correlation:
        """Over so many rounds."""
        return Correlation(self.bands, self.momentum, cast(Schedule, self.schedule))

    def on_sum(self, clients: int) -> float:
        """The deviation of z, in units of the L2 clip."""
        return self.noise_multiplier
