"""Correlated noise: what a client adds to its integers and cancels one round later.

Discrete Gaussian noise as a table of integers, drawn as every mechanism's outcomes are
(`kernels/`), so that what is sampled is known exactly. Outcomes that are rarer than half a unit
of the table do not occur.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil, inf, log2
from typing import Any, Self, final

import numpy as np

from rqm import kernels
from rqm._util.checks import FloatArray, known_keys, real, shown, whole
from rqm.kernels.integer_sampler import TABLE_BITS, IntArray, IntegerSampler, grid_sampler
from rqm.mechanisms.sums import NEGLIGIBLE, summed
from rqm.randomness import expanded

MIN_STD, MAX_STD = 0.5, 2.0**11
"""Standard deviations of integer noise, in steps, whose table has fewer than 2¹⁶ outcomes."""
MAX_GAIN = 1024
"""The largest number of times that residual noise is added."""
MAX_ZEROS = 128
"""The most coordinates whose noise may be zero everywhere: each is with probability at most .79, all with 8e-14."""
MAX_SAMPLES_AT_ONCE = 2**28
"""Samples of all clients' noise that are drawn at once, to bound memory."""
SUM_NOISE_DEVIATIONS = 6.0
"""Standard deviations of the noise of a round, to each side, that fit below the modulus."""


@final
@dataclass(frozen=True, eq=False)
class NoiseState:
    """The noise of one participation. It is secret. The caller uses it once: for one message and one settlement.

    Attributes:
        added: Integers that are added to the first message.
        canceled: Integers that are subtracted one round later.
    """

    added: Any
    canceled: Any


def check_state(state: object, length: int | None = None) -> NoiseState:
    """Refuse what is not the noise of a vector of this length.

    Args:
        state: The noise.
        length: Number of coordinates; None: any.

    Returns:
        The noise.

    Raises:
        TypeError: If it is no `NoiseState`.
        ValueError: If it has another length, or is zero everywhere.
    """
    if not isinstance(state, NoiseState):
        raise TypeError(f"noise_state = {shown(state)}: must be what begin_noise() returned for this participation")
    length = len(state.added) if length is None else length
    if state.added.shape != (length,) or state.canceled.shape != (length,):
        raise ValueError(
            f"noise_state: has {len(state.added)} coordinates: must have {length}, as begin_noise() of the same mean "
            "returns"
        )
    if length > MAX_ZEROS and not state.added.any():
        raise ValueError("noise_state: is zero everywhere, which noise never is: must be what begin_noise() returned")
    return state


