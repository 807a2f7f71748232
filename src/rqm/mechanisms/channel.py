"""Channels: mechanisms that send integers, with a law that is known exactly.

What is particular to one is its law, and what the encoders draw by. Those whose law is a table of rows, one for each
level, are ``Tabled``, and say no more than these rows.
"""

from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from math import log
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from rqm import kernels
from rqm._util.checks import FloatArray, inputs, real, sums, whole
from rqm.kernels.integer_sampler import IntArray, IntegerSampler
from rqm.mechanisms.base import Mechanism

if TYPE_CHECKING:
    from rqm.mechanisms.additive import Additive

Law = Literal["paper", "sampled"]

MAX_LEVELS = 65_536
CLIPS = (1e-280, 1e280)  # beyond them, scales between inputs and positions overflow
PIECE = 2**16
"""Sums that are decoded at a time: what lies between stays in the cache."""
FARTHEST = 1e25  # the margin, in units of the clip: for the same reason


@dataclass(frozen=True)
class Grid:
    """``levels`` (m) evenly spaced values B(0), …, B(m−1) from ``-extent`` to ``extent``.

    >>> Grid(extent=3.0, levels=4).values
    array([-3., -1.,  1.,  3.])
    """

    extent: float
    levels: int

    @property
    def step(self) -> float:
        """The distance between neighbouring levels."""
        return 2 * self.extent / (self.levels - 1)

    @property
    def values(self) -> FloatArray:
        """The levels B(0), …, B(m−1)."""
        return np.linspace(-self.extent, self.extent, self.levels)


