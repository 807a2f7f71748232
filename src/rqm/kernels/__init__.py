"""Encoders with one sampling distribution: for the CPU (numba), the GPU (Triton) and any device of torch."""

import sys
from types import ModuleType
from typing import Any

import numpy as np

from rqm._util.checks import floats, not_finite, whole
from rqm.kernels.integer_sampler import IntegerSampler
from rqm.randomness import OneEach, require

MAX_INT32 = 2**31 - 1
"""Sums of messages are 32-bit integers."""


def word_type(bits: int) -> np.dtype[np.unsignedinteger]:
    """The smallest word that holds `bits` bits, at most 32."""
    return np.dtype("u1" if bits <= 8 else "<u2" if bits <= 16 else "<u4")


def backend(x: Any) -> ModuleType | None:
    """The module that encodes torch tensors if `x` is one; None for everything that NumPy reads."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        from rqm.kernels import torch_backend  # noqa: PLC0415 (torch is an extra)

        return torch_backend
    return None


def encode(sampler: IntegerSampler, x: Any, rng: object, threads: int | None) -> Any:
    """Draw one outcome for each input.

    Args:
        sampler: What to draw from.
        x: Numbers that are finite: a NumPy array or a torch tensor.
        rng: A `SecureRandom` or a `SeededRandom`.
        threads: The largest number of CPU threads; None: one for each processor.

    Returns:
        Unsigned integers of the smallest type, in the array library of `x` and on its device.

    Raises:
        ValueError: If an input is not finite.
        TypeError: If `x` does not hold numbers, or `rng` is not a source of randomness.
    """
    source = require(rng)
    threads = _check_threads(threads)
    torch_backend = backend(x)
    if torch_backend is not None:
        return torch_backend.encode(sampler, x, source, threads)
    from rqm.kernels import cpu  # noqa: PLC0415 (the compiler takes half a second, and a GPU machine may lack it)

    array = floats("x", x)
    out = np.empty(array.shape, dtype=sampler.dtype)
    if cpu.encode_rows(sampler, array.reshape(1, -1), source, out.reshape(-1), add=False, threads=threads):
        raise not_finite("x", array)
    return out


def encode_long(sampler: IntegerSampler, x: Any, rng: object, *, keep: Any) -> Any:
    """Draw one outcome for each input, as 64-bit integers.

    Args:
        sampler: What to draw from.
        x: Numbers that are finite. A NumPy array of float64 may be overwritten, to save memory.
        rng: A `SecureRandom` or a `SeededRandom`.
        keep: An array that must not change. If `x` shares memory with it, `x` is not overwritten.

    Returns:
        64-bit integers, in the array library of `x`.

    Raises:
        ValueError: If an input is not finite.
    """
    if backend(x) is not None:
        return encode(sampler, x, rng, None).long()
    if x.dtype != np.float64 or not x.flags.carray or np.may_share_memory(x, keep):
        return encode(sampler, x, rng, None).astype(np.int64)
    from rqm.kernels import cpu  # noqa: PLC0415

    out = x.view(np.int64)
    if cpu.encode_rows(sampler, x.reshape(1, -1), require(rng), out.reshape(-1), add=False, threads=None):
        raise ValueError("x: must not be so large that its rotation is not finite")
    return out


def encode_sum(sampler: IntegerSampler, x: Any, rng: object, out: Any, threads: int | None, check: bool = True) -> Any:
    """Draw one outcome for each input and add them up over the first axis, without storing the outcomes.

    Args:
        sampler: What to draw from.
        x: One row for each client: a NumPy array or a torch tensor.
        rng: A `SecureRandom`, a `SeededRandom`, or a `OneEach` with a source for each row.
        out: 32-bit integers to which the outcomes are added; None for a new array of zeros.
        threads: The largest number of CPU threads; None: one for each processor.
        check: Whether to check `x` and `out` before `out` is changed.

    Returns:
        The sum, 32-bit integers: `out` if it is given.

    Raises:
        ValueError: If an input is not finite, the sum could overflow, or `out` has the wrong shape or memory.
        TypeError: If `x`, `out` or `rng` has the wrong type.
    """
    source = rng if isinstance(rng, OneEach) else require(rng)
    threads = _check_threads(threads)
    torch_backend = backend(x)
    if torch_backend is not None:
        return torch_backend.encode_sum(sampler, x, source, out, threads, check)
    from rqm.kernels import cpu  # noqa: PLC0415

    array = floats("x", x)
    max_total = max_total_for(sampler, array.shape)
    total = np.zeros(array.shape[1:], dtype=np.int32) if out is None else out
    if out is not None:
        if type(out) is not np.ndarray or out.dtype != np.int32 or not out.flags.carray:
            raise TypeError("out: must be a contiguous, writable NumPy array of dtype int32")
        if np.may_share_memory(out, array):
            raise ValueError("out: must not share memory with x")
        check_sum_shape(out.shape, array.shape)
        flags = int(cpu.check_sum(array.reshape(-1), total.reshape(-1), np.int64(max_total))) if check else 0
        if flags & 1:
            raise not_finite("x", array)
        if flags & 2:
            raise overflow_error(max_total)
    rows = array.reshape(array.shape[0], -1)
    if cpu.encode_rows(sampler, rows, source, total.reshape(-1), add=True, threads=threads):
        raise not_finite("x", array)
    return total


def _check_threads(threads: int | None) -> int | None:
    return None if threads is None else whole("threads", threads, 1)


def max_total_for(sampler: IntegerSampler, shape: tuple[int, ...]) -> int:
    """The largest value that a 32-bit total may have before messages are added to it.

    Args:
        sampler: What the messages are drawn from.
        shape: The shape of the inputs, (clients, …).

    Returns:
        The value.

    Raises:
        ValueError: If there is no client, or if the sum could exceed 32 bits.
    """
    if not shape or not shape[0]:
        raise ValueError(f"x has shape {tuple(shape)}: must be (clients, …) with at least one client")
    max_total = MAX_INT32 - shape[0] * (sampler.modulus - 1)
    if max_total < 0:
        max_clients = MAX_INT32 // (sampler.modulus - 1)
        raise ValueError(
            f"x has {shape[0]} clients: at most {max_clients} of {sampler.modulus} levels fit a 32-bit sum"
        )
    return max_total


def check_sum_shape(out_shape: tuple[int, ...], x_shape: tuple[int, ...]) -> None:
    """Raise if a sum does not have the shape of one client's input.

    Args:
        out_shape: The shape of the sum.
        x_shape: The shape of the inputs, (clients, …).
    """
    if tuple(out_shape) != tuple(x_shape[1:]):
        raise ValueError(f"out has shape {tuple(out_shape)}: must be {tuple(x_shape[1:])}, that of one client's input")


def overflow_error(max_total: int) -> ValueError:
    """The error for a total that could overflow 32 bits."""
    return ValueError(f"out: every total must lie in 0..{max_total}, or the 32-bit sum could overflow")


def sum_range_error(clients: int, max_sum: int, value: float) -> ValueError:
    """The error for a sum that no clients can have sent.

    Args:
        clients: Number of clients.
        max_sum: The largest possible sum.
        value: The impossible value.

    Returns:
        The error.
    """
    return ValueError(f"z_sum contains {value:g}: a sum over {clients} clients lies in 0..{max_sum}")
