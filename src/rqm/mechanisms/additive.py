"""Rounding plus integer noise modulo a power of two: discrete Gaussian, Skellam, binomial.

An input is rounded to one of ``steps`` + 1 levels from -clip to clip, noise is added, and the outcome is taken modulo
2**``bits``, as secure aggregation takes the sum of all. The noise does not depend on the input, so whatever the other
clients' inputs are, a sum leaks what its noise lets through (``certify/shifts.py``). A sum beyond the modulus wraps
around, and is then decoded wrongly: ``wrapped`` says how much that costs.

Every outcome has at least one unit of the integer table. So the noise that is sampled is a mixture of noise near zero
(``core``) and, with a probability of some billionths, a uniform outcome, which makes its sums easy to know exactly.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from math import expm1, inf, lgamma, log, log1p, sqrt
from typing import Any, ClassVar, Self, final

import numpy as np

from rqm._util.checks import FloatArray, inputs, real, whole
from rqm.kernels.integer_sampler import TABLE_BITS, IntArray, IntegerSampler, grid_sampler
from rqm.mechanisms.base import Ask, option
from rqm.mechanisms.channel import Law
from rqm.mechanisms.sums import NEGLIGIBLE, summed
from rqm.mechanisms.tabled import Tabled

FINE = 10_000
"""Up to so many coins, their number and not the wanted deviation says which law it is."""
MOST_STEPS = 16_383
"""Steps from -clip to clip, at most; the tables of all levels' laws are made only where somebody asks for them."""
HARDLY_MORE = 0.01
"""A bit less is worth that much more noise."""
BETWEEN_STEPS, BETWEEN_CORRELATED_STEPS = 2.0, 5.0
"""About how much the certificate of noise of s steps exceeds a Gaussian's, times s; and with correlated noise."""
SINGLE_CLIENT_STEPS = 6.0
"""Standard deviation, in steps, of noise that one client must rely on: finer noise shows the table's rounding."""
SUM_DEVIATIONS = 6.6
"""Standard deviations of the noise for which a sum has room, both sides together."""
AUDITED = {"scale": 1.0, "steps": 5, "bits": 6}
"""Parameters at which tails can be measured."""


