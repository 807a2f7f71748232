"""Correlated noise of two parts: what a client adds to its integers and cancels one round later.

Both parts are discrete Gaussian noise as a table of integers (`integer_noise.py`).
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, hypot, inf, sqrt
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

import numpy as np

from rqm._util.checks import real, whole
from rqm.bounds import Bound, Unit
from rqm.correlated.integer_noise import IntegerNoise
from rqm.correlated.scheme import Exposure, NoiseScheme, NoiseState
from rqm.correlated.server_noise import Seeds, TransientNoise
from rqm.mechanisms.base import Mechanism
from rqm.randomness import expanded

if TYPE_CHECKING:
    from rqm.correlated.factorization import Workload
    from rqm.correlated.iterates import IterateNoise

MIN_STD, MAX_STD = 0.5, 2.0**11
"""Standard deviations of integer noise, in steps, whose table has fewer than 2¹⁶ outcomes."""
ROUNDING_STD = 0.5
"""The standard deviation of rounding half-way between two levels, in steps."""


@lru_cache(maxsize=64)
def discrete_gaussian(std: float) -> IntegerNoise:
    """Discrete Gaussian noise.

    Args:
        std: Standard deviation, in steps.

    Returns:
        The noise; the same object for the same standard deviation.
    """
    return IntegerNoise.from_weights(np.exp(-(np.arange(ceil(9 * std) + 1) ** 2) / (2 * std**2)))


@final
@dataclass(frozen=True)
class CorrelatedNoise(NoiseScheme):
    """Transient noise F, and residual noise E that is added `gain` times.

    All of it but one E is canceled one round later.

    For integers the unit is a step between two levels; where a trusted server adds the noise, it
    is the L2 clip.

    Attributes:
        transient_std: Standard deviation of F.
        residual_std: Standard deviation of E; 0: there is none.
        gain: How many times E is added at first.

    >>> CorrelatedNoise(2.0).transient.largest  # no draw is above 14 steps
    14
    >>> round(CorrelatedNoise(30.0, 1.5, 50).added_variance ** 0.5, 2)  # much as if E were added alone
    80.78
    """

    kind: ClassVar[str] = "two-part"
    max_std: ClassVar[float] = MAX_STD

    transient_std: float
    residual_std: float = 0.0
    gain: int = 1

    def __post_init__(self) -> None:
        """Validate every value."""
        for name in ("transient_std", "residual_std"):
            allowed, closed = ("at least 0", "[") if name == "residual_std" else ("a positive finite number", "")
            object.__setattr__(self, name, real(f"noise.{name}", getattr(self, name), allowed, 0, inf, closed=closed))
        object.__setattr__(self, "gain", whole("noise.gain", self.gain, 2 if self.residual_std else 1, 1024))
        if not self.residual_std and self.gain != 1:
            raise ValueError(f"noise.gain = {self.gain}: must be 1 without residual noise (noise.residual_std)")

    def check(self, mechanism: Mechanism, unit: Unit) -> None:
        """See `NoiseScheme`."""
        if not mechanism.has_integer_messages:
            if mechanism.gaussian_multiplier is None or not mechanism.trusted_server or mechanism.correlation:
                raise ValueError(
                    f"noise = {self}: must come with two levels, or a trusted server's Gaussian; not with "
                    f"{mechanism.kind}"
                )
        else:
            _ = self.transient, self.residual
        if unit == "user" and mechanism.has_integer_messages:
            if mechanism.discrete.levels != 2 or not mechanism.discrete.is_affine:
                raise ValueError(
                    f"noise = {self}: must come with two levels outside the clip, those of "
                    f"StochasticRounding(levels=2); not with {mechanism.kind}"
                )
        elif unit == "record" and self.residual_std:
            raise ValueError("noise.residual_std: must be 0 for records: a silo cancels all of its transient noise")
        elif unit == "record" and mechanism.has_integer_messages and mechanism.discrete.additive is None:
            raise ValueError(
                f"mechanism = {mechanism.kind!r}: must be integer noise of the silo's own (discrete-gaussian) with "
                "correlated noise"
            )

    # -- the distribution ---------------------------------------------------------------------

    @property
    def transient(self) -> IntegerNoise:
        """F."""
        return self._table("transient_std")

    @property
    def residual(self) -> IntegerNoise | None:
        """E; None: there is none."""
        return self._table("residual_std") if self.residual_std else None

    def _table(self, name: str) -> IntegerNoise:
        allowed = f"from {MIN_STD:g} to {MAX_STD:g} steps"
        return discrete_gaussian(real(f"noise.{name}", getattr(self, name), allowed, MIN_STD, MAX_STD, closed="[]"))

    @property
    def residual_variance(self) -> float:
        """The variance of E."""
        return self.residual_std**2

    @property
    def added_std(self) -> float:
        """See `NoiseScheme`."""
        return hypot(self.transient_std, self.gain * self.residual_std)

    @property
    def added_variance(self) -> float:
        """See `NoiseScheme`."""
        return self._variance(self.gain)

    @property
    def canceled_variance(self) -> float:
        """See `NoiseScheme`."""
        return self._variance(self.gain - 1)

    def _variance(self, gain: int) -> float:
        return self.transient.variance + (0.0 if self.residual is None else gain**2 * self.residual.variance)

    def iterate_std(self, workload: "Workload", independent_std: float) -> float:
        """See `NoiseScheme`."""
        from rqm.correlated.iterates import iterate_noise  # noqa: PLC0415 (takes the compiler)

        return iterate_noise(workload).rms(independent_std, self.transient_std, self.residual_std, self.gain)

    # -- one participation ----------------------------------------------------------------------

    def begin(self, secret: bytes, length: int) -> NoiseState:
        """See `NoiseScheme`."""
        words = expanded(secret, whole("length", length, 1) * (1 if self.residual is None else 2))
        residual = self.residual and self.residual.from_words(words[length:])
        return self._state(self.transient.from_words(words[:length]), residual)

    def sample(self, length: int, source: object) -> NoiseState:
        """See `NoiseScheme`."""
        transient = self.transient.sample(length, source)
        return self._state(transient, self.residual and self.residual.sample(length, source))

    def sample_sum(self, clients: int, template: Any, source: object) -> NoiseState:
        """See `NoiseScheme`."""
        transient = self.transient.sample_sum(clients, template, source)
        return self._state(transient, self.residual and self.residual.sample_sum(clients, template, source))

    def _state(self, transient: Any, residual: Any | None) -> NoiseState:
        """The noise that is added and canceled, from F and E."""
        if residual is None:
            return NoiseState(transient, transient)
        canceled = transient + (self.gain - 1) * residual
        return NoiseState(canceled + residual, canceled)

    def server_noise(self, std: float, seeds: Seeds) -> TransientNoise:
        """See `NoiseScheme`."""
        return TransientNoise(self.transient_std / std, self.residual_std / std, self.gain, seeds)

    # -- what it guarantees ---------------------------------------------------------------------

    def estimated_mu(self, separation: int, independent_std: float) -> float:
        """See `NoiseScheme`, and docs/proofs/correlated.md#lemma-12."""
        from rqm.correlated.handover import gaussian_squared_mu  # noqa: PLC0415 (takes the compiler)

        variances = self.residual_variance, self.transient_std**2
        return sqrt(gaussian_squared_mu(separation, *variances, self.gain, independent_std**2))

    def bound(self, mechanism: Mechanism, exposure: Exposure) -> Bound:
        """See `NoiseScheme`, and docs/proofs/correlated.md#theorem-8 for users, #theorem-15 for records.

        >>> from rqm import StochasticRounding
        >>> mechanism = StochasticRounding(clip=4 / 1024, levels=2, margin=33.0)
        >>> exposure = Exposure("user", honest=100, separation=8, dim=2**20, sensitivity=2.0, failure=1e-9)
        >>> round(CorrelatedNoise(26.0).bound(mechanism, exposure).claim.mu, 3)
        0.612
        """
        from rqm.correlated.certificate import correlated_gdp  # noqa: PLC0415 (takes the compiler)
        from rqm.correlated.fixed_order import fixed_order_gdp  # noqa: PLC0415

        self.check(mechanism, exposure.unit)
        if mechanism.discrete.additive is not None:
            return fixed_order_gdp(mechanism.discrete.additive, self.transient, exposure)
        return correlated_gdp(mechanism.discrete, self.transient, self.residual, self.gain, exposure)

    # -- the search for its parameters ------------------------------------------------------------

    @classmethod
    def beside(cls, independent_std: float, separation: int, workload: "Workload") -> Self:
        """See `NoiseScheme`: transient noise alone."""
        from rqm.correlated.iterates import iterate_noise  # noqa: PLC0415 (takes the compiler)

        return cls(iterate_noise(workload).best_ratio(separation) * independent_std)

    @classmethod
    def beside_rounding(
        cls,
        separation: int,
        workload: "Workload",
        *,
        clients: int,
        honest: int,
        bits: int,
        least_squared_mu: float = 0.0,
    ) -> "CorrelatedNoise":
        """See `NoiseScheme`: with residual noise if it is worth it."""
        from rqm.correlated.iterates import iterate_noise  # noqa: PLC0415 (takes the compiler)

        iterates = iterate_noise(workload)
        simple = CorrelatedNoise(max(iterates.best_ratio(separation) * ROUNDING_STD, MIN_STD))
        residuals = (0.5, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 4.0)  # standard deviations, in steps
        usable = [
            candidate
            for residual in residuals
            if (candidate := _best_residual(separation, clients, honest, iterates, residual, bits)) is not None
            and candidate.estimated_mu(separation, ROUNDING_STD) ** 2 >= least_squared_mu
        ]
        predicted = {candidate: _predicted(candidate, separation, honest, iterates) for candidate in (simple, *usable)}
        near_best = [candidate for candidate in predicted if predicted[candidate] <= 1.015 * min(predicted.values())]
        return min(near_best, key=lambda candidate: (candidate.sum_bits(clients, clients), predicted[candidate]))

    def scaled(self, factor: float) -> "CorrelatedNoise":
        """See `NoiseScheme`."""
        return CorrelatedNoise(self.transient_std * factor, self.residual_std * factor, self.gain)


