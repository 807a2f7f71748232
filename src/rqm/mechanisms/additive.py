"""Rounding plus integer noise modulo a power of two: discrete Gaussian, Skellam, binomial.

An input is rounded to one of `steps` + 1 levels from -clip to clip, noise is added, and the outcome is taken modulo
2**`bits`, as secure aggregation takes the sum. The noise does not depend on the input. So what a sum reveals does not
depend on the other clients' inputs (`certify/shifts.py`). A sum beyond the modulus wraps around and is then decoded
wrongly; `wrapped` computes the error.

Every outcome has at least one unit of the integer table. So the sampled noise is a mixture of noise near zero (`core`)
and, with a probability of some billionths, a uniform outcome. Sums of such noise can be computed accurately.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from math import ceil, expm1, inf, lgamma, log, log1p, sqrt
from typing import Any, ClassVar, Self, final

import numpy as np
import numpy.typing as npt

from rqm._util.checks import FloatArray, inputs, real, whole
from rqm.kernels.integer_sampler import TABLE_BITS, IntArray, IntegerSampler, grid_sampler
from rqm.mechanisms.base import ProposalRequest, option
from rqm.mechanisms.discrete import PmfKind
from rqm.mechanisms.sums import NEGLIGIBLE, summed
from rqm.mechanisms.table_mechanism import TableMechanism

MAX_STEPS = 16_383
"""Limits the table of all levels, which is made only where it is asked for."""
EXCESS_OF_STEPS, EXCESS_OF_CORRELATED_STEPS = 2.0, 5.0
"""About how much the certificate of noise of s steps exceeds a Gaussian's, times s; and with correlated noise."""
AUDITED = {"scale": 1.0, "steps": 5, "bits": 6}
"""Parameters at which an audit can measure the tails."""


