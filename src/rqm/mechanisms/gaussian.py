"""The trusted server's baseline: vectors within an L2 clip are summed as they are, then Gaussian noise is added."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self, final

import numpy as np

from rqm._checks import real, whole


@final
@dataclass(frozen=True)
class Gaussian:
    """DP-FedAvg's mechanism (McMahan et al. 2018): noise of ``noise_multiplier`` times the L2 clip on the sum.

    The server sees every client's vector: its ε holds against outsiders, or against nobody if the server is not
    trusted. It is not a channel and has no law for one client.
    """

    kind: ClassVar[str] = "gaussian"
    bits: ClassVar[int] = 32

    noise_multiplier: float = 1.0  # z

    def __post_init__(self) -> None:
        """Validate every parameter."""
        z = real("noise_multiplier", self.noise_multiplier, "a positive finite number", 0, np.inf)
        object.__setattr__(self, "noise_multiplier", z)

    def decode(self, z_sum: Any, clients: int, *, check: bool = True) -> Any:
        """Return the mean of a sum that was noised already; ``check`` is for the other mechanisms' sake."""
        return z_sum / whole("clients", clients, 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters and the mechanism's name."""
        return {"mechanism": self.kind, "noise_multiplier": self.noise_multiplier}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """Build the mechanism that ``to_dict`` described."""
        return cls(**{key: value for key, value in fields.items() if key != "mechanism"})
