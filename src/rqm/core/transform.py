"""The public transform of a vector: clip in L2, rotate, choose coordinates.

A randomized Hadamard rotation spreads the length of a vector evenly over its coordinates. It is
orthogonal, so it changes neither lengths nor privacy, and the server inverts it.

A choice of coordinates is a linear map M from d to k coordinates, scaled so that E[MᵀM] = I. So
decoded means stay unbiased. Chosen vectors are clipped again, and the guarantee is that of k
coordinates within this second clip (docs/few-coordinates.md).

NumPy arrays are transformed here, in float64; torch tensors in `torch_transform`, on their device.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import Any, final

import numpy as np
import numpy.typing as npt

from rqm import kernels
from rqm._util.checks import FloatArray, floats, padded, whole
from rqm.randomness import SeededRandom, Words

ROTATION_STREAM, CHOICE_STREAM = 5, 8
"""The streams of a public seed for each round's rotation and choice of coordinates."""
FLOAT_ROOM = 2.0**-15
"""Vectors are scaled to this fraction below their bound, since float32 operations lengthen them slightly."""


@final
@dataclass(frozen=True)
class Rotation:
    """A random rotation of vectors, padded with zeros to a power of two.

    Attributes:
        dim: Coordinates of a vector.
        seed: Public seed of the signs.

    >>> rotation = Rotation(dim=3, seed=7)
    >>> y = rotation.forward(np.array([[3.0, 4.0, 0.0]]))
    >>> y.shape, round(float(np.linalg.norm(y)), 4), abs(rotation.inverse(y)).round(6).tolist()
    ((1, 4), 5.0, [[3.0, 4.0, 0.0]])
    """

    dim: int
    seed: int

    @property
    def padded(self) -> int:
        """The smallest power of two that is not below `dim`."""
        return padded(self.dim)

    def forward(self, x: Any) -> Any:
        """Rotate the rows of `x`: a new array of `padded` columns."""
        torch_transform = torch_backend(x)
        return torch_transform.rotate(x, self) if torch_transform is not None else _rotate(floats("x", x), self, None)

    def inverse(self, y: Any, *, overwrite: bool = False) -> Any:
        """Rotate back.

        Args:
            y: Rotated rows.
            overwrite: Whether `y` may be overwritten.

        Returns:
            Rows of `dim` columns.
        """
        torch_transform = torch_backend(y)
        if torch_transform is not None:
            return torch_transform.rotate_back(y, self, overwrite=overwrite)
        y = floats("y", y)
        out = y if overwrite and y.dtype == np.float64 and y.flags.writeable else np.empty(y.shape)
        _kernel().rotate(y, out, signs=sign_bits(self.seed, self.padded), signs_last=True)
        return out[:, : self.dim]


@final
@dataclass(frozen=True)
class CoordinateChoice:
    """A random choice of rotated and padded coordinates, the same for all clients of a round.

    Attributes:
        dim: Coordinates of a vector, before padding.
        count: Coordinates that are chosen.
        seed: Public seed of the choice.
        round_index: The round.

    >>> choice, rotation = CoordinateChoice(dim=6, count=4, seed=1, round_index=0), Rotation(dim=6, seed=3)
    >>> chosen = choice.forward(rotation.forward(np.ones((1, 6))))
    >>> chosen.shape, rotation.inverse(choice.inverse(chosen)).shape
    ((1, 4), (1, 6))
    """

    dim: int
    count: int
    seed: int
    round_index: int

    @property
    def scale(self) -> float:
        """√(d/k), which keeps lengths on average."""
        return sqrt(padded(self.dim) / self.count)

    def forward(self, rows: Any) -> Any:
        """The chosen coordinates of rotated rows."""
        return rows[:, self._indices(rows)] * self.scale

    def inverse(self, rows: Any) -> Any:
        """Rotated rows that are zero where nothing was chosen."""
        shape = (len(rows), padded(self.dim))
        out = np.zeros(shape) if torch_backend(rows) is None else rows.new_zeros(shape)
        out[:, self._indices(rows)] = rows * self.scale
        return out

    def _indices(self, rows: Any) -> Any:
        torch_transform, path = torch_backend(rows), (self.seed, self.round_index, self.count, padded(self.dim))
        if torch_transform is None:
            return choose_indices(*path)
        return torch_transform.choose_indices(*path, rows.device)


