"""Noise-free clipped averaging: the float baseline, with no privacy and no law."""

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
    """Clips each input to [-clip, clip] and sends it as it is.

    It is not a channel: it sums floats, has no law, and asking for one is a TypeError.

    >>> float(Noiseless(clip=1.0).encode(3.0))
    1.0
    """

    kind: ClassVar[str] = "noiseless"
    private: ClassVar[bool] = False
    bits: ClassVar[int] = 32

    clip: float = option(1.0, "c, what inputs are clipped to.", flag=False)

    def __post_init__(self) -> None:
        """Validate every parameter."""
        object.__setattr__(self, "clip", real("clip", self.clip, "a positive finite number", 0, np.inf))

    def encode(self, x: Any, rng: object = None) -> Any:
        """Return the clipped input, in the array library of ``x``; ``rng`` is not used."""
        other = kernels.backend(x)
        values = inputs("x", x) if other is None else other.finite("x", x)
        return values.clip(-self.clip, self.clip)

    def clipped(self, rows: Any) -> Any:
        """Every coordinate within the clip."""
        return rows.clip(-self.clip, self.clip)

    def decode(self, z_sum: Any, clients: int, *, check: bool = True) -> Any:
        """Return the mean; without ``check`` whatever was summed is taken as it is."""
        other = kernels.backend(z_sum)
        if not check:
            return z_sum / whole("clients", clients, 1)
        values = inputs("z_sum", z_sum) if other is None else other.finite("z_sum", z_sum)
        return values / whole("clients", clients, 1)

    def variance(self, x: npt.ArrayLike) -> FloatArray:
        """Return zero for every input."""
        return np.zeros_like(inputs("x", x))

    def _no_law(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("Noiseless sends floats without noise: it has no law and no privacy")

    pmf = log_pmf = sampled_pmf = log_law = _no_law
