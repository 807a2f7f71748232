"""The encoders: one law, drawn on the CPU (numba) or on the GPU (Triton), and the packing of bits for the wire."""

import sys
from types import ModuleType
from typing import Any

import numpy as np

from rqm._util.checks import floats, not_finite, whole
from rqm.kernels.recipe import Recipe
from rqm.randomness import OneEach, require

MAX_SUM = 2**31 - 1


def backend(x: Any) -> ModuleType | None:
    """The module that encodes a torch tensor; None for whatever NumPy understands."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        from rqm.kernels import tensors  # noqa: PLC0415 (torch is an extra)

        return tensors
    return None


def encode(recipe: Recipe, x: Any, rng: object, threads: int | None) -> Any:
    """Draw one outcome for each input, in the array library of ``x``."""
    source = require(rng)
    if threads is not None:
        threads = whole("threads", threads, 1)
    other = backend(x)
    if other is not None:
        return other.encode(recipe, x, source, threads)
    from rqm.kernels import cpu  # noqa: PLC0415 (the compiler takes half a second, and a GPU machine may lack it)

    array = floats("x", x)
    out = np.empty(array.shape, dtype=recipe.dtype)
    if cpu.encode_into(recipe, array.reshape(1, -1), source, out.reshape(-1), add=False, threads=threads):
        raise not_finite("x", array)
    return out


def encode_long(recipe: Recipe, x: Any, rng: object, *, keep: Any) -> Any:
    """``encode``, as 64-bit integers; of NumPy written over ``x``, unless that is memory of ``keep``."""
    if backend(x) is not None:
        return encode(recipe, x, rng, None).long()
    if x.dtype != np.float64 or not x.flags.carray or np.may_share_memory(x, keep):
        return encode(recipe, x, rng, None).astype(np.int64)
    from rqm.kernels import cpu  # noqa: PLC0415

    out = x.view(np.int64)
    if cpu.encode_into(recipe, x.reshape(1, -1), require(rng), out.reshape(-1), add=False, threads=None):
        raise ValueError("x: must not be so large that what it is rotated to is not finite")
    return out


def encode_sum(recipe: Recipe, x: Any, rng: object, out: Any, threads: int | None, check: bool = True) -> Any:
    """Draw one outcome for each input and add them up over the first axis, without holding the outcomes."""
    source = rng if isinstance(rng, OneEach) else require(rng)
    if threads is not None:
        threads = whole("threads", threads, 1)
    other = backend(x)
    if other is not None:
        return other.encode_sum(recipe, x, source, out, threads, check)
    from rqm.kernels import cpu  # noqa: PLC0415

    array = floats("x", x)
    room = room_for(recipe, array.shape)
    total = np.zeros(array.shape[1:], dtype=np.int32) if out is None else out
    if out is not None:
        if type(out) is not np.ndarray or out.dtype != np.int32 or not out.flags.carray:
            raise TypeError("out: must be a contiguous, writable NumPy array of dtype int32")
        if np.may_share_memory(out, array):
            raise ValueError("out: must not share memory with x")
        if out.shape != array.shape[1:]:
            raise ValueError(f"out has shape {out.shape}: must be {array.shape[1:]}, that of one client's input")
        flags = int(cpu.unusable(array.reshape(-1), total.reshape(-1), np.int64(room))) if check else 0
        if flags & 1:
            raise not_finite("x", array)
        if flags & 2:
            raise no_room(room)
    rows = array.reshape(array.shape[0], -1)
    if cpu.encode_into(recipe, rows, source, total.reshape(-1), add=True, threads=threads):
        raise not_finite("x", array)
    return total


def room_for(recipe: Recipe, shape: tuple[int, ...]) -> int:
    """The largest value a 32-bit total may have before these clients are added to it."""
    if not shape or not shape[0]:
        raise ValueError(f"x has shape {tuple(shape)}: must be (clients, …) with at least one client")
    room = MAX_SUM - shape[0] * (recipe.modulus - 1)
    if room < 0:
        most = MAX_SUM // (recipe.modulus - 1)
        raise ValueError(f"x has {shape[0]} clients: at most {most} of {recipe.modulus} levels fit a 32-bit sum")
    return room


def no_room(room: int) -> ValueError:
    """The error for a total that these clients could push over 32 bits."""
    return ValueError(f"out: every total must lie in 0..{room}, or the 32-bit sum could overflow")


def outside(clients: int, top: int, found: float) -> ValueError:
    """The error for a sum that no clients can have sent."""
    return ValueError(f"z_sum contains {found:g}: a sum over {clients} clients lies in 0..{top}")