class Channel(Mechanism):
    """A mechanism with a law over the integers 0..levels−1, unbiased for every input in [-clip, clip].

    ``modular``: outcomes, and so sums, are taken modulo 2**bits.
    """

    integers: ClassVar[bool] = True
    modular: ClassVar[bool] = False
    clip: float
    levels: int

    @property
    def channel(self) -> Self:
        """The mechanism itself."""
        return self

    def _validate(self, max_levels: int = MAX_LEVELS) -> None:
        clip = real("clip", self.clip, f"from {CLIPS[0]:g} to {CLIPS[1]:g}", *CLIPS, closed="[]")
        object.__setattr__(self, "clip", clip)
        object.__setattr__(self, "levels", whole("levels", self.levels, 2, max_levels))

    # -- what a mechanism defines -------------------------------------------------------------

    @property
    @abstractmethod
    def reach(self) -> Fraction:
        """X / c: the outermost level in units of the clip, exactly."""

    @property
    @abstractmethod
    def breakpoints(self) -> FloatArray:
        """The inputs where a worst case can sit, in increasing order: ±clip, and where the law has a kink between."""

    @abstractmethod
    def log_pmf(self, x: npt.ArrayLike) -> FloatArray:
        """Natural logarithm of ``pmf(x)``; −∞ where the law is zero."""

    @abstractmethod
    def sampled_law(self, position: int) -> list[Fraction]:
        """The exact law of what ``encode`` draws at a position."""

    @property
    @abstractmethod
    def recipe(self) -> IntegerSampler:
        """What the encoders draw by."""

    @property
    @abstractmethod
    def variance_max(self) -> float:
        """The largest variance of one client's decoded value over all inputs."""

    # -- what the accountants ask -------------------------------------------------------------

    @property
    def trials(self) -> int:
        """Independent trials of which a coordinate is the sum, each affine in the input where ``affine``."""
        return 1

    @property
    def affine(self) -> bool:
        """Whether the law of a coordinate is affine on all of [-c, c], or made of trials that are."""
        return len(self.breakpoints) == 2

    @property
    def additive(self) -> "Additive | None":
        """The mechanism itself, if its noise does not depend on anybody's input."""
        return None

    @property
    def budgeted(self) -> bool:
        """Whether a vector is accounted for under its L2 budget, and not coordinate by coordinate at its worst."""
        return self.affine or self.additive is not None

    @property
    def exposed(self) -> bool:
        """Whether an input inside the clip has one outcome only: others who hold it add no noise to a sum."""
        return False

    def knot_laws(self, law: Law = "paper") -> FloatArray:
        """Log-probabilities at every knot, one row each."""
        return self.log_law(self.breakpoints, law)

    def trial_laws(self, law: Law = "paper") -> FloatArray:
        """Log-probabilities of one trial at every knot."""
        return self.knot_laws(law)

    def mean_error(self, clients: int, typical: float) -> float:
        """The worst-case mean squared error of a coordinate of the mean, in clip²; ``typical`` is its size in clips."""
        return self.variance_max / clients / self.clip**2

    @property
    def theorem_bound(self) -> float | None:
        """A bound on D_∞ of one client that a paper proves, if there is one."""
        return None

    # -- the grid -----------------------------------------------------------------------------

    @property
    def grid(self) -> Grid:
        """The levels, in the units of the input."""
        return Grid(self.clip * float(self.reach), self.levels)

    @property
    def bits(self) -> int:
        """Bits that carry one encoded coordinate before secure aggregation."""
        return (self.levels - 1).bit_length()

    def _unit(self, x: FloatArray) -> FloatArray:
        """The input clipped, in units of the clip."""
        return np.asarray(np.clip(x, -self.clip, self.clip) / self.clip)

    # -- the paper's law ----------------------------------------------------------------------

    def pmf(self, x: npt.ArrayLike) -> FloatArray:
        """The law of the output at input ``x`` (clipped), of shape ``x.shape + (levels,)``."""
        return np.exp(self.log_pmf(x))

    def variance(self, x: npt.ArrayLike) -> FloatArray:
        """Variance of one client's decoded value at input ``x``."""
        x = inputs("x", x)
        deviation = self.grid.values - np.clip(x, -self.clip, self.clip)[..., None]
        return np.asarray((self.pmf(x) * deviation**2).sum(axis=-1))

    # -- the law that is sampled --------------------------------------------------------------

    def position(self, x: npt.ArrayLike) -> IntArray:
        """Fixed-point position of ``x`` on the grid: the level in the high bits, the part of the cell in the low.

        Float rounding happens before the clamp only, so whatever it does, the result is a position whose law
        is accounted for.
        """
        return self.recipe.position(inputs("x", x))

    def sampled_pmf(self, x: npt.ArrayLike) -> npt.NDArray[np.object_]:
        """The exact law of what ``encode`` draws at input ``x``, as fractions."""
        positions = self.position(x)
        out = np.empty((*positions.shape, self.levels), dtype=object)
        for index in np.ndindex(positions.shape):
            out[index] = self.sampled_law(int(positions[index]))
        return out

    def log_law(self, x: npt.ArrayLike, law: Law = "paper") -> FloatArray:
        """Log-probabilities at input ``x``: of the paper's law, or of the one that is sampled."""
        if law == "paper":
            return self.log_pmf(x)
        if law == "sampled":
            return np.asarray(np.vectorize(_log_fraction, otypes=[np.float64])(self.sampled_pmf(x)))
        raise ValueError(f"law = {law!r}: must be 'paper' or 'sampled'")

    # -- encode and decode --------------------------------------------------------------------

    def encode(self, x: Any, rng: object, *, threads: int | None = None) -> Any:
        """Draw one level for each input: unsigned integers, in the array library of ``x`` (NumPy or torch).

        ``rng`` is a SecureRandom or a SeededRandom; with the latter the levels do not depend on ``threads`` (all
        processors if None). Floats of 32 and 64 bits are read in place: only the output is allocated.
        """
        return kernels.encode(self.recipe, x, rng, threads)

    def encode_sum(
        self, x: Any, rng: object, *, out: Any = None, threads: int | None = None, check: bool = True
    ) -> Any:
        """Encode every client's input and return only the sum of their levels, as 32-bit integers.

        ``x`` has one row for each client. With ``out`` the sum is added to it in place. ``check=False`` is for a caller
        who knows that all inputs are finite and that ``out`` has room: on a GPU nothing then waits for the host.

        >>> from rqm import RQM, SeededRandom
        >>> RQM().encode_sum(np.zeros((40, 3)), SeededRandom(1)).shape
        (3,)
        """
        return kernels.encode_sum(self.recipe, x, rng, out, threads, check)

    def sum_bits(self, clients: int) -> int:
        """Bits of a secure sum's coordinate: k with n (m−1) < 2**k, so that a sum modulo 2**k is the sum.

        >>> from rqm import RQM
        >>> RQM(levels=16).sum_bits(40)
        10
        """
        return int(whole("clients", clients, 1) * (self.levels - 1)).bit_length()

    def decode(self, z_sum: Any, clients: int, *, check: bool = True) -> Any:
        """Unbiased estimate of the mean of ``clients`` inputs from the sum of their levels, as float64.

        ``check=False`` is for a caller who knows that the sum is one that these clients can have sent.
        """
        clients = whole("clients", clients, 1)
        top = clients * (self.levels - 1)
        other = kernels.backend(z_sum)
        if other is not None:
            return other.decode(z_sum, self.grid.extent, top, clients, check)
        total = sums("z_sum", z_sum)
        out, extent = np.empty(total.shape), self.grid.extent
        flat, flat_out = total.reshape(-1), out.reshape(-1)
        for start in range(0, total.size, PIECE):
            part = flat[start : start + PIECE]
            if check and (part.min() < 0 or part.max() > top):
                raise kernels.sum_range_error(clients, top, part.min() if part.min() < 0 else part.max())
            flat_out[start : start + PIECE] = extent * (2 * part / top - 1)
        return out[()]


def _log_fraction(value: Fraction) -> float:
    return log(value.numerator) - log(value.denominator) if value else -np.inf
