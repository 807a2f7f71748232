"""QSGD: a vector's norm, and its coordinates over the norm, rounded at random to a few levels, in Elias's code."""

from dataclasses import dataclass
from math import inf
from struct import error, pack, unpack
from typing import Any, final

import numpy as np
import numpy.typing as npt

from rqm._util.checks import whole
from rqm._util.text import many
from rqm.mechanisms.base import Mechanism, option
from rqm.randomness import SecureRandom, SeededRandom, require

IntArray = npt.NDArray[np.int64]


@final
@dataclass(frozen=True)
class QSGD(Mechanism):
    """QSGD with its norm and its code (Alistarh et al. 2017): unbiased, few bits, **no privacy**.

    A coordinate is ‖v‖₂ · sign(v_j) · l/s, with l rounded at random to one of the two integers next to s|v_j|/‖v‖₂. The
    norm is sent as a float of 32 bits and the levels in Elias's omega code. So messages have different lengths and
    scales: they cannot be summed by secure aggregation, and both leak data.

    >>> mech = QSGD(levels=2)
    >>> norm, levels = mech.quantized(np.array([3.0, 0.0, -4.0]), SeededRandom(1))
    >>> norm, unpacked(packed(norm, levels), 3)[1].tolist() == levels.tolist()
    (5.0, True)
    """

    kind = "qsgd"
    adds_noise = False

    levels: int = option(4, "s, the levels above zero.")

    def __post_init__(self) -> None:
        """Validate every parameter."""
        object.__setattr__(self, "levels", whole("levels", self.levels, 1, 2**20))

    @property
    def bits(self) -> int:
        """Bits of a sign and a level, without Elias's code."""
        return (2 * self.levels).bit_length()

    def quantized(self, row: Any, rng: object) -> tuple[float, IntArray]:
        """The message of a vector before it is coded.

        Args:
            row: The vector.
            rng: A `SecureRandom` or a `SeededRandom`, for rounding.

        Returns:
            The norm, as a float of 32 bits, and a level from −s to s for each coordinate.
        """
        row = np.asarray(row, dtype=np.float64)
        norm = float(np.float32(np.linalg.norm(row)))  # as it is sent
        if not norm:
            return 0.0, np.zeros(len(row), dtype=np.int64)
        position = np.minimum(np.abs(row) / norm, 1.0) * self.levels
        uniform = (require(rng).words(len(row)) >> np.uint64(11)) / 2.0**53
        low = np.floor(position)
        return norm, (np.sign(row) * (low + (uniform < position - low))).astype(np.int64)

    def sample_messages(self, rows: Any, rng: SecureRandom | SeededRandom) -> Any:
        """The decoded messages of clients.

        Args:
            rows: One vector per client: a NumPy array or a torch tensor.
            rng: A source of randomness, for rounding.

        Returns:
            One row per client, in the array library of `rows`.
        """
        messages = [self.quantized(row.cpu() if hasattr(row, "cpu") else row, rng) for row in rows]
        vectors = np.array([self.value(norm, levels) for norm, levels in messages])
        return vectors if isinstance(rows, np.ndarray) else rows.new_tensor(vectors)

    def value(self, norm: float, levels: IntArray) -> npt.NDArray[np.float64]:
        """The vector of a message: its norm times its levels over s.

        Args:
            norm: The norm.
            levels: The levels, from −s to s.

        Returns:
            The vector.
        """
        return np.asarray(norm / self.levels * levels)

    def variance(self, row: npt.ArrayLike) -> float:
        """The expected squared error of a vector: ‖v‖²/s² Σ p_j (1 − p_j); at most min(d/s², √d/s) ‖v‖²."""
        row = np.asarray(row, dtype=np.float64)
        norm = float(np.linalg.norm(row))
        fraction = np.abs(row) / (norm or 1.0) * self.levels % 1
        return float(norm**2 / self.levels**2 * (fraction * (1 - fraction)).sum())


# -- Elias's omega code -------------------------------------------------------------------------------


def omega(number: int) -> str:
    """Elias's omega code of a positive integer: its binary digits after the code of their number − 1, and a zero.

    >>> [omega(number) for number in (1, 2, 4, 17)]
    ['0', '100', '101000', '10100100010']
    """
    code = "0"
    while number > 1:
        digits = f"{number:b}"
        code = digits + code
        number = len(digits) - 1
    return code


def packed(norm: float, levels: IntArray) -> bytes:
    """A message: the norm, the number of nonzero levels, and of each its distance from the last, sign and size.

    Args:
        norm: The norm of the vector.
        levels: A level from −s to s for each coordinate.

    Returns:
        The message. Numbers other than the norm are in Elias's omega code.
    """
    indices = np.flatnonzero(levels)
    gaps = np.diff(indices, prepend=-1)
    codes = [omega(len(indices) + 1)]
    for gap, level in zip(gaps.tolist(), levels[indices].tolist(), strict=True):
        codes += [omega(gap), "1" if level < 0 else "0", omega(abs(level))]
    bits = np.frombuffer("".join(codes).encode(), dtype=np.uint8) - ord("0")
    return pack("<f", norm) + np.packbits(bits).tobytes()


def unpacked(message: bytes, dim: int) -> tuple[float, IntArray]:
    """Read a message that `packed` wrote.

    Args:
        message: The message.
        dim: Number of coordinates.

    Returns:
        The norm and the levels.

    Raises:
        ValueError: If it is no message of this many coordinates.
    """
    bits = iter(np.unpackbits(np.frombuffer(message[4:], dtype=np.uint8)).tolist())
    levels = np.zeros(whole("dim", dim, 0), dtype=np.int64)

    def next_number() -> int:
        number = 1
        while next(bits):
            digits = number
            number = 1
            for _ in range(digits):
                number = 2 * number + next(bits)
        return number

    try:
        index = -1
        for _ in range(next_number() - 1):
            index += next_number()
            sign = -1 if next(bits) else 1
            levels[index] = sign * next_number()
        norm = float(unpack("<f", message[:4])[0])
        if not 0 <= norm < inf:
            raise ValueError(f"norm = {norm}: must be finite")
    except (StopIteration, IndexError, ValueError, OverflowError, error):  # truncated, or not made by `packed`
        raise ValueError(f"message of {len(message)} bytes: must be one of {many(dim, 'coordinate')}") from None
    return norm, levels
