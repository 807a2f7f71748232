"""What ``transforms`` does, for tensors of torch: by Triton's kernels on a GPU, by compiled loops on the CPU.

Nothing but torch and NumPy is needed here: where those are missing, torch's operations do it.
"""

from functools import cache, lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from rqm.encoding import choice, transforms
from rqm.kernels.integer_sampler import IntegerSampler
from rqm.kernels.torch_backend import positions

if TYPE_CHECKING:
    from rqm.encoding.transforms import Rotation

ROWS = 64
"""Rows whose positions are held at once."""
HUGE = 2.0**60
"""Rows that are longer than this are shortened in two steps."""


def rotate(x: torch.Tensor, rotation: "Rotation") -> torch.Tensor:
    """The rows of ``x``, times public signs, padded and transformed."""
    if _compiled(x):
        return _rotated(x, rotation, None)
    out = x.new_zeros((len(x), rotation.padded))
    torch.mul(x, signs(rotation.seed, out)[: x.shape[1]], out=out[:, : x.shape[1]])
    return hadamard(out, overwrite=True)


def rotate_back(y: torch.Tensor, rotation: "Rotation", *, overwrite: bool = False) -> torch.Tensor:
    """The rows of ``y`` transformed and times public signs, without the padding."""
    if not _compiled(y):
        return (hadamard(y, overwrite=overwrite) * signs(rotation.seed, y))[:, : rotation.dim]
    y = y.detach().contiguous()
    out = y if overwrite else torch.empty_like(y)
    bits = transforms.sign_bits(rotation.seed, rotation.padded)
    _on_cpu().rotate(y.numpy(), out.numpy(), signs=bits, signs_last=True, threads=torch.get_num_threads())
    return out[:, : rotation.dim]


def _rotated(x: torch.Tensor, rotation: "Rotation", factors: torch.Tensor | None) -> torch.Tensor:
    """The rows of ``x``, times factors, rotated by the CPU's kernel."""
    out = x.new_empty((len(x), rotation.padded))
    bits, own = transforms.sign_bits(rotation.seed, rotation.padded), None if factors is None else factors.numpy()
    given = x.detach().contiguous().numpy()
    _on_cpu().rotate(given, out.numpy(), factors=own, signs=bits, threads=torch.get_num_threads())
    return out


def signs(seed: int, like: torch.Tensor) -> torch.Tensor:
    """The public signs for rows of the width of ``like``."""
    return _signs(seed, like.shape[-1], like.dtype, like.device)


