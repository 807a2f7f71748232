"""The encoder for torch tensors: the CPU's for tensors there, Triton's on the GPU, else plain torch operations.

Nothing but torch and NumPy is needed here.
"""

from functools import cache, lru_cache
from importlib.util import find_spec

import numpy as np
import torch

from rqm import kernels
from rqm.kernels.recipe import ALIAS_BITS, POSITION_BITS, SHIFT, TABLE_BITS, Recipe
from rqm.randomness import OneEach, SecureRandom, SeededRandom

PIECE = 2**20
"""Words that the torch operations handle at a time."""
_PART = 2**POSITION_BITS - 1

Source = SecureRandom | SeededRandom


def encode(recipe: Recipe, x: torch.Tensor, rng: Source, threads: int | None) -> torch.Tensor:
    """Draw one outcome for each input: uint8, or uint16 beyond 256 outcomes, on the device of ``x``."""
    x = _floats(x)
    if _on_cpu(x):
        return torch.from_numpy(np.asarray(kernels.encode(recipe, x.numpy(), rng, threads)))
    out = torch.empty(x.shape, dtype=torch.uint8 if recipe.modulus <= 256 else torch.uint16, device=x.device)
    if _triton_runs(x):
        from rqm.kernels import cuda  # noqa: PLC0415 (needs Triton)

        if cuda.encode(recipe, x, rng, out):
            _check_finite(x)
    else:
        flat, flat_out, piece = x.reshape(-1), out.view(-1), max(1, PIECE // recipe.words)
        for a in range(0, x.numel(), piece):
            flat_out[a : a + piece] = _draw(recipe, flat[a : a + piece], rng)
    return out


def encode_sum(
    recipe: Recipe,
    x: torch.Tensor,
    rng: Source | OneEach,
    out: torch.Tensor | None,
    threads: int | None,
    check: bool = True,
) -> torch.Tensor:
    """Draw one outcome for each input and add them up over the first axis, in int32."""
    x = _floats(x)
    if out is not None and (not isinstance(out, torch.Tensor) or out.dtype != torch.int32 or not out.is_contiguous()):
        raise TypeError("out: must be a contiguous torch tensor of dtype int32")
    if out is not None and out.device != x.device:
        raise ValueError(f"out is on {out.device}: must be on {x.device}, where x is")
    if _on_cpu(x):
        total = kernels.encode_sum(recipe, x.numpy(), rng, None if out is None else out.numpy(), threads, check)
        return torch.from_numpy(np.asarray(total)) if out is None else out
    room = kernels.room_for(recipe, tuple(x.shape))
    if out is not None:
        if out.shape != x.shape[1:]:
            raise ValueError(
                f"out has shape {tuple(out.shape)}: must be {tuple(x.shape[1:])}, that of one client's input"
            )
        if check:
            _check_finite(x)
        if check and out.numel() and (int(out.min()) < 0 or int(out.max()) > room):
            raise kernels.no_room(room)
    total = torch.zeros(x.shape[1:], dtype=torch.int32, device=x.device) if out is None else out
    parts = [(x, rng)] if not isinstance(rng, OneEach) else list(zip(x[:, None], rng.sources, strict=True))
    for rows, source in parts:
        _add(recipe, rows, source, total, check)
    return total


def _add(recipe: Recipe, x: torch.Tensor, rng: Source, total: torch.Tensor, check: bool) -> None:
    """Draw for all rows, and add."""
    if _triton_runs(x):
        from rqm.kernels import cuda  # noqa: PLC0415 (needs Triton)

        if cuda.encode_sum(recipe, x, rng, total, check):
            _check_finite(x)
        return
    flat_total, piece = total.view(-1), max(1, PIECE // recipe.words)
    for row in x.reshape(x.shape[0], -1):
        for a in range(0, len(row), piece):
            flat_total[a : a + piece] += _draw(recipe, row[a : a + piece], rng)


def decode(z_sum: torch.Tensor, extent: float, top: int, clients: int, check: bool) -> torch.Tensor:
    """The clients' mean from a sum in 0..top, on the device of ``z_sum``."""
    total = finite("z_sum", z_sum) if check else z_sum.double()
    if check and total.numel():
        low, high = float(total.min()), float(total.max())
        if low < 0 or high > top:
            raise kernels.outside(clients, top, low if low < 0 else high)
    return extent * (2 * total / top - 1)


def finite(name: str, x: torch.Tensor) -> torch.Tensor:
    """Return ``x`` as float64 without NaN or infinity, or raise."""
    return finite_floats(name, x).double()


def finite_floats(name: str, x: torch.Tensor) -> torch.Tensor:
    """Return ``x`` as float32 or float64 (of the same memory where it is one) without NaN or infinity, or raise."""
    x = _floats(x, name)
    _check_finite(x, name)
    return x


def _floats(x: torch.Tensor, name: str = "x") -> torch.Tensor:
    if x.is_complex() or x.dtype == torch.bool:
        raise TypeError(f"{name} has dtype {x.dtype}: must be real numbers")
    if x.layout != torch.strided or x.is_meta:
        raise TypeError(
            f"{name} is a tensor of layout {x.layout} on {x.device}: must be a plain one that holds numbers"
        )
    x = x.detach().resolve_neg()
    if x.dtype not in (torch.float32, torch.float64):
        x = x.to(torch.float32 if x.is_floating_point() else torch.float64)
    return x.contiguous()


def _check_finite(x: torch.Tensor, name: str = "x") -> None:
    if not bool(torch.isfinite(x).all()):
        bad = x[~torch.isfinite(x)].flatten()[0].item()
        raise ValueError(f"{name} contains {bad}: every value must be finite")


@cache
def _has(module: str) -> bool:
    return find_spec(module) is not None


def _on_cpu(x: torch.Tensor) -> bool:
    return x.device.type == "cpu" and _has("numba")


def _triton_runs(x: torch.Tensor) -> bool:
    """Whether the kernel can run."""
    return x.is_cuda and _has("triton")


@lru_cache(maxsize=64)
def _entries(recipe: Recipe, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(recipe.entries.view(np.int64)).to(device)


def positions(recipe: Recipe, x: torch.Tensor) -> torch.Tensor:
    """The fixed-point position of each input, as ``Recipe.position`` computes it."""
    near = (x.double() * recipe.scale + recipe.centre).clamp(recipe.low + SHIFT, recipe.high + SHIFT)
    return near.view(torch.int64) & (2**51 - 1)


def _draw(recipe: Recipe, x: torch.Tensor, rng: Source) -> torch.Tensor:
    """Draw one outcome for each input of a vector by torch operations, from words made on the host."""
    _check_finite(x)
    position = positions(recipe, x)
    words = torch.from_numpy(rng.words(recipe.words * x.numel()).view(np.int64)).to(x.device)
    if recipe.trials:
        pieces = words.view(-1, 3, x.numel())
        ones = torch.zeros_like(position)
        for trial in range(recipe.trials):
            a, b, c = pieces[trial // 8]
            middle = (a << 8) | ((b >> 56) & 0xFF), (b << 16) | ((c >> 48) & 0xFFFF)
            bits = (a >> 40, a >> 16, middle[0], b >> 32, b >> 8, middle[1], c >> 24, c)[trial % 8]
            ones += (bits & _PART) < position
        return ones
    entries = _entries(recipe, x.device)
    rest_bits = TABLE_BITS - recipe.columns
    level = (position + ((words >> TABLE_BITS) & _PART)) >> POSITION_BITS
    column = (words >> rest_bits) & ((1 << recipe.columns) - 1)
    entry = entries[((level if recipe.rows else 0) << recipe.columns) | column]
    own = (words & ((1 << rest_bits) - 1)) < (entry >> ALIAS_BITS)
    outcome = torch.where(own, column, entry & ((1 << ALIAS_BITS) - 1))
    return outcome if recipe.rows else (outcome + level) % recipe.modulus
