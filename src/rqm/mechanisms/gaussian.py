"""Gaussian baselines: vectors within an L2 clip are sent as they are; a trusted server adds noise, or every client."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self, final

import numpy as np

from rqm._checks import real, whole


@final
@dataclass(frozen=True)
class Gaussian:
    """DP-FedAvg's mechanism (McMahan et al. 2018; Geyer et al. 2017): noise of ``noise_multiplier`` times the L2 clip.

    The noise is on the sum, and the server sees every client's vector: its ε holds against outsiders, or against
    nobody if the server is not trusted. If ``local``, each client adds noise of that size to its own vector: no server
    is trusted, not even to sum, and the noise of the sum is √n times as large. Neither is a channel.
    """

    kind: ClassVar[str] = "gaussian"
    bits: ClassVar[int] = 32

    noise_multiplier: float = 1.0  # z
    local: bool = False

    def __post_init__(self) -> None:
        """Validate every parameter."""
        z = real("noise_multiplier", self.noise_multiplier, "a positive finite number", 0, np.inf)
        object.__setattr__(self, "noise_multiplier", z)
        if not isinstance(self.local, bool):
            raise TypeError(f"local = {self.local!r}: must be true or false")

    def on_sum(self, clients: int) -> float:
        """The noise of the sum over ``clients``, in units of the L2 clip."""
        return self.noise_multiplier * (clients**0.5 if self.local else 1.0)

    def decode(self, z_sum: Any, clients: int, *, check: bool = True) -> Any:
        """Return the mean of a sum that was noised already; ``check`` is for the other mechanisms' sake."""
        return z_sum / whole("clients", clients, 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters and the mechanism's name."""
        return {"mechanism": self.kind, "noise_multiplier": self.noise_multiplier, "local": self.local}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """Build the mechanism that ``to_dict`` described."""
        return cls(**{key: value for key, value in fields.items() if key != "mechanism"})