@dataclass(frozen=True)
class Additive(TableMechanism):
    """Rounding plus noise that does not depend on the input. Subclasses define `log_weights`."""

    is_modular = True
    for_models: ClassVar[Mapping[str, Any]] = {"steps": 15, "bits": 16}
    input_range = Fraction(1)
    """Inputs are rounded inside the clip."""
    min_noise: ClassVar[float] = 0.0

    clip: float = option(1.0, "c, what inputs are clipped to.", flag=False)
    scale: float = option(1.0, "σ, the standard deviation of a client's noise, in units of the clip.")
    steps: int = option(31, "Steps from -clip to clip, before noise is added.")
    bits: int = option(12, "Bits of an outcome of additive noise, and of its sum.")

    def __post_init__(self) -> None:
        """Validate every parameter."""
        object.__setattr__(self, "bits", whole("bits", self.bits, 2, 16))
        object.__setattr__(self, "levels", 2**self.bits)
        self._validate()
        steps = whole("steps", self.steps, 1, min(self.levels - 1, MAX_STEPS))
        if steps % 2 == 0:
            raise ValueError(f"steps = {steps}: must be odd, so that levels and outcomes have a common center")
        object.__setattr__(self, "steps", steps)
        object.__setattr__(self, "scale", real("scale", self.scale, "from 1e-100 to 1e+6", 1e-100, 1e6, closed="[]"))

    # -- the grid -----------------------------------------------------------------------------

    @property
    def input_levels(self) -> int:
        """Levels from -clip to clip."""
        return self.steps + 1

    @property
    def output_range(self) -> Fraction:
        """Outcomes are as far apart as levels, and there are 2**bits of them."""
        return Fraction(self.levels - 1, self.steps)

    @property
    def offset(self) -> int:
        """The outcome of -clip without noise."""
        return (self.levels - 1 - self.steps) // 2

    @property
    def deviation(self) -> float:
        """The standard deviation of one client's noise, in steps."""
        return self.scale * self.steps / 2

    @property
    def additive(self) -> Self:  # type: ignore[override]
        """The mechanism itself."""
        return self

    # -- calibration --------------------------------------------------------------------------

    def with_noise(self, amount: float) -> Self:
        """The same mechanism with noise of this standard deviation, in clips."""
        return self.with_parameters(scale=amount)

    @classmethod
    def proposals(cls, ask: ProposalRequest) -> Iterator[tuple[str, dict[str, Any]]]:
        """As few bits as hold the sum and its noise in steps that are fine enough. Bits and steps may be given."""
        if ask.pure:
            return
        with suppress(ValueError):  # no grid is wide enough
            steps, bits = integer_grid(
                ask.clients,
                ask.clients * ask.typical,
                ask.deviation / sqrt(ask.clients),
                ask.deviation,
                ask.bits,
                steps=ask.options.get("steps"),
                bits=ask.options.get("bits"),
            )
            yield cls.kind, {"bits": bits, "steps": steps}

    def mean_error(self, clients: int, typical: float) -> float:
        """The mean squared error of a coordinate of the mean, wrapping included, in clip².

        Args:
            clients: Number of clients.
            typical: Size of the mean, in clips.

        Returns:
            The larger error of a mean of zero and of `typical`.
        """
        return max(self.wrapping_error(clients, mean * self.clip)[1] for mean in (0.0, typical)) / self.clip**2

    # -- the noise ----------------------------------------------------------------------------

    @abstractmethod
    def log_weights(self, t: IntArray) -> FloatArray:
        """The logarithm of the noise's pmf at `t`, up to a constant."""

    def log_noise(self) -> FloatArray:
        """The logarithm of the noise's pmf at −M/2, …, M/2 − 1, before it is rounded to integers."""
        logs = np.maximum(self.log_weights(np.arange(self.levels) - self.levels // 2), -745.0)
        if not np.isfinite(logs).all():
            raise ValueError(f"scale = {self.scale:g}: must be smaller: its tail is below all floats")
        return np.asarray(logs - np.log(np.exp(logs).sum()))

    @cached_property
    def noise_units(self) -> IntArray:
        """The pmf of the noise at −M/2, …, M/2 − 1 as it is sampled, in units of 2**−TABLE_BITS; symmetric."""
        with np.errstate(under="ignore"):
            pmf = np.exp(self.log_noise())
        units = np.maximum(1, np.rint(pmf * 2**TABLE_BITS)).astype(np.int64)
        units[0] = 1  # −M/2 has no mirror image
        units[self.levels // 2] += 2**TABLE_BITS - int(units.sum())
        if units[self.levels // 2] < 1:
            raise ValueError(f"scale = {self.scale:g}: must be smaller, or bits = {self.bits} larger: the noise wraps")
        units.setflags(write=False)
        return np.asarray(units)

    @cached_property
    def core(self) -> tuple[FloatArray, int]:
        """The pmf of the noise without one unit of every outcome, and its first outcome."""
        units = self.noise_units - 1
        support = np.flatnonzero(units)
        pmf = units[support[0] : support[-1] + 1] / 2.0**TABLE_BITS
        return pmf / pmf.sum(), int(support[0]) - self.levels // 2

    def summed(self, clients: int, value_pmf: FloatArray | None = None) -> FloatArray:
        """The pmf of the sum of all clients' noise modulo M, at 0, 1, …, M − 1.

        Its relative errors are small, far out in the tails too.

        Args:
            clients: Number of clients.
            value_pmf: The pmf of a value 0, 1, … that each client adds to its noise; None: no value.

        Returns:
            The pmf.
        """
        pmf, first = self._core_sum(clients, value_pmf)
        first %= self.levels
        cycles = np.zeros(-(-(len(pmf) + first) // self.levels) * self.levels)
        cycles[first:][: len(pmf)] = pmf
        wrapped = cycles.reshape(-1, self.levels).sum(axis=0)
        uniform = -expm1(clients * log1p(-self.levels / 2.0**TABLE_BITS))  # the chance that any outcome is uniform
        return np.asarray((1 - uniform) * wrapped / wrapped.sum() + uniform / self.levels)

    def unwrapped_sum_pmf(self, clients: int) -> tuple[FloatArray, float]:
        """The pmf of the sum of cores, not modulo M. No sum of noise reveals more.

        Whether any outcome was uniform does not depend on inputs, and then the sum reveals nothing.

        Args:
            clients: Number of clients.

        Returns:
            The pmf, and the largest probability that it leaves out.
        """
        pmf, _ = self._core_sum(clients)
        return pmf / pmf.sum(), 4 * clients * self.levels * NEGLIGIBLE

    def _core_sum(self, clients: int, value_pmf: FloatArray | None = None) -> tuple[FloatArray, int]:
        """The pmf of a sum of cores, each with a value of `value_pmf`, and its first outcome; not modulo M."""
        core, start = self.core
        pmf, first = summed(core if value_pmf is None else np.convolve(core, value_pmf), whole("clients", clients, 1))
        return pmf, first + clients * start

    def wrapping_error(self, clients: int, x: float = 0.0) -> tuple[float, float]:
        """The error of the decoded mean if all clients hold the same input, wrapping included.

        Args:
            clients: Number of clients.
            x: Their input.

        Returns:
            The bias and the mean squared error.
        """
        level, fraction = (value.item() for value in self._cell(x))
        total = np.arange(self.levels) + clients * (level - self.steps / 2)
        half = self.levels / 2
        error = (total + half) % self.levels - half - clients * (level + fraction - self.steps / 2)
        error *= 2 * self.clip / self.steps / clients
        pmf = self.summed(clients, np.array([1 - fraction, fraction]))
        return float(pmf @ error), float(pmf @ error**2)

    # -- the pmf ------------------------------------------------------------------------------

    def _shifted(self, noise: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The noise at each level's outcome, one row each."""
        first = self.offset - self.levels // 2
        return np.array([np.roll(noise, first + level) for level in range(self.input_levels)])

    def log_rows(self) -> FloatArray:
        """Natural logarithm of the pmf at every level."""
        return self._shifted(self.log_noise())

    @cached_property
    def table(self) -> IntArray:
        """The noise that is sampled, shifted to each level's outcome."""
        return self._shifted(self.noise_units)

    @cached_property
    def sampler(self) -> IntegerSampler:
        """Adds a draw from the noise to the level."""
        return _recipe(self)

    def breakpoint_log_pmfs(self, kind: PmfKind = "paper") -> FloatArray:
        """Log-probabilities at every level."""
        if kind == "sampled":
            return np.log(self.table) - TABLE_BITS * log(2)
        return self._log_rows

    def variance(self, x: npt.ArrayLike) -> FloatArray:
        """Variance of one client's decoded value at `x`: of rounding and of the noise, without wrapping."""
        _, fraction = self._cell(x)
        outcomes = np.arange(self.levels) - self.levels // 2
        noise = float((self.noise_units * outcomes.astype(np.float64) ** 2).sum()) / 2.0**TABLE_BITS
        return np.asarray((fraction * (1 - fraction) + noise) * self.grid.step**2)

    @property
    def variance_without_floor(self) -> float:
        """The variance at zero without the one unit of every outcome, which hides hardly anything."""
        pmf, start = self.core
        return float(0.25 + pmf @ (start + np.arange(len(pmf))) ** 2.0) * self.grid.step**2

    @property
    def variance_max(self) -> float:
        """The largest variance, halfway between two levels."""
        return float(self.variance(0.0))

    # -- sums ---------------------------------------------------------------------------------

    def sum_bits(self, clients: int) -> int:
        """`bits`, for any number of clients: sums are taken modulo 2**bits."""
        whole("clients", clients, 1)
        return self.bits

    def encode_sum(
        self, x: Any, rng: object, *, out: Any = None, threads: int | None = None, check: bool = True
    ) -> Any:
        """Encode all clients' inputs and return the sum of their outcomes modulo 2**bits.

        Args:
            x: One row per client.
            rng: See `DiscreteMechanism.encode_sum`.
            out: See `DiscreteMechanism.encode_sum`.
            threads: See `DiscreteMechanism.encode_sum`.
            check: See `DiscreteMechanism.encode_sum`.

        Returns:
            The sum, as 32-bit integers.
        """
        total = super().encode_sum(x, rng, out=out, threads=threads, check=check)
        total &= self.levels - 1
        return total

    def decode(self, z_sum: Any, clients: int, *, check: bool = True) -> Any:
        """An estimate of the mean: the representative of the sum that is nearest to zero.

        Args:
            z_sum: The sum modulo 2**bits.
            clients: Number of clients.
            check: Not used, since all sums are possible.

        Returns:
            The mean, in the array library of the sum.
        """
        clients = whole("clients", clients, 1)
        total = z_sum.double() if hasattr(z_sum, "double") else inputs("z_sum", z_sum)
        half = self.levels / 2
        centered = (total - clients * (self.levels - 1) / 2 + half) % self.levels - half
        return centered * (self.grid.step / clients)


@final
@dataclass(frozen=True)
class DiscreteGaussian(Additive):
    """The distributed discrete Gaussian mechanism (Kairouz, Liu and Steinke 2021).

    >>> round(DiscreteGaussian(scale=1.0, steps=7, bits=6).variance_max, 4)  # 1, and 1/4 of a step squared
    1.0204
    """

    kind = "discrete-gaussian"
    examples: ClassVar[Mapping[str, Mapping[str, Any]]] = {"discrete Gaussian": AUDITED}

    def log_weights(self, t: IntArray) -> FloatArray:
        """exp(−t²/2σ²)."""
        return -(t**2) / (2 * self.deviation**2)


@final
@dataclass(frozen=True)
class Skellam(Additive):
    """The Skellam mechanism (Agarwal, Kairouz and Liu 2021): the difference of two Poisson variables."""

    kind = "skellam"
    examples: ClassVar[Mapping[str, Mapping[str, Any]]] = {"Skellam": AUDITED}

    def log_weights(self, t: IntArray) -> FloatArray:
        """e^{−μ} I_t(μ), μ the variance."""
        from scipy.special import ive  # noqa: PLC0415 (slow to import)

        with np.errstate(divide="ignore"):
            return np.log(ive(abs(t), self.deviation**2))


@final
@dataclass(frozen=True)
class Binomial(Additive):
    """Binomial noise (cpSGD, Agarwal et al. 2018): an even number of fair coins, centered."""

    kind = "binomial"
    examples: ClassVar[Mapping[str, Mapping[str, Any]]] = {"binomial": AUDITED}

    @property
    def coins(self) -> int:
        """The smallest even number of coins that has at least the requested variance."""
        return 2 * max(1, -(-ceil(4 * self.deviation**2 - 1e-9) // 2))

    def with_noise(self, amount: float) -> Self:
        """The same mechanism with enough coins. Amounts that need the same number of coins give equal mechanisms."""
        mechanism = super().with_noise(amount)
        if mechanism.coins >= 10_000:  # fewer coins are named by their number, not by the requested deviation
            return mechanism
        return _with_coins(mechanism.with_parameters(scale=1.0), mechanism.coins)

    def log_weights(self, t: IntArray) -> FloatArray:
        """Binomial(coins, 1/2), centered."""
        half = self.coins // 2
        logs = [-lgamma(half + s + 1) - lgamma(half - s + 1) if abs(s) <= half else -inf for s in t]
        return np.array(logs) + 2 * lgamma(half + 1)


@lru_cache(maxsize=64)
def _with_coins(mech: Binomial, coins: int) -> Binomial:
    """The mechanism with this many coins; cached, so that its sums are computed once."""
    return mech.with_parameters(scale=sqrt(coins) / mech.steps)


@lru_cache(maxsize=16)
def _recipe(mech: Additive) -> IntegerSampler:
    """What a mechanism samples from; cached, since plans and ledgers give equal mechanisms again and again."""
    noise = np.roll(mech.noise_units, mech.offset - mech.levels // 2)[None]
    return grid_sampler(mech.clip, Fraction(1), mech.input_levels, noise, modulus=mech.levels)


def integer_grid(
    clients: int,
    mean: float,
    client_std: float,
    total: float,
    max_bits: int,
    *,
    steps: int | None = None,
    bits: int | None = None,
    ratio: float = 0.0,
    widest: float = inf,
    is_single: bool = False,
) -> tuple[int, int]:
    """Steps from -clip to clip and bits of a sum: the shortest messages that are about as good as any.

    Rounding adds a quarter of a step squared; outcomes of one unit of the table, few and far out, add theirs; and
    between two steps the sum is a mixture, which reveals more in its tails than a Gaussian does.

    Args:
        clients: Clients of a sum.
        mean: The largest sum without noise, in clips.
        client_std: Standard deviation of one client's noise, in clips.
        total: Standard deviation of the noise that hides as much in a sum, in clips.
        max_bits: Bits of a sum, at most.
        steps: The number of steps, if it is given.
        bits: Bits of a sum, if they are given.
        ratio: Standard deviation of transient noise over that of the rest.
        widest: The largest standard deviation of transient noise, in steps.
        is_single: Whether the noise of one client must be enough.

    Returns:
        Steps and bits.

    Raises:
        ValueError: If a sum and its noise do not fit the bits.
    """
    sum_deviations = 6.6  # Standard deviations of the noise that a sum holds, on both sides together.
    half_range = mean + sum_deviations * client_std * sqrt(clients * (1 + 2 * ratio**2))
    candidates = []
    for sum_bits in [bits] if bits is not None else range(5, min(max_bits, 16) + 1):
        largest = min(int((2**sum_bits - 1) / half_range), MAX_STEPS, 2**sum_bits - 1)
        if ratio:
            largest = min(largest, int(1.8 * widest / (ratio * client_std)))
        if is_single:
            # Standard deviation, in steps, of noise that must hide a single client: finer noise shows the
            # table's rounding.
            single_client_steps = 6.0
            largest = min(largest, int(2 * single_client_steps / client_std) | 1)
        largest -= 1 - largest % 2
        if steps is not None:
            largest = steps if steps <= largest else 0
        if largest > 0 and (not ratio or ratio * client_std * largest / 2 > 1):
            added = (0.25 + 2.0 ** (3 * sum_bits - TABLE_BITS) / 12) / (client_std * largest / 2) ** 2
            excess = EXCESS_OF_CORRELATED_STEPS if ratio else EXCESS_OF_STEPS
            candidates.append((sqrt(1 + added) * (1 + excess / (total * largest / 2)), largest, sum_bits))
    if not candidates:
        raise ValueError(
            f"a sum and its noise do not fit {max_bits if bits is None else bits} bits: must be more bits, or a "
            "larger ε"
        )
    best_noise = min(candidates)[0]
    noise_per_bit = 0.01  # The relative increase of the noise that one bit less is worth.
    return next((steps, bits) for noise, steps, bits in candidates if noise <= best_noise + noise_per_bit)
