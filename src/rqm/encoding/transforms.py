"""What a client does to its vector before it is encoded: clip in L2, rotate; and the L2 budget in integers.

A randomized Hadamard rotation spreads the length of a vector evenly over its coordinates. It is public and orthogonal,
so it changes neither lengths nor privacy, and the server undoes it. The L2 budget that a guarantee rests on is checked
on the integer positions that the encoder rounds from: no float can slip through.

Arrays of NumPy are handled here, in float64; tensors of torch in ``tensors``, on their device.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import inf, sqrt
from typing import Any, final

import numpy as np
import numpy.typing as npt

from rqm import kernels
from rqm._util.checks import FloatArray, floats, padded, real
from rqm.kernels.integer_sampler import IntegerSampler
from rqm.mechanisms.discrete import DiscreteMechanism
from rqm.randomness import SeededRandom, Words

ROTATION = 5
"""The stream of a seed that the rotation of every round is drawn from."""
RADIX_BITS = 5
"""The transform multiplies by Hadamard matrices of 2**5 rows, one factor after the other."""
FLOAT_ROOM = 2.0**-15
"""Vectors are scaled to a little less than C, …"""
FLOAT_ERROR = 2.0**-16
"""… since scaling and rotating them in float32 may stretch them by this much, at the very most."""
SAFE = 1e-200, 1e300
"""Sums of squares in float64 that neither overflowed nor lost what matters."""


@final
@dataclass(frozen=True)
class Rotation:
    """A random rotation of vectors of ``dim`` coordinates, padded with zeros to a power of two.

    >>> rotation = Rotation(dim=3, seed=7)
    >>> y = rotation.forward(np.array([[3.0, 4.0, 0.0]]))
    >>> y.shape, round(float(np.linalg.norm(y)), 4), abs(rotation.inverse(y)).round(6).tolist()
    ((1, 4), 5.0, [[3.0, 4.0, 0.0]])
    """

    dim: int
    seed: int

    @property
    def padded(self) -> int:
        """The smallest power of two that is not below ``dim``."""
        return padded(self.dim)

    def forward(self, x: Any) -> Any:
        """Rotate the rows of ``x``: a new array of ``padded`` columns."""
        other = tensors(x)
        return other.rotate(x, self) if other is not None else _rotated(floats("x", x), self, None)

    def inverse(self, y: Any, *, overwrite: bool = False) -> Any:
        """Rotate back: rows of ``dim`` columns; ``overwrite`` lets ``y`` be used for them."""
        other = tensors(y)
        if other is not None:
            return other.rotate_back(y, self, overwrite=overwrite)
        y = floats("y", y)
        out = y if overwrite and y.dtype == np.float64 and y.flags.writeable else np.empty(y.shape)
        _kernel().rotate(y, out, signs=sign_bits(self.seed, self.padded), signs_last=True)
        return out[:, : self.dim]


def _rotated(x: npt.NDArray[np.floating], rotation: Rotation, factors: FloatArray | None) -> FloatArray:
    """The rows of ``x``, times factors, rotated."""
    out = np.empty((len(x), rotation.padded))
    _kernel().rotate(x, out, factors=factors, signs=sign_bits(rotation.seed, rotation.padded))
    return out


def _kernel() -> Any:
    from rqm.kernels import rotation  # noqa: PLC0415 (the compiler takes half a second)

    return rotation


@lru_cache(maxsize=8)
def rotation_seed(seed: int, turn: int) -> int:
    """The seed of a round's rotation."""
    return int(SeededRandom(seed, ROTATION, turn).words(1)[0] >> np.uint64(1))


def tensors(x: Any) -> Any:
    """The module that handles torch's tensors; None for an array of NumPy."""
    if kernels.backend(x) is None:
        return None
    from rqm.encoding import tensors as module  # noqa: PLC0415 (torch is an extra)

    return module


