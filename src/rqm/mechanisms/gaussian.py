"""Gaussian baselines: clients send clipped vectors as floats, and a trusted server or every client adds noise."""

from dataclasses import dataclass
from typing import Self, final

import numpy as np

from rqm._util.checks import real, shown
from rqm.mechanisms.base import Mechanism, option


@dataclass(frozen=True)
class GaussianBaseline(Mechanism):
    """Gaussian noise of `noise_multiplier` (z) times the L2 clip, on sums of floats."""

    needs_l2_clip = True
    bits = 32
    min_noise = 0.0

    noise_multiplier: float = option(1.0, "z, the noise in units of the L2 clip.")

    def __post_init__(self) -> None:
        """Validate z."""
        z = real("noise_multiplier", self.noise_multiplier, "a positive finite number", 0, np.inf)
        object.__setattr__(self, "noise_multiplier", z)

    @property
    def gaussian_multiplier(self) -> float:  # type: ignore[override]
        """z."""
        return self.noise_multiplier

    def with_noise(self, amount: float) -> Self:
        """The same mechanism with noise of this many L2 clips."""
        return self.with_parameters(noise_multiplier=amount)


@final
@dataclass(frozen=True)
class Gaussian(GaussianBaseline):
    """DP-FedAvg's mechanism (McMahan et al. 2018; Geyer et al. 2017): noise of `noise_multiplier` times the L2 clip.

    A trusted server, which sees every client's vector, adds the noise to the sum. So ε holds against outsiders only.
    If `local`, each client adds noise of that size to its own vector: ε then holds without a trusted server and
    without secure aggregation, and the noise of the sum is √n times as large.
    """

    kind = "gaussian"

    local: bool = option(False, "Whether every client adds the noise, and not the server once.")

    def __post_init__(self) -> None:
        """Validate every parameter."""
        GaussianBaseline.__post_init__(self)
        if not isinstance(self.local, bool):
            raise TypeError(f"local = {shown(self.local)}: must be true or false")

    @property
    def trusted_server(self) -> bool:  # type: ignore[override]
        """Unless every client adds its own noise."""
        return not self.local

    @property
    def is_local(self) -> bool:  # type: ignore[override]
        """If every client adds its own noise."""
        return self.local

    def sum_noise_std(self, clients: int) -> float:
        """Standard deviation of the noise in a sum, in units of the L2 clip."""
        return self.noise_multiplier * (clients**0.5 if self.local else 1.0)