@final
@dataclass(frozen=True)
class CorrelatedNoise:
    """Transient noise F, and residual noise E that is added `gain` times.

    All of it but one E is canceled one round later.

    For integers the unit is a step between two levels; where a trusted server adds the noise, it
    is the L2 clip.

    Attributes:
        transient_std: Standard deviation of F.
        residual_std: Standard deviation of E; 0: there is none.
        gain: How many times E is added at first.

    >>> CorrelatedNoise(2.0).units[-3:].tolist(), CorrelatedNoise(2.0).largest  # of 2⁴⁰; no draw is above 14 steps
    ([3340, 147, 5], 14)
    >>> round(CorrelatedNoise(30.0, 1.5, 50).added_variance ** 0.5, 2)  # much as if E were added alone
    80.78
    """

    transient_std: float
    residual_std: float = 0.0
    gain: int = 1

    def __post_init__(self) -> None:
        """Validate every value."""
        for name in ("transient_std", "residual_std"):
            allowed, closed = ("at least 0", "[") if name == "residual_std" else ("a positive finite number", "")
            object.__setattr__(self, name, real(f"noise.{name}", getattr(self, name), allowed, 0, inf, closed=closed))
        object.__setattr__(self, "gain", whole("noise.gain", self.gain, 2 if self.residual_std else 1, MAX_GAIN))
        if not self.residual_std and self.gain != 1:
            raise ValueError(f"noise.gain = {self.gain}: must be 1 without residual noise (noise.residual_std)")

    @classmethod
    def of(cls, value: Any) -> Self:
        """Build it from what a file or a caller says.

        Args:
            value: Correlated noise, a table of its attributes, or the standard deviation of
                transient noise alone.

        Returns:
            The noise.

        >>> CorrelatedNoise.of({"transient_std": 39.2, "residual_std": 2.0, "gain": 49})
        CorrelatedNoise(transient_std=39.2, residual_std=2.0, gain=49)
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, Mapping):
            known_keys(value, ["transient_std", "residual_std", "gain"], "noise.", needed=["transient_std"])
            return cls(**value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(
                f"noise = {shown(value)}: must be rqm.CorrelatedNoise(…), a standard deviation, or a table of "
                "transient_std, residual_std and gain"
            )
        return cls(value)

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON or TOML."""
        return asdict(self)

    def check_integers(self) -> None:
        """Refuse standard deviations for which there is no table of integers.

        Raises:
            ValueError: If one of them is too small or too large.
        """
        for name in ("transient_std", "residual_std"):
            value = getattr(self, name)
            if value or name == "transient_std":
                real(f"noise.{name}", value, f"from {MIN_STD:g} to {MAX_STD:g} steps", MIN_STD, MAX_STD, closed="[]")

    @cached_property
    def residual(self) -> "CorrelatedNoise":
        """The residual noise alone."""
        return CorrelatedNoise(self.residual_std)

    # -- the distribution ---------------------------------------------------------------------

    @cached_property
    def units(self) -> IntArray:
        """The pmf of F at −largest, …, largest, in units of 2**−TABLE_BITS; symmetric."""
        self.check_integers()
        steps = np.arange(ceil(9 * self.transient_std) + 1)
        half = np.exp(-(steps**2) / (2 * self.transient_std**2))
        half = np.rint(half / (2 * half.sum() - 1) * 2.0**TABLE_BITS).astype(np.int64)
        half = half[: int(np.flatnonzero(half)[-1]) + 1]
        half[0] += 2**TABLE_BITS - int(2 * half.sum() - half[0])
        units = np.concatenate([half[:0:-1], half])
        units.setflags(write=False)
        return units

    @property
    def largest(self) -> int:
        """The largest outcome of F."""
        return len(self.units) // 2

    @property
    def added_variance(self) -> float:
        """The variance of what is added, as it is sampled, in steps²."""
        return self._variance(self.gain)

    @property
    def canceled_variance(self) -> float:
        """The variance of what is canceled, in steps²."""
        return self._variance(self.gain - 1)

    def _variance(self, gain: int) -> float:
        transient = float(self.units @ np.arange(-self.largest, self.largest + 1) ** 2.0) / 2.0**TABLE_BITS
        return transient + (gain**2 * self.residual.added_variance if self.residual_std else 0.0)

    def summed(self, clients: int) -> tuple[FloatArray, float]:
        """The pmf of the sum of F over some clients.

        Args:
            clients: Number of clients.

        Returns:
            The pmf, and the probability that it lacks at its ends at most.
        """
        pmf, _ = summed(self.units / 2.0**TABLE_BITS, whole("clients", clients, 1))
        return pmf / pmf.sum(), 4 * clients * len(self.units) * NEGLIGIBLE

    def sum_bits(self, clients: int, spread: int) -> int:
        """Bits that hold a sum of values, the noise that was added and the noise that is canceled.

        Args:
            clients: Number of clients.
            spread: The largest sum without noise.

        Returns:
            The number of bits.
        """
        return ceil(log2(spread + 1 + 2 * SUM_NOISE_DEVIATIONS * (2 * clients * self.added_variance) ** 0.5))

    # -- one participation ----------------------------------------------------------------------

    def begin(self, secret: bytes, length: int) -> "NoiseState":
        """The noise of one participation, which follows from a secret.

        Store the secret before anything is sent. Use it for one participation only.

        Args:
            secret: 32 bytes. Anyone who is given them computes the same noise.
            length: Number of coordinates.

        Returns:
            The noise that `add` adds and `settle` cancels.
        """
        words = expanded(secret, whole("length", length, 1) * (2 if self.residual_std else 1))
        words = words >> np.uint64(64 - TABLE_BITS)
        return self._state(self._look_up(words[:length]), lambda: self.residual._look_up(words[length:]))

    def sample(self, length: int, source: object) -> "NoiseState":
        """The noise of one participation, drawn at random.

        Args:
            length: Number of coordinates.
            source: A `SecureRandom`; a `SeededRandom` in simulations.

        Returns:
            The noise.
        """
        drawn = kernels.encode(self.sampler, np.full(length, -1.0, np.float32), source, None)
        transient = np.asarray(drawn.astype(np.int64) - self.largest)
        return self._state(transient, lambda: self.residual.sample(length, source).added)

    def sample_sum(self, clients: int, template: Any, source: object) -> "NoiseState":
        """The sum of the noise of some clients, for simulations.

        Args:
            clients: Number of clients.
            template: A torch tensor of 32-bit integers, of the shape of the sum.
            source: The source of randomness.

        Returns:
            The noise, as tensors.
        """
        torch = kernels.backend(template).torch  # type: ignore[union-attr]
        transient, residual = torch.zeros_like(template), torch.zeros_like(template)
        self._add_sum(clients, transient, source)
        if self.residual_std:
            self.residual._add_sum(clients, residual, source)
        return self._state(transient, lambda: residual)

    def add(self, message: Any, state: "NoiseState", modulus: int) -> Any:
        """The first message: a client's integers with its noise.

        Args:
            message: The client's integers, a NumPy array or a torch tensor.
            state: What `begin` or `sample` returned for this participation.
            modulus: The modulus of the sum.

        Returns:
            The message modulo `modulus`, in the array library of `message`.
        """
        values = check_state(state, len(message)).added
        return (message + (values if kernels.backend(message) is None else message.new_tensor(values))) % modulus

    def settle(self, state: "NoiseState", modulus: int) -> Any:
        """The second message, for the next round. It holds no input, and is sent once or never.

        Args:
            state: What `begin` or `sample` returned for the participation that it settles.
            modulus: The modulus of the sum.

        Returns:
            The canceled noise modulo `modulus`.
        """
        return -check_state(state).canceled % modulus

    def recover(self, total: Any, secrets: Iterable[bytes], modulus: int) -> Any:
        """Cancel the noise of clients that dropped out before they settled.

        Args:
            total: The sum of the round in which they should have settled.
            secrets: The clients' secrets, which the others' shares give.
            modulus: The modulus of the sum.

        Returns:
            The sum modulo `modulus`.
        """
        for secret in secrets:
            total = (total - self.begin(secret, len(total)).canceled) % modulus
        return total

    def _state(self, transient: Any, residual: Callable[[], Any]) -> "NoiseState":
        """The noise that is added and canceled, from F and E."""
        if not self.residual_std:
            return NoiseState(transient, transient)
        residual_noise = residual()
        canceled = transient + (self.gain - 1) * residual_noise
        return NoiseState(canceled + residual_noise, canceled)

    def _look_up(self, words: Any) -> IntArray:
        return np.asarray(np.searchsorted(np.cumsum(self.units), words.astype(np.int64), side="right") - self.largest)

    def _add_sum(self, clients: int, total: Any, rng: object) -> None:
        """Add F of some clients."""
        torch = kernels.backend(total).torch  # type: ignore[union-attr]
        width = min(clients, max(1, MAX_SAMPLES_AT_ONCE // len(total)))
        rows = torch.full((width, len(total)), -1.0, device=total.device)
        for start in range(0, clients, width):
            kernels.encode_sum(self.sampler, rows[: min(width, clients - start)], rng, total, 1, False)
        total -= clients * self.largest

    @cached_property
    def sampler(self) -> IntegerSampler:
        """Draws largest + F for the input −1."""
        modulus = 2 ** len(self.units).bit_length()
        return grid_sampler(1.0, Fraction(1), 2, self.units[None], modulus=modulus)