@final
@dataclass(frozen=True)
class Transform:
    """The transform of one round: clip, rotate, choose coordinates, clip again.

    Attributes:
        length: Vectors are scaled down to this length; None: they are not clipped in L2.
        rotation: The rotation; None: vectors are not rotated.
        choice: The choice of coordinates; None: all.
        chosen_length: Chosen vectors are scaled down to this length.
    """

    length: float | None
    rotation: Rotation | None
    choice: CoordinateChoice | None = None
    chosen_length: float | None = None

    def forward(self, rows: Any) -> tuple[Any, Any]:
        """Transform vectors, a row each. Tensors may be overwritten.

        Args:
            rows: The vectors.

        Returns:
            The transformed rows, and which rows were finite. The others become zero.
        """
        rows, finite = clip_and_rotate(rows, self.length, self.rotation)
        if self.choice is not None:
            rows = clip_and_rotate(self.choice.forward(rows), self.chosen_length, None)[0]
        return rows, finite

    def inverse(self, row: Any) -> Any:
        """The vector of a transformed mean, which may be overwritten."""
        rows = row[None] if self.choice is None else self.choice.inverse(row[None])
        return (rows if self.rotation is None else self.rotation.inverse(rows, overwrite=True))[0]


def torch_backend(x: Any) -> Any:
    """The module that transforms torch tensors; None for a NumPy array."""
    if kernels.backend(x) is None:
        return None
    from rqm.core import torch_transform  # noqa: PLC0415 (torch is an extra)

    return torch_transform


# -- the rotation ---------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def rotation_seed(seed: int, round_index: int) -> int:
    """The seed of a round's rotation."""
    return int(SeededRandom(seed, ROTATION_STREAM, round_index).words(1)[0] >> np.uint64(1))


