"""A trusted server's Gaussian that remembers: noise of a round is partly taken back in later ones."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast, final, get_args

import numpy as np

from rqm._util.checks import real, shown, whole
from rqm._util.schedules import Schedule
from rqm.mechanisms.base import Correlation, Mechanism, option


@final
@dataclass(frozen=True)
class BandedGaussian(Mechanism):
    """Banded matrix factorization (Choquette-Choo et al. 2023): a trusted server's noise, partly taken back later.

    The rounds' noise is C⁻¹z, where z is white with a deviation of ``noise_multiplier`` times the L2 clip and C has so
    many bands, optimised for the noise of the models of a server with this ``momentum`` and ``schedule``, and columns
    of norm 1. So for users whose participations lie at least ``bands`` rounds apart, or who take part once, all rounds
    together tell what they would tell with independent noise of that multiplier, and the models are much less noisy.
    """

    kind: ClassVar[str] = "banded-gaussian"
    needs_l2_clip: ClassVar[bool] = True
    bits: ClassVar[int] = 32
    trusted_server: ClassVar[bool] = True

    noise_multiplier: float = option(1.0, "z, the noise in units of the L2 clip.")
    bands: int = option(8, "Rounds that noise is correlated over; 1: independent.")
    momentum: float = option(0.9, "The server's momentum, which the bands are optimised for.")
    schedule: str = option("linear", "The schedule of the server's rate, which the bands are optimised for.")

    def __post_init__(self) -> None:
        """Validate every parameter."""
        z = real("noise_multiplier", self.noise_multiplier, "a positive finite number", 0, np.inf)
        object.__setattr__(self, "noise_multiplier", z)
        object.__setattr__(self, "bands", whole("bands", self.bands, 1))
        momentum = real("momentum", self.momentum, "at least 0 and below 1", 0, 1, closed="[")
        object.__setattr__(self, "momentum", momentum)
        if self.schedule not in get_args(Schedule):
            raise ValueError(f"schedule = {shown(self.schedule)}: must be one of {', '.join(get_args(Schedule))}")

    @property
    def correlation(self) -> Correlation:
        """Over so many rounds."""
        return Correlation(self.bands, self.momentum, cast(Schedule, self.schedule))

    @property
    def gaussian_multiplier(self) -> float:
        """z: what all rounds tell of a user is what they would tell with independent noise of that size."""
        return self.noise_multiplier

    @property
    def least_noise(self) -> float:
        """None."""
        return 0.0

    def with_noise(self, amount: float) -> Self:
        """So many L2 clips."""
        return self.changed(noise_multiplier=amount)

    def on_sum(self, clients: int) -> float:
        """The deviation of z, in units of the L2 clip."""
        return self.noise_multiplier

    def decode(self, z_sum: Any, clients: int, *, check: bool = True) -> Any:
        """Return the mean of a sum that was noised already: there is nothing to check."""
        return z_sum / whole("clients", clients, 1)
