"""Averaging of clipped floats without noise: the baseline without privacy."""

from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, final

import numpy as np
import numpy.typing as npt

from rqm import kernels
from rqm._util.checks import FloatArray, inputs, real, whole
from rqm.mechanisms.base import Mechanism, option


@final
@dataclass(frozen=True)
class Noiseless(Mechanism):
    """Clips each input to [-clip, clip] and sends it as a float.

    It has no pmf: asking for one is a TypeError.

    >>> float(Noiseless(clip=1.0).encode(3.0))
    1.0
    """

    kind: ClassVar[str] = "noiseless"
    adds_noise: ClassVar[bool] = False
    bits: ClassVar[int] = 32

    clip: float = option(1.0, "c, what inputs are clipped to.", flag=False)

    def __post_init__(self) -> None:
        """Validate every parameter."""
        object.__setattr__(self, "clip", real("clip", self.clip, "a positive finite number", 0, np.inf))

    def encode(self, x: Any, rng: object = None) -> Any:
        """The clipped input.

        Args:
            x: Inputs, a NumPy array or a torch tensor.
            rng: Not used: there is no randomness.

        Returns:
            Floats, in the array library of `x`.
        """
        return self.clip_messages(_finite("x", x))

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
        total = _finite("z_sum", z_sum) if check else z_sum
        return total / whole("clients", clients, 1)

    def variance(self, x: npt.ArrayLike) -> FloatArray:
        """Zero for every input."""
        return np.zeros_like(inputs("x", x))

    def _no_pmf(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("Noiseless sends floats without noise: it has no pmf and no privacy")

    pmf = log_pmf = sampled_pmf = log_pmf_at = _no_pmf


def _finite(name: str, x: Any) -> Any:
    """The values in their array library, or an error if one is not finite."""
    backend = kernels.backend(x)
    return inputs(name, x) if backend is None else backend.finite(name, x)
