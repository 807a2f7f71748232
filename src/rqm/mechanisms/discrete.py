"""`DiscreteMechanism`: mechanisms that send integers, with pmfs that are known exactly.

Each has two pmfs: the paper's, in floats, and the one that is sampled, in fractions. Mechanisms whose pmf is a table
with a row for each level are a `TableMechanism` and define only these rows.
"""

from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from math import inf, log
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from rqm import kernels
from rqm._util.checks import FloatArray, inputs, real, sums, whole
from rqm.kernels.integer_sampler import IntArray, IntegerSampler
from rqm.mechanisms.base import Mechanism

if TYPE_CHECKING:
    from rqm.mechanisms.additive import Additive

PmfKind = Literal["paper", "sampled"]

MAX_LEVELS = 65_536
"""An outcome fits 16 bits."""
MAX_MARGIN = 1e25
"""In clips; beyond it the scale from inputs to positions overflows."""


@dataclass(frozen=True)
class Grid:
    """`levels` (m) evenly spaced values B(0), …, B(m−1) from `-extent` to `extent`.

    >>> Grid(extent=3.0, levels=4).values
    array([-3., -1.,  1.,  3.])
    """

    extent: float
    levels: int

    @property
    def step(self) -> float:
        """The distance between neighboring levels."""
        return 2 * self.extent / (self.levels - 1)

    @property
    def values(self) -> FloatArray:
        """The levels B(0), …, B(m−1)."""
        return np.linspace(-self.extent, self.extent, self.levels)


