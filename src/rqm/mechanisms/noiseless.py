"""Averaging of clipped floats without noise: the baseline without privacy."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from rqm import kernels
from rqm._util.checks import inputs, real
from rqm.mechanisms.base import Mechanism, option


@final
@dataclass(frozen=True)
class Noiseless(Mechanism):
    """Clips each input to [-clip, clip] and sends it as a float.

    >>> Noiseless(clip=1.0).clip_messages(np.array([3.0, -0.5])).tolist()
    [1.0, -0.5]
    """

    kind = "noiseless"
    adds_noise = False
    bits = 32

    clip: float = option(1.0, "c, what inputs are clipped to.", flag=False)

    def __post_init__(self) -> None:
        """Validate every parameter."""
        object.__setattr__(self, "clip", real("clip", self.clip, "a positive finite number", 0, np.inf))

    def clip_messages(self, rows: Any) -> Any:
        """The rows, with every coordinate clipped."""
        return rows.clip(-self.clip, self.clip)

    def decode(self, z_sum: Any, clients: int, *, check: bool = True) -> Any:
        """The mean of the clipped inputs.

        Args:
            z_sum: The sum.
            clients: Number of clients.
            check: Whether the sum must be finite.

        Returns:
            The mean, in the array library of the sum.
        """
        if check:
            backend = kernels.backend(z_sum)
            z_sum = inputs("z_sum", z_sum) if backend is None else backend.finite("z_sum", z_sum)
        return super().decode(z_sum, clients)