def _predicted(noise: CorrelatedNoise, separation: int, honest: int, iterates: "IterateNoise") -> float:
    """The noise of the iterates over that of independent noise, if it were Gaussian but for how
    paths are drawn."""
    transient, residual, gain = noise.transient_std, noise.residual_std, noise.gain
    squared = noise.estimated_mu(separation, ROUNDING_STD) ** 2
    if residual:  # that a path ends in a random round reveals more, the fewer clients there are
        squared += (1 / residual**2 + gain**2 / transient**2) ** 2 / (4 * gain * honest)
    return iterates.rms(ROUNDING_STD, transient, residual, gain) * sqrt(squared) / iterates.rms(1.0, 0.0)


def _best_residual(
    separation: int, clients: int, honest: int, iterates: "IterateNoise", residual: float, bits: int
) -> CorrelatedNoise | None:
    """The best noise with this residual noise and at most `bits` bits: a coarse grid, then a fine one."""
    best: CorrelatedNoise | None = None
    # A path that ends at random reveals much in the tails of sums with smaller standard deviations, in steps.
    if residual < 20.0 / sqrt(honest):
        return None
    min_ratio = max(15.0 / sqrt(honest), MIN_STD)
    shapes = (0.25, 0.4, 0.6, 1.0, 1.6, 2.5)  # of transient noise over `gain` times residual noise
    tried = [(shape * residual, gain) for shape in shapes for gain in range(8, 129, 8)]
    for _ in range(2):
        choices = [
            CorrelatedNoise(round(ratio * gain, 4), residual, gain) for ratio, gain in tried if ratio >= min_ratio
        ]
        choices = [candidate for candidate in choices if candidate.sum_bits(clients, clients) <= bits]
        if not choices:
            return best
        best = min(choices, key=lambda candidate: _predicted(candidate, separation, honest, iterates))
        ratio, middle = best.transient_std / best.gain, best.gain
        tried = [(by * ratio, gain) for by in (0.9, 1.0, 1.1) for gain in range(max(2, middle - 7), middle + 8)]
    return best