@dataclass(frozen=True)
class Additive(Tabled):
    """What the three mechanisms share. ``scale`` is the standard deviation of one client's noise, in units of clip."""

    modular: ClassVar[bool] = True
    for_models: ClassVar[Mapping[str, Any]] = {"steps": 15, "bits": 16}

    clip: float = option(1.0, "c, what inputs are clipped to.", flag=False)
    scale: float = option(1.0, "σ, the standard deviation of a client's noise, in units of the clip.")
    steps: int = option(31, "Steps from -clip to clip, before noise is added.")
    bits: int = option(12, "Bits of an outcome of additive noise, and of its sum.")

    def __post_init__(self) -> None:
        """Validate every parameter."""
        object.__setattr__(self, "bits", whole("bits", self.bits, 2, 16))
        object.__setattr__(self, "levels", 2**self.bits)
        self._validate()
        steps = whole("steps", self.steps, 1, min(self.levels - 1, MOST_STEPS))
        if steps % 2 == 0:
            raise ValueError(f"steps = {steps}: must be odd, so that levels and outcomes have a common centre")
        object.__setattr__(self, "steps", steps)
        object.__setattr__(self, "scale", real("scale", self.scale, "from 1e-100 to 1e+6", 1e-100, 1e6, closed="[]"))

    # -- the grid -----------------------------------------------------------------------------

    @property
    def input_levels(self) -> int:
        """Levels from -clip to clip."""
        return self.steps + 1

    @property
    def input_reach(self) -> Fraction:
        """Inputs are rounded inside the clip."""
        return Fraction(1)

    @property
    def reach(self) -> Fraction:
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
    def additive(self) -> Self:
        """The mechanism itself."""
        return self

    # -- how it is adjusted -------------------------------------------------------------------

    @property
    def least_noise(self) -> float:
        """None."""
        return 0.0

    def with_noise(self, amount: float) -> Self:
        """So many clips of deviation."""
        return self.changed(scale=amount)

    @classmethod
    def proposals(cls, ask: Ask) -> Iterator[tuple[str, dict[str, Any]]]:
        """As few bits as hold the sum and its noise in steps that are fine enough; bits and steps may be given."""
        if ask.pure:
            return
        own = ask.deviation / sqrt(ask.clients)
        given: dict[str, Any] = {name: ask.options.get(name) for name in ("steps", "bits")}
        with suppress(ValueError):  # no grid has room
            steps, bits = integer_grid(ask.clients, ask.clients * ask.typical, own, ask.deviation, ask.bits, **given)
            yield cls.kind, {"bits": bits, "steps": steps}

    def mean_error(self, clients: int, typical: float) -> float:
        """The worst-case mean squared error of a coordinate of the mean, wrapping included, in clip²."""
        return max(self.wrapped(clients, part * self.clip)[1] for part in (0.0, typical)) / self.clip**2

    # -- the noise ----------------------------------------------------------------------------

    @abstractmethod
    def log_weights(self, t: IntArray) -> FloatArray:
        """The logarithm of the noise's law at ``t``, up to a constant."""

    def log_noise(self) -> FloatArray:
        """The logarithm of the law of the noise at −M/2, …, M/2 − 1, before it is rounded to integers."""
        logs = np.maximum(self.log_weights(np.arange(self.levels) - self.levels // 2), -745.0)
        if not np.isfinite(logs).all():
            raise ValueError(f"scale = {self.scale:g}: must be smaller: floats do not reach that far into its law")
        return np.asarray(logs - np.log(np.exp(logs).sum()))

    @cached_property
    def noise_units(self) -> IntArray:
        """The law of the noise at −M/2, …, M/2 − 1 as it is sampled, in units of 2**−TABLE_BITS; symmetric."""
        with np.errstate(under="ignore"):
            law = np.exp(self.log_noise())
        units = np.maximum(1, np.rint(law * 2**TABLE_BITS)).astype(np.int64)
        units[0] = 1  # −M/2 has no mirror image
        units[self.levels // 2] += 2**TABLE_BITS - int(units.sum())
        if units[self.levels // 2] < 1:
            raise ValueError(f"scale = {self.scale:g}: must be smaller, or bits = {self.bits} larger: the noise wraps")
        units.setflags(write=False)
        return np.asarray(units)

    @cached_property
    def core(self) -> tuple[FloatArray, int]:
        """The noise but for one unit of every outcome, from its first outcome to its last; and that first one."""
        units = self.noise_units - 1
        seen = np.flatnonzero(units)
        law = units[seen[0] : seen[-1] + 1] / 2.0**TABLE_BITS
        return law / law.sum(), int(seen[0]) - self.levels // 2

    def summed(self, clients: int, own: FloatArray | None = None) -> FloatArray:
        """The law of the sum of all clients' noise modulo M, at 0, 1, …, M − 1.

        Its relative errors are small, far out in the tails too. With ``own`` each client adds a value
        0, 1, … of that law to its noise.
        """
        law, begin = self._sum(clients, own)
        rows = np.zeros(-(-(len(law) + begin % self.levels) // self.levels) * self.levels)
        rows[begin % self.levels :][: len(law)] = law
        return self._with_floor(rows.reshape(-1, self.levels).sum(axis=0), clients)

    def _sum(self, clients: int, own: FloatArray | None = None) -> tuple[FloatArray, int]:
        """The law of a sum of cores, each with a value of ``own`` if given, and where it begins; not modulo M."""
        core, start = self.core
        law, begin = summed(core if own is None else np.convolve(core, own), whole("clients", clients, 1))
        return law, begin + clients * start

    def straight(self, clients: int) -> tuple[FloatArray, float]:
        """The law of the sum of cores, not modulo M, and what it lacks at most: no sum tells more.

        Whether anybody's outcome was uniform depends on nobody's input, and then the sum tells nothing.
        """
        law, _ = self._sum(clients)
        return law / law.sum(), 4 * clients * self.levels * NEGLIGIBLE

    def _with_floor(self, law: FloatArray, clients: int) -> FloatArray:
        """A sum of cores, and with the chance that anybody's outcome is uniform the uniform law."""
        uniform = -expm1(clients * log1p(-self.levels / 2.0**TABLE_BITS))
        return np.asarray((1 - uniform) * law / law.sum() + uniform / self.levels)

    def wrapped(self, clients: int, x: float = 0.0) -> tuple[float, float]:
        """The bias and the mean squared error of the decoded mean if all clients hold ``x``, wrapping included."""
        level, part = (value.item() for value in self._cell(inputs("x", x)))
        total = np.arange(self.levels) + clients * (level - self.steps / 2)
        half = self.levels / 2
        error = (total + half) % self.levels - half - clients * (level + part - self.steps / 2)
        error *= 2 * self.clip / self.steps / clients
        law = self.summed(clients, np.array([1 - part, part]))
        return float(law @ error), float(law @ error**2)

    # -- the law ------------------------------------------------------------------------------

    def log_rows(self) -> FloatArray:
        """The noise, shifted to each level's outcome."""
        return np.asarray(self._rows(self.log_noise()))

    def _rows(self, noise: Any) -> Any:
        centre = self.levels // 2
        return np.array([np.roll(noise, self.offset + j - centre) for j in range(self.input_levels)])

    @cached_property
    def table(self) -> IntArray:
        """The noise that is sampled, shifted to each level's outcome."""
        return np.asarray(self._rows(self.noise_units))

    @cached_property
    def recipe(self) -> IntegerSampler:
        """Add a draw from the noise to the level."""
        return _recipe(self)

    def knot_laws(self, law: Law = "paper") -> FloatArray:
        """Log-probabilities at every level."""
        if law == "sampled":
            return np.asarray(np.log(self.table) - TABLE_BITS * log(2))
        return self._log_rows

    def variance(self, x: Any) -> FloatArray:
        """Variance of one client's decoded value at ``x``: of rounding and of the noise; wrapping is told apart."""
        _, part = self._cell(inputs("x", x))
        steps = np.arange(self.levels) - self.levels // 2
        noise = float((self.noise_units * steps.astype(np.float64) ** 2).sum()) / 2.0**TABLE_BITS
        return np.asarray((part * (1 - part) + noise) * self.grid.step**2)

    @property
    def near(self) -> float:
        """The variance at zero without the one unit of every outcome, which hides hardly anything."""
        law, start = self.core
        return float(0.25 + law @ (start + np.arange(len(law))) ** 2.0) * self.grid.step**2

    @property
    def variance_max(self) -> float:
        """The largest variance, half-way between two levels."""
        return float(self.variance(0.0))

    # -- sums ---------------------------------------------------------------------------------

    def sum_bits(self, clients: int) -> int:
        """Sums are taken modulo 2**bits, however many clients."""
        whole("clients", clients, 1)
        return self.bits

    def encode_sum(
        self, x: Any, rng: object, *, out: Any = None, threads: int | None = None, check: bool = True
    ) -> Any:
        """The same sum modulo 2**bits: how often it went round would tell more than is accounted for."""
        total = super().encode_sum(x, rng, out=out, threads=threads, check=check)
        total &= self.levels - 1
        return total

    def decode(self, z_sum: Any, clients: int, *, check: bool = True) -> Any:
        """Estimate the mean from a sum modulo 2**bits: the representative nearest to zero."""
        clients = whole("clients", clients, 1)
        total = z_sum.double() if hasattr(z_sum, "double") else inputs("z_sum", z_sum)
        half = self.levels / 2
        centred = (total - clients * (self.levels - 1) / 2 + half) % self.levels - half
        return centred * (self.grid.step / clients)


@final
@dataclass(frozen=True)
class DiscreteGaussian(Additive):
    """The distributed discrete Gaussian mechanism (Kairouz, Liu and Steinke 2021).

    >>> round(DiscreteGaussian(scale=1.0, steps=7, bits=6).variance_max, 4)  # 1, and 1/4 of a step squared
    1.0204
    """

    kind: ClassVar[str] = "discrete-gaussian"
    examples: ClassVar[Mapping[str, Mapping[str, Any]]] = {"discrete Gaussian": AUDITED}

    def log_weights(self, t: IntArray) -> FloatArray:
        """exp(−t²/2σ²)."""
        return np.asarray(-(t**2) / (2 * self.deviation**2))


@final
@dataclass(frozen=True)
class Skellam(Additive):
    """The Skellam mechanism (Agarwal, Kairouz and Liu 2021): the difference of two Poisson variables."""

    kind: ClassVar[str] = "skellam"
    examples: ClassVar[Mapping[str, Mapping[str, Any]]] = {"Skellam": AUDITED}

    def log_weights(self, t: IntArray) -> FloatArray:
        """e^{−μ} I_t(μ), μ the variance."""
        from scipy.special import ive  # noqa: PLC0415 (where it is needed)

        with np.errstate(divide="ignore"):
            return np.asarray(np.log(ive(abs(t), self.deviation**2)))


@final
@dataclass(frozen=True)
class Binomial(Additive):
    """Binomial noise (cpSGD, Agarwal et al. 2018): fair coins, centred; an even number of them."""

    kind: ClassVar[str] = "binomial"
    examples: ClassVar[Mapping[str, Mapping[str, Any]]] = {"binomial": AUDITED}

    @property
    def coins(self) -> int:
        """The even number of coins whose variance is next to the wanted one, from above."""
        return 2 * max(1, -(-int(np.ceil(4 * self.deviation**2 - 1e-9)) // 2))

    def with_noise(self, amount: float) -> Self:
        """As many coins as it takes; the same for all amounts that take as many."""
        made = super().with_noise(amount)
        return _coined(made.changed(scale=1.0), made.coins) if made.coins < FINE else made

    def log_weights(self, t: IntArray) -> FloatArray:
        """Binomial(coins, 1/2), centred."""
        half = self.coins // 2
        inside = abs(t) <= half
        logs = [-lgamma(half + s + 1) - lgamma(half - s + 1) if ok else -inf for s, ok in zip(t, inside, strict=True)]
        return np.array(logs) + 2 * lgamma(half + 1)


@lru_cache(maxsize=64)
def _coined(mech: Binomial, coins: int) -> Binomial:
    """So many coins, made once."""
    return mech.changed(scale=sqrt(coins) / mech.steps)


@lru_cache(maxsize=16)
def _recipe(mech: Additive) -> IntegerSampler:
    """What equal mechanisms draw by: the same one is read again and again, from plans and from ledgers."""
    row = np.roll(mech.noise_units, mech.offset - mech.levels // 2)[None]
    return grid_sampler(mech.clip, Fraction(1), mech.input_levels, row, modulus=mech.levels)


def integer_grid(
    clients: int,
    mean: float,
    own: float,
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
        own: Standard deviation of one client's noise, in clips.
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
        ValueError: If a sum and its noise have no room in so many bits.
    """
    room = mean + SUM_DEVIATIONS * own * sqrt(clients * (1 + 2 * ratio**2))
    choices = []
    for sum_bits in [bits] if bits is not None else range(5, min(max_bits, 16) + 1):
        most = min(int((2**sum_bits - 1) / room), MOST_STEPS, 2**sum_bits - 1)
        if ratio:
            most = min(most, int(1.8 * widest / (ratio * own)))
        if is_single:
            most = min(most, int(2 * SINGLE_CLIENT_STEPS / own) | 1)
        most -= 1 - most % 2
        if steps is not None:
            most = steps if steps <= most else 0
        if most > 0 and (not ratio or ratio * own * most / 2 > 1):
            added = (0.25 + 2.0 ** (3 * sum_bits - TABLE_BITS) / 12) / (own * most / 2) ** 2
            between = BETWEEN_CORRELATED_STEPS if ratio else BETWEEN_STEPS
            choices.append((sqrt(1 + added) * (1 + between / (total * most / 2)), most, sum_bits))
    if not choices:
        given = f"{bits} bits" if bits is not None else f"{max_bits} bits"
        raise ValueError(f"a sum and its noise have no room in {given}: must be more bits, or a larger ε")
    _, best_steps, best_bits = next(one for one in choices if one[0] <= min(choices)[0] + HARDLY_MORE)
    return best_steps, best_bits
