"""A trusted server's Gaussian noise that is correlated over rounds."""

from dataclasses import dataclass
from typing import cast, final, get_args

from rqm._util.checks import real, shown, whole
from rqm.mechanisms.base import Correlation, Schedule, option
from rqm.mechanisms.gaussian import GaussianBaseline


@final
@dataclass(frozen=True)
class BandedGaussian(GaussianBaseline):
    """Banded matrix factorization (Choquette-Choo et al. 2023): a trusted server subtracts part of its noise later.

    The noise of all rounds is C⁻¹z. Here z is independent Gaussian noise of `noise_multiplier` times the L2 clip, and
    C has `bands` bands and columns of norm 1. It minimizes the noise of the models of a server with this `momentum`
    and `schedule`. All rounds together reveal as much as with independent noise of that multiplier if each user takes
    part once, or participations of a user are at least `bands` rounds apart. The models have much less noise.
    """

    kind = "banded-gaussian"
    trusted_server = True

    bands: int = option(8, "Rounds over which noise is correlated; 1: independent.")
    momentum: float = option(0.9, "The server's momentum, for which the bands are optimized.")
    schedule: str = option("linear", "The schedule of the server's rate, for which the bands are optimized.")

    def __post_init__(self) -> None:
        """Validate every parameter."""
        GaussianBaseline.__post_init__(self)
        object.__setattr__(self, "bands", whole("bands", self.bands, 1))
        momentum = real("momentum", self.momentum, "at least 0 and below 1", 0, 1, closed="[")
        object.__setattr__(self, "momentum", momentum)
        if self.schedule not in get_args(Schedule):
            raise ValueError(f"schedule = {shown(self.schedule)}: must be one of {', '.join(get_args(Schedule))}")

    @property
    def correlation(self) -> Correlation:  # type: ignore[override]
        """The bands, and what they are optimized for."""
        return Correlation(self.bands, self.momentum, cast(Schedule, self.schedule))

    def sum_noise_std(self, clients: int) -> float:
        """Standard deviation of z, in units of the L2 clip."""
        return self.noise_multiplier
