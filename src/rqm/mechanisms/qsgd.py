"""QSGD: a vector's norm, and every coordinate over it at random to one of a few levels, told by Elias's code."""

from dataclasses import dataclass
from math import inf
from struct import error, pack, unpack
from typing import Any, ClassVar, final

import numpy as np
import numpy.typing as npt

from rqm._util.checks import whole
from rqm._util.words import many
from rqm.mechanisms.base import Mechanism, option
from rqm.randomness import SecureRandom, SeededRandom, require

IntArray = npt.NDArray[np.int64]


@final
@dataclass(frozen=True)
class QSGD(Mechanism):
    """QSGD with its norm and its code (Alistarh et al. 2017): unbiased, few bits, **no privacy**.

    A coordinate is ‖v‖₂ · sign(v_j) · l/s, l rounded at random to one of the two whole numbers next to s|v_j|/‖v‖₂. The
    norm travels as a float of 32 bits and the levels by Elias's omega code, so messages have no fixed length, and each
    has a scale of its own: they cannot be summed by a secure aggregator, and both tell about the data.

    >>> mech = QSGD(levels=2)
    >>> norm, levels = mech.quantized(np.array([3.0, 0.0, -4.0]), SeededRandom(1))
    >>> norm, unpacked(packed(norm, levels), 3)[1].tolist() == levels.tolist()
    (5.0, True)
    """

    kind: ClassVar[str] = "qsgd"
    private: ClassVar[bool] = False

    levels: int = option(4, "s, the levels above zero.")

    def __post_init__(self) -> None:
        """Validate every parameter."""
        object.__setattr__(self, "levels", whole("levels", self.levels, 1, 2**20))

    @property
    def bits(self) -> int:
        """Bits of a coordinate without Elias's code: a sign and a level; ``packed`` has what it takes with."""
        return (2 * self.levels).bit_length()

    def quantized(self, row: Any, rng: object) -> tuple[float, IntArray]:
        """The norm of a vector, and its levels from −s to s."""
        row = np.asarray(row, dtype=np.float64)
        norm = float(np.float32(np.linalg.norm(row)))  # as it is sent
        if not norm:
            return 0.0, np.zeros(len(row), dtype=np.int64)
        place = np.minimum(np.abs(row) / norm, 1.0) * self.levels
        coins = (require(rng).words(len(row)) >> np.uint64(11)) / 2.0**53
        low = np.floor(place)
        return norm, (np.sign(row) * (low + (coins < place - low))).astype(np.int64)

    def sends(self, rows: Any, rng: SecureRandom | SeededRandom) -> Any:
        """What clients' messages are decoded to, a row each, in the library of ``rows``."""
        found = [self.value(*self.quantized(row.cpu() if hasattr(row, "cpu") else row, rng)) for row in rows]
        if isinstance(rows, np.ndarray):
            return np.array(found)
        return rows.new_tensor(np.array(found))

    def value(self, norm: float, levels: IntArray) -> npt.NDArray[np.float64]:
        """The vector that a message stands for."""
        return np.asarray(norm / self.levels * levels)

    def variance(self, row: npt.ArrayLike) -> float:
        """The expected squared error of a vector: ‖v‖²/s² Σ p_j (1 − p_j); at most min(d/s², √d/s) ‖v‖²."""
        row = np.asarray(row, dtype=np.float64)
        norm = float(np.linalg.norm(row))
        part = np.abs(row) / (norm or 1.0) * self.levels % 1
        return float(norm**2 / self.levels**2 * (part * (1 - part)).sum())

    def decode(self, z_sum: Any, clients: int, *, check: bool = True) -> Any:
        """Return the mean of a sum of decoded vectors."""
        return z_sum / whole("clients", clients, 1)


# -- Elias's omega code -------------------------------------------------------------------------------


def omega(number: int) -> str:
    """The bits of a positive whole number: its binary digits after the code of how many they are, and a zero.

    >>> [omega(number) for number in (1, 2, 4, 17)]
    ['0', '100', '101000', '10100100010']
    """
    code = "0"
    while number > 1:
        digits = f"{number:b}"
        code, number = digits + code, len(digits) - 1
    return code


def omega_bits(numbers: IntArray) -> IntArray:
    """How long the codes of some positive whole numbers are."""
    left, total = np.array(numbers, dtype=np.int64), np.ones(np.shape(numbers), dtype=np.int64)
    while (left > 1).any():
        digits = np.where(left > 1, np.floor(np.log2(np.maximum(left, 1))).astype(np.int64) + 1, 0)
        total, left = total + digits, np.where(left > 1, digits - 1, 1)
    return total


def packed(norm: float, levels: IntArray) -> bytes:
    """A message: the norm, then for every level that is not zero how far it is from the last, its sign, its size."""
    places = np.flatnonzero(levels)
    gaps = np.diff(places, prepend=-1)
    parts = [omega(len(places) + 1)]
    for gap, level in zip(gaps.tolist(), levels[places].tolist(), strict=True):
        parts.append(omega(gap) + ("1" if level < 0 else "0") + omega(abs(level)))
    bits = "".join(parts)
    body = np.packbits(np.frombuffer(bits.encode(), dtype=np.uint8) - ord("0"))
    return pack("<f", norm) + body.tobytes()


def packed_bits(levels: IntArray) -> int:
    """How long that message is, in bits."""
    places = np.flatnonzero(levels)
    each = omega_bits(np.diff(places, prepend=-1)) + 1 + omega_bits(np.abs(levels[places]))
    return int(32 + omega_bits(np.array([len(places) + 1]))[0] + each.sum())


def unpacked(message: bytes, dim: int) -> tuple[float, IntArray]:
    """The norm and the levels that a message holds."""
    bits = "".join(map(str, np.unpackbits(np.frombuffer(message[4:], dtype=np.uint8)).tolist()))
    levels, at = np.zeros(whole("dim", dim, 0), dtype=np.int64), 0

    def next_number(at: int) -> tuple[int, int]:
        number = 1
        while bits[at] == "1":
            number, at = int(bits[at : at + number + 1], 2), at + number + 1
        return number, at + 1

    try:
        count, at = next_number(at)
        place = -1
        for _ in range(count - 1):
            gap, at = next_number(at)
            sign, (size, at) = bits[at], next_number(at + 1)
            place += gap
            levels[place] = -size if sign == "1" else size
        norm = float(unpack("<f", message[:4])[0])
        if not 0 <= norm < inf:
            raise ValueError(f"norm = {norm}: must be finite")
    except (IndexError, ValueError, OverflowError, error):  # its end is missing, or it holds numbers that nobody sends
        raise ValueError(f"message of {len(message)} bytes: must be one of {many(dim, 'coordinate')}") from None
    return norm, levels
