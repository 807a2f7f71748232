"""What happens to a client's vector before it is encoded, and how the server undoes it.

Clip to Euclidean norm C, flatten by a random rotation (a Hadamard transform after random signs, public and new in
every round), and let the mechanism clip each coordinate at c = K·C/√d. After the rotation a coordinate is about normal
with standard deviation at most C/√d, so few are beyond c: K = 4 touches one in 16,000.
"""

from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any, final

import numpy as np
import torch

from rqm._checks import padded, real
from rqm.channel import Channel
from rqm.kernels.recipe import SHIFT
from rqm.randomness import SeededRandom

RADIX_BITS = 5
"""The transform multiplies by Hadamard matrices of 2**5 rows, one factor after the other."""
ROWS = 64
FLOAT_ROOM = 1 - 2.0**-15
"""Vectors are clipped a little below C, so that rounding in float32 does not push them over the budget in integers."""


@final
@dataclass(frozen=True)
class Rotation:
    """A random rotation of vectors of ``dim`` coordinates, padded with zeros to a power of two.

    >>> rotation = Rotation(dim=3, seed=7)
    >>> x = torch.tensor([[3.0, 4.0, 0.0]])
    >>> y = rotation.forward(x)
    >>> y.shape, round(float(y.norm()), 4), bool(torch.allclose(rotation.inverse(y), x, atol=1e-6))
    (torch.Size([1, 4]), 5.0, True)
    """

    dim: int
    seed: int

    @property
    def padded(self) -> int:
        """The smallest power of two that is not below ``dim``."""
        return padded(self.dim)

    def signs(self, like: torch.Tensor) -> torch.Tensor:
        """The public signs, ±1 each."""
        return _signs(self.seed, self.padded, like.dtype, like.device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rotate the rows of ``x``: a new tensor of ``padded`` columns."""
        out = x.new_zeros((len(x), self.padded))
        torch.mul(x, self.signs(x)[: self.dim], out=out[:, : self.dim])
        return hadamard(out, overwrite=True)

    def clip_and_forward(self, x: torch.Tensor, bound: float | None) -> tuple[torch.Tensor, torch.Tensor]:
        """``l2_clip``, then ``forward``: the rotated rows, and which were finite. ``x`` may be overwritten."""
        if _kernels_run(x) and (kernel := _kernel()).fits(self.padded):
            factors, finite = _factors(x, bound)
            return kernel.rotate(x.contiguous(), self.signs(x), factors), finite
        finite = l2_clip(x, bound)
        return self.forward(x), finite

    def inverse(self, y: torch.Tensor) -> torch.Tensor:
        """Rotate back: rows of ``dim`` columns."""
        return (hadamard(y) * self.signs(y))[:, : self.dim]


@lru_cache(maxsize=2)
def _signs(seed: int, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    words = SeededRandom(seed).words(-(-count // 64))
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")[:count]
    return torch.from_numpy(2 * bits.astype(np.int8) - 1).to(device).to(dtype)


def hadamard(x: torch.Tensor, *, overwrite: bool = False) -> torch.Tensor:
    """The orthonormal Walsh–Hadamard transform of every row; the number of columns is a power of two."""
    bits = x.shape[-1].bit_length() - 1
    if x.shape[-1] != 1 << bits:
        raise ValueError(f"x has {x.shape[-1]} columns: must be a power of two")
    if _kernels_run(x) and (kernel := _kernel()).fits(x.shape[-1]):
        out: torch.Tensor = kernel.hadamard(x if overwrite else x.clone(memory_format=torch.contiguous_format))
        return out
    shape, done = x.shape, 0
    while done < bits:
        step = min(RADIX_BITS, bits - done)
        x = _matrix(step, x.dtype, x.device) @ x.reshape(-1, 1 << step, 1 << done)
        done += step
    return x.reshape(shape)


def _kernels_run(x: torch.Tensor) -> bool:
    return x.is_cuda and x.dtype == torch.float32 and _has_triton()


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _kernel() -> Any:
    from rqm.kernels import cuda_rotation  # noqa: PLC0415 (needs Triton)

    return cuda_rotation


@lru_cache(maxsize=32)
def _matrix(bits: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    out = torch.ones((1, 1), dtype=torch.float64)
    for _ in range(bits):
        out = torch.cat([torch.cat([out, out], 1), torch.cat([out, -out], 1)]) / 2**0.5
    return out.to(dtype).to(device)


def l2_clip(x: torch.Tensor, bound: float | None) -> torch.Tensor:
    """Scale the rows of ``x`` in place to at most ``bound`` (a little less, see ``FLOAT_ROOM``); None leaves them.

    Returns which rows are finite. The others become zero, so that the number of clients does not depend on data.
    """
    factors, finite = _factors(x, bound)
    silence(x, ~finite)
    if bound is not None:
        x.mul_(factors[:, None])
    return finite


def _factors(x: torch.Tensor, bound: float | None) -> tuple[torch.Tensor, torch.Tensor]:
    """What each row is to be multiplied by, zero for rows that are not finite, and which are."""
    size = torch.linalg.vector_norm(x, torch.inf if bound is None else 2, dim=1)
    finite = torch.isfinite(size)
    factors = torch.ones_like(size) if bound is None else (FLOAT_ROOM * bound / size).clamp(max=1)
    return torch.where(finite, factors, 0), finite


def silence(x: torch.Tensor, rows: torch.Tensor) -> None:
    """Set some rows of ``x`` to zero, in place."""
    if _kernels_run(x) and x.is_contiguous():
        _kernel().silence(x, rows)
    elif x.is_cuda or rows.any():  # to look costs a wait on the GPU, to fill a pass on the CPU
        x.masked_fill_(rows[:, None], 0.0)


def budget(mech: Channel, bound: float) -> int:
    """The L2 budget in squared integer positions: (C/c · half the span of the positions)², rounded down."""
    span = mech.recipe.high - mech.recipe.low
    clip = real("l2_clip", bound, "a positive finite number", 0, float("inf")) / mech.clip
    numerator, denominator = clip.as_integer_ratio()
    return (numerator * span) ** 2 // (2 * denominator) ** 2


def over_budget(mech: Channel, x: torch.Tensor, bound: float) -> torch.Tensor:
    """Which rows of ``x`` break the L2 budget, as the encoder will see them: in integers, exactly.

    Positions are those of the encoder, after its clamp; distances are from the middle of the clip.
    """
    recipe = mech.recipe
    limit, most = 4 * budget(mech, bound), recipe.high - recipe.low
    shift = max(0, (x.shape[1].bit_length() + 2 * most.bit_length() - 61) // 2)
    # With a shift the sum would not fit 64 bits: every distance is rounded up to a multiple of 2**shift.
    return _squares(mech, x, shift) > min(limit >> 2 * shift, 2**63 - 1)


def _squares(mech: Channel, x: torch.Tensor, shift: int) -> torch.Tensor:
    """For every row the sum of (twice a position's distance from the middle, over 2**shift and rounded up)²."""
    if _kernels_run(x):
        sums: torch.Tensor = _kernel().squares(mech.recipe, x.contiguous(), shift)
        return sums
    if len(x) > ROWS:  # a few at a time: the positions take several times the room of the floats
        return torch.cat([_squares(mech, part, shift) for part in torch.split(x, ROWS)])
    recipe = mech.recipe
    near = (x.double() * recipe.scale + recipe.centre).clamp(recipe.low + SHIFT, recipe.high + SHIFT)
    twice = 2 * (near.view(torch.int64) & (2**51 - 1)) - (recipe.low + recipe.high)
    if shift:
        twice = (twice.abs() >> shift) + 1
    return (twice * twice).sum(dim=1)