@lru_cache(maxsize=2)
def _signs(seed: int, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(transforms.signs(seed, count)).to(device).to(dtype)


@lru_cache(maxsize=4)
def chosen(seed: int, turn: int, count: int, of: int, device: torch.device) -> torch.Tensor:
    """The places of a public choice, on a device."""
    return torch.from_numpy(choice.chosen(seed, turn, count, of)).to(device)


def hadamard(x: torch.Tensor, *, overwrite: bool = False) -> torch.Tensor:
    """The orthonormal Walsh–Hadamard transform of every row; the number of columns is a power of two."""
    if _kernels_run(x) and (kernel := _kernel()).fits(x.shape[-1]):
        out: torch.Tensor = kernel.hadamard(x if overwrite else x.clone(memory_format=torch.contiguous_format))
        return out
    if _compiled(x):
        given = x.detach().contiguous()
        out = given if overwrite else torch.empty_like(given)
        rows = (part.view(-1, x.shape[-1]).numpy() for part in (given, out))
        _on_cpu().rotate(*rows, threads=torch.get_num_threads())
        return out
    found: torch.Tensor = transforms.factor_by_factor(x, lambda bits: _matrix(bits, x.dtype, x.device))
    return found


@lru_cache(maxsize=32)
def _matrix(bits: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(transforms.hadamard_matrix(bits)).to(dtype).to(device)


def _kernels_run(x: torch.Tensor) -> bool:
    return x.is_cuda and x.dtype == torch.float32 and _has_triton()


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _compiled(x: torch.Tensor) -> bool:
    """Whether the CPU's kernel can run."""
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and _has_numba()


@cache
def _has_numba() -> bool:
    return find_spec("numba") is not None


def _on_cpu() -> Any:
    from rqm.kernels import rotation  # noqa: PLC0415 (needs the compiler)

    return rotation


def _kernel() -> Any:
    from rqm.kernels import cuda_rotation  # noqa: PLC0415 (needs Triton)

    return cuda_rotation


def prepare(x: torch.Tensor, length: float | None, rotation: "Rotation | None") -> tuple[torch.Tensor, torch.Tensor]:
    """``transforms.prepare``; ``x`` may be overwritten."""
    if rotation is not None and _kernels_run(x) and (kernel := _kernel()).fits(rotation.padded):
        factors, finite = _factors(x, length)
        own = _signs(rotation.seed, rotation.padded, x.dtype, x.device)
        return kernel.rotate(x.contiguous(), own, factors), finite
    if rotation is not None and _compiled(x):
        factors, finite = _factors(x, length)
        return _rotated(x, rotation, factors), finite
    finite = l2_clip(x, length)
    return (x if rotation is None else rotation.forward(x)), finite


def l2_clip(x: torch.Tensor, length: float | None) -> torch.Tensor:
    """Scale the rows of ``x`` in place to at most ``length``; None leaves them. Returns which rows are finite.

    The others become zero. So does, on a GPU, a finite row whose length is beyond what a float32 can hold.
    """
    factors, finite = _factors(x, length)
    silence(x, ~finite)
    if length is not None:
        x.mul_(factors[:, None])
    return finite


def _factors(x: torch.Tensor, length: float | None) -> tuple[torch.Tensor, torch.Tensor]:
    """What each row is to be multiplied by, zero for rows that are not finite, and which are."""
    size = _size(x) if length is None else torch.linalg.vector_norm(x, 2, dim=1)
    if length is not None and not x.is_cuda and not (size < HUGE).all():
        # Squares overflow, and the factor of so long a row is no normal float: begin with a shorter row.
        largest = torch.linalg.vector_norm(x, torch.inf, dim=1)
        huge = torch.isfinite(largest) & ~(size < HUGE)
        x[huge] = x[huge] / largest[huge, None] * length
        size = torch.where(huge, torch.linalg.vector_norm(x, dim=1), size)
    finite = torch.isfinite(size)
    factors = torch.ones_like(size) if length is None else torch.where(size > length, length / size, 1.0)
    return torch.where(finite, factors, 0), finite


def _size(x: torch.Tensor) -> torch.Tensor:
    """A number for each row that is finite if, and only if, all of the row is."""
    if not x.is_cuda:
        total = x.sum(dim=1)  # many times faster than the largest
        if torch.isfinite(total).all():
            return total
    largest: torch.Tensor = torch.linalg.vector_norm(x, torch.inf, dim=1)
    return largest


def silence(x: torch.Tensor, rows: torch.Tensor) -> None:
    """Set some rows of ``x`` to zero, in place."""
    if _kernels_run(x) and x.is_contiguous():
        _kernel().zero_rows(x, rows)
    elif x.is_cuda or rows.any():  # to look costs a wait on the GPU, to fill a pass on the CPU
        x.masked_fill_(rows[:, None], 0.0)


def copied(x: torch.Tensor) -> torch.Tensor:
    """The same values, in float32 or float64, to be overwritten."""
    return x.clone() if x.dtype in (torch.float32, torch.float64) else x.double()


def total(x: torch.Tensor) -> torch.Tensor:
    """The sum of all rows, in float64."""
    return x.sum(dim=0, dtype=torch.float64)


def rows(some: list[torch.Tensor]) -> torch.Tensor:
    """Some vectors, a row each."""
    return torch.stack(some)


def squares(recipe: IntegerSampler, x: torch.Tensor, shift: int) -> torch.Tensor:
    """For every row the sum of (twice a position's distance from the middle, over 2**shift and rounded up)²."""
    if _kernels_run(x):
        sums: torch.Tensor = _kernel().squares(recipe, x.contiguous(), shift)
        return sums
    if _compiled(x):
        threads = torch.get_num_threads()
        return torch.from_numpy(_on_cpu().squares(recipe, x.detach().contiguous().numpy(), shift, threads))
    if len(x) > ROWS:  # a few at a time: the positions take several times the room of the floats
        return torch.cat([squares(recipe, part, shift) for part in torch.split(x, ROWS)])
    found: torch.Tensor = transforms.squares(recipe, positions(recipe, x), shift)
    return found
