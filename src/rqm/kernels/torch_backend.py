"""Encodes torch tensors: with the compiled loops on the CPU, with Triton on a GPU, else with operations of torch.

It needs only torch and NumPy.
"""

from functools import cache, lru_cache
from importlib.util import find_spec

import numpy as np
import torch

from rqm import kernels
from rqm.kernels.integer_sampler import ALIAS_BITS, POSITION_BITS, POSITION_SHIFT, TABLE_BITS, IntegerSampler
from rqm.randomness import OneEach, SecureRandom, SeededRandom

MAX_TORCH_WORDS = 2**20
"""Random words that the operations of torch use at a time. The memory that they take stays small."""
_FRACTION_MASK = 2**POSITION_BITS - 1

Source = SecureRandom | SeededRandom


def encode(sampler: IntegerSampler, x: torch.Tensor, rng: Source, threads: int | None) -> torch.Tensor:
    """Draw one outcome for each input of a tensor, as `rqm.kernels.encode` does.

    Args:
        sampler: What to draw from.
        x: Numbers that are finite, on any device.
        rng: The source of random words.
        threads: The largest number of CPU threads; None: one for each processor. Ignored on other devices.

    Returns:
        Unsigned integers of the smallest type, on the device of `x`.
    """
    x = _to_floats(x)
    if _has_compiled_loops(x):
        return torch.from_numpy(np.asarray(kernels.encode(sampler, x.numpy(), rng, threads)))
    out = torch.empty(x.shape, dtype=torch.uint8 if sampler.modulus <= 256 else torch.uint16, device=x.device)
    if _has_triton(x):
        from rqm.kernels import cuda  # noqa: PLC0415 (needs Triton)

        if cuda.encode(sampler, x, rng, out):
            _check_finite(x)
    else:
        flat_x = x.reshape(-1)
        flat_out = out.view(-1)
        piece = max(1, MAX_TORCH_WORDS // sampler.words_per_coordinate)
        for start in range(0, x.numel(), piece):
            flat_out[start : start + piece] = draw(sampler, flat_x[start : start + piece], rng)
    return out


def encode_sum(
    sampler: IntegerSampler,
    x: torch.Tensor,
    rng: Source | OneEach,
    out: torch.Tensor | None,
    threads: int | None,
    check: bool = True,
) -> torch.Tensor:
    """Draw one outcome for each input of a tensor and add them up, as `rqm.kernels.encode_sum` does.

    Args:
        sampler: What to draw from.
        x: One row for each client, on any device.
        rng: A source of random words, or one for each row.
        out: 32-bit integers on the same device, to which outcomes are added; None: zeros.
        threads: The largest number of CPU threads; None: one for each processor. Ignored on other devices.
        check: Whether to check `x` and `out` before `out` is changed.

    Returns:
        The sum: `out` if it is given.
    """
    x = _to_floats(x)
    if out is not None and (not isinstance(out, torch.Tensor) or out.dtype != torch.int32 or not out.is_contiguous()):
        raise TypeError("out: must be a contiguous torch tensor of dtype int32")
    if out is not None and out.device != x.device:
        raise ValueError(f"out is on {out.device}: must be on {x.device}, where x is")
    if _has_compiled_loops(x):
        total = kernels.encode_sum(sampler, x.numpy(), rng, None if out is None else out.numpy(), threads, check)
        return torch.from_numpy(np.asarray(total)) if out is None else out
    max_total = kernels.max_total_for(sampler, tuple(x.shape))
    if out is not None:
        kernels.check_sum_shape(out.shape, x.shape)
        if check:
            _check_finite(x)
        if check and out.numel() and (int(out.min()) < 0 or int(out.max()) > max_total):
            raise kernels.overflow_error(max_total)
    total = torch.zeros(x.shape[1:], dtype=torch.int32, device=x.device) if out is None else out
    draws = list(zip(x[:, None], rng.sources, strict=True)) if isinstance(rng, OneEach) else [(x, rng)]
    for rows, source in draws:
        _add_rows(sampler, rows, source, total, check)
    return total


def _add_rows(sampler: IntegerSampler, x: torch.Tensor, rng: Source, total: torch.Tensor, check: bool) -> None:
    """Draw for all rows and add the outcomes to the total."""
    if _has_triton(x):
        from rqm.kernels import cuda  # noqa: PLC0415 (needs Triton)

        if cuda.encode_sum(sampler, x, rng, total, check):
            _check_finite(x)
        return
    flat_total = total.view(-1)
    piece = max(1, MAX_TORCH_WORDS // sampler.words_per_coordinate)
    for row in x.reshape(x.shape[0], -1):
        for start in range(0, len(row), piece):
            flat_total[start : start + piece] += draw(sampler, row[start : start + piece], rng)


def decode(z_sum: torch.Tensor, extent: float, max_sum: int, clients: int, check: bool) -> torch.Tensor:
    """The clients' mean, from their sum.

    Args:
        z_sum: The sum, from 0 to `max_sum`.
        extent: The mean of the sum `max_sum`; that of the sum 0 is -extent.
        max_sum: The largest possible sum.
        clients: Number of clients, for the message of the error.
        check: Whether to raise a ValueError for a sum that is not finite or out of range.

    Returns:
        The mean in float64.
    """
    total = finite("z_sum", z_sum) if check else z_sum.double()
    if check and total.numel():
        smallest = float(total.min())
        largest = float(total.max())
        if smallest < 0 or largest > max_sum:
            raise kernels.sum_range_error(clients, max_sum, smallest if smallest < 0 else largest)
    return extent * (2 * total / max_sum - 1)


def finite(name: str, x: torch.Tensor) -> torch.Tensor:
    """Return a tensor as float64, or raise if it contains NaN or infinity."""
    return finite_floats(name, x).double()


def finite_floats(name: str, x: torch.Tensor) -> torch.Tensor:
    """Return a tensor as float32 or float64 (the same memory if it is one), or raise if it contains NaN or infinity."""
    x = _to_floats(x, name)
    _check_finite(x, name)
    return x


def _to_floats(x: torch.Tensor, name: str = "x") -> torch.Tensor:
    if x.is_complex() or x.dtype == torch.bool:
        raise TypeError(f"{name} has dtype {x.dtype}: must be real numbers")
    if x.layout != torch.strided or x.is_meta:
        raise TypeError(
            f"{name} is a tensor of layout {x.layout} on {x.device}: must be a strided one that holds numbers"
        )
    x = x.detach().resolve_neg()
    if x.dtype not in (torch.float32, torch.float64):
        x = x.to(torch.float32 if x.is_floating_point() else torch.float64)
    return x.contiguous()


def _check_finite(x: torch.Tensor, name: str = "x") -> None:
    is_finite = torch.isfinite(x)
    if not bool(is_finite.all()):
        raise ValueError(f"{name} contains {x[~is_finite][0].item()}: every value must be finite")


@cache
def _is_installed(module: str) -> bool:
    return find_spec(module) is not None


def _has_compiled_loops(x: torch.Tensor) -> bool:
    return x.device.type == "cpu" and _is_installed("numba")


def _has_triton(x: torch.Tensor) -> bool:
    return x.is_cuda and _is_installed("triton")


@lru_cache(maxsize=64)
def _entries(sampler: IntegerSampler, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(sampler.entries.view(np.int64)).to(device)


def positions(sampler: IntegerSampler, x: torch.Tensor) -> torch.Tensor:
    """The fixed-point position of each input, as `IntegerSampler.position` computes it."""
    shifted = x.double() * sampler.scale + sampler.center
    shifted = shifted.clamp(sampler.low + POSITION_SHIFT, sampler.high + POSITION_SHIFT)
    return shifted.view(torch.int64) & (2**51 - 1)


def draw(sampler: IntegerSampler, x: torch.Tensor, rng: Source) -> torch.Tensor:
    """Draw one outcome for each input of a vector with operations of torch, from words made on the host.

    Args:
        sampler: What to draw from.
        x: A vector of floats on any device.
        rng: The source of random words.

    Returns:
        Outcomes in int64.
    """
    _check_finite(x)
    position = positions(sampler, x)
    words = torch.from_numpy(rng.words(sampler.words_per_coordinate * x.numel()).view(np.int64)).to(x.device)
    if sampler.trials:
        triples = words.view(-1, 3, x.numel())
        successes = torch.zeros_like(position)
        for trial in range(sampler.trials):
            a, b, c = triples[trial // 8]
            a_and_b = (a << 8) | ((b >> 56) & 0xFF)
            b_and_c = (b << 16) | ((c >> 48) & 0xFFFF)
            bits = (a >> 40, a >> 16, a_and_b, b >> 32, b >> 8, b_and_c, c >> 24, c)[trial % 8]
            successes += (bits & _FRACTION_MASK) < position
        return successes
    entries = _entries(sampler, x.device)
    rest_bits = TABLE_BITS - sampler.column_bits
    level = (position + ((words >> TABLE_BITS) & _FRACTION_MASK)) >> POSITION_BITS
    column = (words >> rest_bits) & ((1 << sampler.column_bits) - 1)
    entry = entries[((level if sampler.has_row_per_level else 0) << sampler.column_bits) | column]
    is_below_threshold = (words & ((1 << rest_bits) - 1)) < (entry >> ALIAS_BITS)
    outcome = torch.where(is_below_threshold, column, entry & ((1 << ALIAS_BITS) - 1))
    return outcome if sampler.has_row_per_level else (outcome + level) % sampler.modulus