class DiscreteMechanism(Mechanism):
    """A mechanism with a pmf over the integers 0, …, levels − 1, unbiased for every input in [-clip, clip]."""

    has_integer_messages = True
    is_modular: ClassVar[bool] = False
    """Whether outcomes, and so sums, are taken modulo 2**bits."""
    clip: float
    levels: int
    bernoulli_trials: ClassVar[int] = 1
    """Independent trials that a coordinate is the sum of, each with a pmf that is affine in the input if `affine`."""
    additive: ClassVar["Additive | None"] = None
    """The mechanism itself, if its noise does not depend on the input."""
    has_noiseless_inputs: ClassVar[bool] = False
    """Whether an input inside the clip has a single outcome: other clients who hold it add no noise to a sum."""
    theorem_bound: ClassVar[float | None] = None
    """A bound on D_∞ of one client that a paper proves, if there is one."""

    @property
    def discrete(self) -> Self:
        """The mechanism itself."""
        return self

    def _validate(self, max_levels: int = MAX_LEVELS) -> None:
        # Beyond this range the scale from inputs to positions overflows.
        clip = real("clip", self.clip, "from 1e-280 to 1e+280", 1e-280, 1e280, closed="[]")
        object.__setattr__(self, "clip", clip)
        object.__setattr__(self, "levels", whole("levels", self.levels, 2, max_levels))

    # -- what a mechanism defines -------------------------------------------------------------

    @property
    @abstractmethod
    def output_range(self) -> Fraction:
        """X / c: the outermost level in units of the clip, exactly."""

    @property
    @abstractmethod
    def breakpoints(self) -> FloatArray:
        """The inputs that a worst case can have, in increasing order: ±clip, and where the pmf has a kink between."""

    @abstractmethod
    def log_pmf(self, x: npt.ArrayLike) -> FloatArray:
        """Natural logarithm of `pmf(x)`; −∞ where the pmf is zero."""

    @abstractmethod
    def sampled_pmf_at(self, position: int) -> list[Fraction]:
        """The exact pmf that `encode` samples from at a position."""

    @property
    @abstractmethod
    def sampler(self) -> IntegerSampler:
        """What the encoders sample from."""

    @property
    @abstractmethod
    def variance_max(self) -> float:
        """The largest variance of one client's decoded value over all inputs."""

    # -- what accounting needs ----------------------------------------------------------------

    @property
    def is_affine(self) -> bool:
        """Whether the pmf of a coordinate, or of each of its trials, is affine on all of [-clip, clip]."""
        return len(self.breakpoints) == 2

    @property
    def uses_l2_norm(self) -> bool:
        """Whether vectors are accounted for by their L2 norm, and not by the worst case of each coordinate."""
        return self.additive is not None or self.is_affine

    def breakpoint_log_pmfs(self, kind: PmfKind = "paper") -> FloatArray:
        """Log-probabilities at every breakpoint, one row each."""
        return self.log_pmf_at(self.breakpoints, kind)

    def trial_log_pmfs(self, kind: PmfKind = "paper") -> FloatArray:
        """Log-probabilities of one trial at every breakpoint."""
        return self.breakpoint_log_pmfs(kind)

    def mean_error(self, clients: int, typical: float) -> float:
        """The largest mean squared error of a coordinate of the mean, in clip².

        Args:
            clients: Number of clients.
            typical: Size of the mean, in clips; only additive noise depends on it.

        Returns:
            The error.
        """
        return self.variance_max / clients / self.clip**2

    # -- the grid -----------------------------------------------------------------------------

    @property
    def grid(self) -> Grid:
        """The levels, in the units of the input."""
        return Grid(self.clip * float(self.output_range), self.levels)

    @property
    def bits(self) -> int:
        """Bits of an encoded coordinate before secure aggregation."""
        return (self.levels - 1).bit_length()

    # -- the paper's pmf ----------------------------------------------------------------------

    def pmf(self, x: npt.ArrayLike) -> FloatArray:
        """The pmf of the output at input `x` (clipped), of shape `x.shape + (levels,)`."""
        return np.exp(self.log_pmf(x))

    def variance(self, x: npt.ArrayLike) -> FloatArray:
        """Variance of one client's decoded value at input `x`."""
        x = inputs("x", x)
        deviation = self.grid.values - np.clip(x, -self.clip, self.clip)[..., None]
        return np.asarray((self.pmf(x) * deviation**2).sum(axis=-1))

    # -- the pmf that is sampled --------------------------------------------------------------

    def position(self, x: npt.ArrayLike) -> IntArray:
        """Fixed-point positions on the grid: the level in the high bits, the fraction of the cell in the low bits.

        Floats are rounded only before positions are clamped. So every result is a position that is accounted for.
        """
        return self.sampler.position(inputs("x", x))

    def sampled_pmf(self, x: npt.ArrayLike) -> npt.NDArray[np.object_]:
        """The exact pmf that `encode` samples from at input `x`, as fractions."""
        positions = self.position(x)
        pmfs = np.empty((*positions.shape, self.levels), dtype=object)
        for index in np.ndindex(positions.shape):
            pmfs[index] = self.sampled_pmf_at(int(positions[index]))
        return pmfs

    def log_pmf_at(self, x: npt.ArrayLike, kind: PmfKind = "paper") -> FloatArray:
        """Log-probabilities at some inputs.

        Args:
            x: The inputs.
            kind: "paper" for the mechanism's definition, "sampled" for the integers that are sampled from.

        Returns:
            The logarithms, of shape `x.shape + (levels,)`.
        """
        if kind == "paper":
            return self.log_pmf(x)
        if kind == "sampled":
            return log_fractions(self.sampled_pmf(x))
        raise ValueError(f"kind = {kind!r}: must be 'paper' or 'sampled'")

    # -- encode and decode --------------------------------------------------------------------

    def encode(self, x: Any, rng: object, *, threads: int | None = None) -> Any:
        """Draw one level for each input.

        Args:
            x: Inputs, a NumPy array or a torch tensor. Floats of 32 and 64 bits are read in place.
            rng: A `SecureRandom` or a `SeededRandom`. With a seed the levels do not depend on `threads`.
            threads: CPU threads; None: all processors.

        Returns:
            Unsigned integers, in the array library of `x`.
        """
        return kernels.encode(self.sampler, x, rng, threads)

    def encode_sum(
        self, x: Any, rng: object, *, out: Any = None, threads: int | None = None, check: bool = True
    ) -> Any:
        """Encode all clients' inputs and return only the sum of their levels.

        Args:
            x: One row per client.
            rng: A `SecureRandom` or a `SeededRandom`.
            out: An array of 32-bit integers that the sum is added to in place.
            threads: CPU threads; None: all processors.
            check: False if all inputs are known to be finite and `out` to be large enough. A GPU then never waits for
                the host.

        Returns:
            The sum, as 32-bit integers.

        >>> from rqm import RQM, SeededRandom
        >>> RQM().encode_sum(np.zeros((40, 3)), SeededRandom(1)).shape
        (3,)
        """
        return kernels.encode_sum(self.sampler, x, rng, out, threads, check)

    def sum_bits(self, clients: int) -> int:
        """Bits of a coordinate of a secure sum: k with n (m−1) < 2**k, so that a sum modulo 2**k is the sum.

        >>> from rqm import RQM
        >>> RQM(levels=16).sum_bits(40)
        10
        """
        return int(whole("clients", clients, 1) * (self.levels - 1)).bit_length()

    def decode(self, z_sum: Any, clients: int, *, check: bool = True) -> Any:
        """An unbiased estimate of the mean of all inputs, as float64.

        Args:
            z_sum: The sum of the clients' levels.
            clients: Number of clients.
            check: Whether to check that these clients can have sent this sum.

        Returns:
            The mean, in the array library of the sum.

        Raises:
            ValueError: If a sum is below 0 or above clients · (levels − 1).
        """
        clients = whole("clients", clients, 1)
        largest = clients * (self.levels - 1)
        extent = self.grid.extent
        backend = kernels.backend(z_sum)
        if backend is not None:
            return backend.decode(z_sum, extent, largest, clients, check)
        total = sums("z_sum", z_sum)
        mean = np.empty(total.shape)
        flat_total, flat_mean = total.reshape(-1), mean.reshape(-1)
        size = 2**16  # so that intermediate arrays stay in the cache
        for start in range(0, total.size, size):
            chunk = flat_total[start : start + size]
            if check and (chunk.min() < 0 or chunk.max() > largest):
                raise kernels.sum_range_error(clients, largest, chunk.min() if chunk.min() < 0 else chunk.max())
            flat_mean[start : start + size] = extent * (2 * chunk / largest - 1)
        return mean[()]


def log_fractions(pmfs: npt.NDArray[Any]) -> FloatArray:
    """Natural logarithms of fractions; −∞ of zero."""
    logs = [log(p.numerator) - log(p.denominator) if p else -inf for p in pmfs.flat]
    return np.array(logs).reshape(pmfs.shape)
