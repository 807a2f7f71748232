"""Gaussian baselines: vectors within an L2 clip are sent as they are; a trusted server adds noise, or every client."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self, final

import numpy as np

from rqm._util.checks import real, shown, whole
from rqm.mechanisms.base import Mechanism, option


@dataclass(frozen=True)
class ByGaussian(Mechanism):
    """What Gaussian baselines share: noise of ``noise_multiplier`` (z) times the L2 clip, on sums of floats."""

    needs_l2_clip: ClassVar[bool] = True
    bits: ClassVar[int] = 32

    noise_multiplier: float = option(1.0, "z, the noise in units of the L2 clip.")

    def __post_init__(self) -> None:
        """Validate z."""
        z = real("noise_multiplier", self.noise_multiplier, "a positive finite number", 0, np.inf)
        object.__setattr__(self, "noise_multiplier", z)

    @property
    def gaussian_multiplier(self) -> float:
        """z."""
        return self.noise_multiplier

    @property
    def least_noise(self) -> float:
        """None."""
        return 0.0

    def with_noise(self, amount: float) -> Self:
        """So many L2 clips."""
        return self.changed(noise_multiplier=amount)

    def decode(self, z_sum: Any, clients: int, *, check: bool = True) -> Any:
        """Return the mean of a sum that was noised already: there is nothing to check."""
        return z_sum / whole("clients", clients, 1)


@final
@dataclass(frozen=True)
class Gaussian(ByGaussian):
    """DP-FedAvg's mechanism (McMahan et al. 2018; Geyer et al. 2017): noise of ``noise_multiplier`` times the L2 clip.

    The noise is on the sum, and the server sees every client's vector: its ε holds against outsiders, or against
    nobody if the server is not trusted. If ``local``, each client adds noise of that size to its own vector: no server
    is trusted, not even to sum, and the noise of the sum is √n times as large. Neither is a channel.
    """

    kind: ClassVar[str] = "gaussian"

    local: bool = option(False, "Whether every client adds it, or the server, once.")

    def __post_init__(self) -> None:
        """Validate every parameter."""
        ByGaussian.__post_init__(self)
        if not isinstance(self.local, bool):
            raise TypeError(f"local = {shown(self.local)}: must be true or false")

    @property
    def trusted_server(self) -> bool:
        """Unless every client adds its own noise."""
        return not self.local

    @property
    def hides_alone(self) -> bool:
        """If every client adds enough noise for itself."""
        return self.local

    def on_sum(self, clients: int) -> float:
        """The noise of the sum over ``clients``, in units of the L2 clip."""
        return self.noise_multiplier * (clients**0.5 if self.local else 1.0)