@lru_cache(maxsize=2)
def sign_bits(seed: int, count: int) -> Words:
    """The signs of a rotation, one bit each, lowest bit of the first word first. A set bit is +1."""
    return SeededRandom(seed).words(-(-count // 64))


def signs(seed: int, count: int) -> npt.NDArray[np.int8]:
    """The signs of a rotation, ±1 each."""
    bits = np.unpackbits(sign_bits(seed, count).view(np.uint8), bitorder="little")[:count]
    return 2 * bits.astype(np.int8) - 1


def hadamard(x: Any) -> Any:
    """The orthonormal Walsh–Hadamard transform of every row; the number of columns is a power of two."""
    torch_transform = torch_backend(x)
    if torch_transform is not None:
        return torch_transform.hadamard(x)
    x = floats("x", x)
    out = np.empty(x.shape)
    _kernel().rotate(x, out)
    return out


def multiply_factors(x: Any, matrix: Callable[[int], Any]) -> Any:
    """The transform as a product of small matrices, in any array library.

    Args:
        x: Rows whose number of columns is a power of two.
        matrix: Gives the Hadamard matrix of 2**bits rows in the library of `x`.

    Returns:
        The transformed rows.
    """
    shape, bits, done = x.shape, x.shape[-1].bit_length() - 1, 0
    factor_bits = 5  # the transform multiplies by Hadamard matrices of 2**5 rows, one factor after the other
    if shape[-1] != 1 << bits:
        raise ValueError(f"x has {shape[-1]} columns: must be a power of two")
    while done < bits:
        step = min(factor_bits, bits - done)
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


def _rotate(x: npt.NDArray[np.floating], rotation: Rotation, factors: FloatArray | None) -> FloatArray:
    """The rows of `x`, times factors, rotated."""
    out = np.empty((len(x), rotation.padded))
    _kernel().rotate(x, out, factors=factors, signs=sign_bits(rotation.seed, rotation.padded))
    return out


def _kernel() -> Any:
    from rqm.kernels import rotation  # noqa: PLC0415 (the compiler takes half a second)

    return rotation


# -- the L2 clip ----------------------------------------------------------------------------------


def clip_and_rotate(x: Any, length: float | None, rotation: Rotation | None) -> tuple[Any, Any]:
    """Scale rows down to a length, and rotate them. Tensors may be overwritten.

    Rows that are not finite become zero, so that the number of clients does not depend on data.

    Args:
        x: The rows.
        length: The largest length; None: rows keep theirs.
        rotation: The rotation; None: rows are not rotated.

    Returns:
        The rows, and which of them were finite.
    """
    torch_transform = torch_backend(x)
    if torch_transform is not None:
        rows, finite = torch_transform.clip_and_rotate(x, length, rotation)
        return rows, finite
    x = floats("x", x)
    sums = _kernel().square_sums(x)
    low, high = 1e-200, 1e300  # sums of squares in float64 that neither overflow nor lose precision
    if not ((sums > low) & (sums < high)).all():
        x, finite = _clip_extremes(x, length)
        return (x if rotation is None else rotation.forward(x)), finite
    factors = np.ones(len(x)) if length is None else np.minimum(1.0, length / np.sqrt(sums))
    finite = np.ones(len(x), dtype=bool)
    if rotation is not None:
        return _rotate(x, rotation, factors), finite
    return (x.astype(np.float64, copy=False) if length is None else np.multiply(x, factors[:, None])), finite


def _clip_extremes(x: npt.NDArray[Any], length: float | None) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    """Clip rows some of which are not finite, zero, or so long or short that squares overflow or vanish."""
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


# -- the choice of coordinates --------------------------------------------------------------------


def second_clip(count: int) -> float:
    """The L2 clip after a choice of k coordinates, over the clip before it: 1 + 3/√(2k).

    The squared norm of any unit vector has variance at most 2/k after the choice, because random
    signs make the tails of rotated coordinates no heavier than a Gaussian's.

    >>> round(second_clip(16_384), 4)
    1.0166
    """
    deviations = 3.0  # of a chosen vector's norm, which the second clip does not cut off
    return 1 + deviations / sqrt(2 * whole("coordinates", count, 1))


def max_clipped_length(count: int) -> float:
    """The largest such fraction for any vector, from the variance of the squared norm."""
    variance, slack = 2 / count, second_clip(count) ** 2 - 1
    return (sqrt(variance + slack**2) - slack) / 4 / (1 + slack)


@lru_cache(maxsize=4)
def choose_indices(seed: int, round_index: int, count: int, total: int) -> npt.NDArray[np.int64]:
    """A random set of indices, sorted. All sets of this size are equally likely.

    Args:
        seed: Seed of the choice.
        round_index: The round.
        count: Size of the set.
        total: Number of indices, a power of two.

    Returns:
        The set.

    >>> first = choose_indices(1, 0, 3, 8).tolist()
    >>> first == choose_indices(1, 0, 3, 8).tolist(), first == choose_indices(1, 1, 3, 8).tolist()
    (True, False)
    """
    if 2 * count > total:  # draw the indices that are left out
        is_chosen = np.ones(total, dtype=bool)
        is_chosen[_distinct(SeededRandom(seed, CHOICE_STREAM, round_index), total - count, total)] = False
        return np.flatnonzero(is_chosen)
    return np.sort(_distinct(SeededRandom(seed, CHOICE_STREAM, round_index), count, total))


def _distinct(source: SeededRandom, count: int, total: int) -> npt.NDArray[np.int64]:
    """The first distinct numbers of a sequence of uniform ones."""
    drawn = np.empty(0, dtype=np.int64)
    while True:
        words = source.words(3 * count // 2 + 64) & np.uint64(total - 1)
        drawn = np.concatenate([drawn, words.astype(np.int64)])
        values, first = np.unique(drawn, return_index=True)
        if len(values) >= count:
            return drawn[np.sort(first)[:count]]