@lru_cache(maxsize=2)
def sign_bits(seed: int, count: int) -> Words:
    """The public signs of a rotation, a bit each, from the lowest of the first word on: one is +1."""
    return SeededRandom(seed).words(-(-count // 64))


def signs(seed: int, count: int) -> npt.NDArray[np.int8]:
    """The public signs of a rotation, ±1 each."""
    bits = np.unpackbits(sign_bits(seed, count).view(np.uint8), bitorder="little")[:count]
    return 2 * bits.astype(np.int8) - 1


def hadamard(x: Any) -> Any:
    """The orthonormal Walsh–Hadamard transform of every row; the number of columns is a power of two."""
    other = tensors(x)
    if other is not None:
        return other.hadamard(x)
    x = floats("x", x)
    out = np.empty(x.shape)
    _kernel().rotate(x, out)
    return out


def factor_by_factor(x: Any, matrix: Callable[[int], Any]) -> Any:
    """The transform as a product of small matrices, in any array library; ``matrix`` gives that of 2**bits rows."""
    shape, bits, done = x.shape, x.shape[-1].bit_length() - 1, 0
    if shape[-1] != 1 << bits:
        raise ValueError(f"x has {shape[-1]} columns: must be a power of two")
    while done < bits:
        step = min(RADIX_BITS, bits - done)
        # The first factor as one large product: many products with a single column are slow.
        x = matrix(step) @ x.reshape(-1, 1 << step, 1 << done) if done else x.reshape(-1, 1 << step) @ matrix(step)
        done += step
    return x.reshape(shape)


@lru_cache(maxsize=8)
def hadamard_matrix(bits: int) -> FloatArray:
    """The orthonormal Hadamard matrix of 2**bits rows."""
    out = np.ones((1, 1))
    for _ in range(bits):
        out = np.block([[out, out], [out, -out]]) / 2**0.5
    return out


# -- the L2 clip and its budget -------------------------------------------------------------------


def prepare(x: Any, length: float | None, rotation: Rotation | None) -> tuple[Any, Any]:
    """Scale the rows of ``x`` down to ``length`` at most (None leaves them), and rotate; also, which rows were finite.

    The others become zero, so that how many clients there are does not depend on data. Tensors may be overwritten.
    """
    other = tensors(x)
    if other is not None:
        rows, finite = other.prepare(x, length, rotation)
        return rows, finite
    x = floats("x", x)
    sums = _kernel().square_sums(x)
    if not ((sums > SAFE[0]) & (sums < SAFE[1])).all():
        x, finite = _clipped_carefully(x, length)
        return (x if rotation is None else rotation.forward(x)), finite
    factors = np.ones(len(x)) if length is None else np.minimum(1.0, length / np.sqrt(sums))
    finite = np.ones(len(x), dtype=bool)
    if rotation is not None:
        return _rotated(x, rotation, factors), finite
    return (x.astype(np.float64, copy=False) if length is None else np.multiply(x, factors[:, None])), finite


def _clipped_carefully(x: npt.NDArray[Any], length: float | None) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    """Scaled rows, of which some are not finite, zero, or so long or short that squares overflow or vanish."""
    x = np.asarray(x, dtype=np.float64)
    largest = np.abs(x).max(axis=1, initial=0.0)  # NaN stays
    finite = np.isfinite(largest)
    if not finite.all():
        x, largest = np.where(finite[:, None], x, 0.0), np.where(finite, largest, 0.0)
    if length is not None:
        scale = np.where(largest > 0, largest, 1.0)
        x = x / scale[:, None]
        norm = np.sqrt((x * x).sum(axis=1))
        x *= np.minimum(scale, length / np.maximum(norm, 0.5))[:, None]
    return x, finite


def budget(mech: DiscreteMechanism, bound: float) -> int:
    """The L2 budget in squared integer positions: (C/c · half the span of the positions)², rounded down."""
    span = mech.sampler.high - mech.sampler.low
    clip = real("l2_clip", bound, "a positive finite number", 0, inf) / mech.clip
    numerator, denominator = clip.as_integer_ratio()
    return (numerator * span) ** 2 // (2 * denominator) ** 2


def coarseness(recipe: IntegerSampler, count: int) -> int:
    """Low bits of each distance that are rounded up, so that the sum of ``count`` squares fits 64 bits."""
    return max(0, (count.bit_length() + 2 * (recipe.high - recipe.low).bit_length() - 61) // 2)


def limit(mech: DiscreteMechanism, bound: float, count: int) -> int:
    """The budget for ``squares`` of ``count`` coordinates."""
    return min(4 * budget(mech, bound) >> 2 * coarseness(mech.sampler, count), 2**63 - 1)


def usable_length(mech: DiscreteMechanism, bound: float, count: int) -> float:
    """What vectors of ``count`` coordinates are scaled to, below C, so that none of them breaks the budget.

    Rounding to positions moves each coordinate by up to half a position, squares are rounded up, and floats err. Where
    [-c, c] has many positions all of that is next to nothing; where it has few, it is what the budget has room for.
    """
    shift, recipe = coarseness(mech.sampler, count), mech.sampler
    if bound >= mech.clip * sqrt(count):  # then the clip of every coordinate is enough
        return (1 - FLOAT_ROOM) * bound
    room = sqrt(limit(mech, bound, count)) - (sqrt(count) if shift else 0.0)
    room = 2.0**shift * room - sqrt(count)  # in half positions
    length = min((1 - FLOAT_ROOM) * bound, (1 - FLOAT_ERROR) * room / (2 * recipe.scale))
    if not length > bound / 2:
        raise ValueError(
            f"l2_clip = {bound:g}: has room for {max(0.0, room) / 2:.3g} positions of the encoder, among which {count} "
            f"coordinates are rounded: must be larger, or the mechanism's clip ({mech.clip:g}) or margin smaller"
        )
    return length


def over_budget(mech: DiscreteMechanism, x: Any, bound: float) -> Any:
    """Which rows of ``x`` break the L2 budget, as the encoder will see them: in integers, exactly.

    Positions are those of the encoder, after its clamp; distances are from the middle of the clip.
    """
    other = tensors(x)
    count = x.shape[1]
    shift = coarseness(mech.sampler, count)
    if other is not None:
        found = other.squares(mech.sampler, x, shift)
    else:
        found = _kernel().squares(mech.sampler, floats("x", x), shift)
    return found > limit(mech, bound, count)


def within(mech: DiscreteMechanism, rows: Any, bound: float) -> Any:
    """The same rows; one that breaks the L2 budget becomes zero. None should."""
    over, other = over_budget(mech, rows, bound), tensors(rows)
    if other is None:
        rows[over] = 0.0
    else:
        other.silence(rows, over)
    return rows


def squares(recipe: IntegerSampler, positions: Any, shift: int) -> Any:
    """For every row the sum of (twice a position's distance from the middle, over 2**shift and rounded up)²."""
    twice = 2 * positions - (recipe.low + recipe.high)
    if shift:
        twice = (abs(twice) >> shift) + 1
    return (twice * twice).sum(axis=1)
