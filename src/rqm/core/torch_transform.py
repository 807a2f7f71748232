"""`transform` and `quantizer` for torch tensors: Triton kernels on a GPU, compiled loops on the CPU.

Where Triton or Numba is missing, torch operations do the same.
"""

from functools import cache, lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from rqm.core import quantizer, transform
from rqm.kernels.integer_sampler import IntegerSampler
from rqm.kernels.torch_backend import positions

if TYPE_CHECKING:
    from rqm.core.transform import Rotation


def rotate(x: torch.Tensor, rotation: "Rotation") -> torch.Tensor:
    """The rows of `x`, times public signs, padded and transformed."""
    if _has_cpu_kernel(x):
        return _rotated(x, rotation, None)
    out = x.new_zeros((len(x), rotation.padded))
    torch.mul(x, signs(rotation.seed, out)[: x.shape[1]], out=out[:, : x.shape[1]])
    return hadamard(out, overwrite=True)


def rotate_back(y: torch.Tensor, rotation: "Rotation", *, overwrite: bool = False) -> torch.Tensor:
    """`Rotation.inverse` for tensors.

    Args:
        y: Rotated rows.
        rotation: The rotation.
        overwrite: Whether `y` may be overwritten.

    Returns:
        Rows of `rotation.dim` columns.
    """
    if not _has_cpu_kernel(y):
        return (hadamard(y, overwrite=overwrite) * signs(rotation.seed, y))[:, : rotation.dim]
    y = y.detach().contiguous()
    out = y if overwrite else torch.empty_like(y)
    bits = transform.sign_bits(rotation.seed, rotation.padded)
    _import_cpu_kernel().rotate(y.numpy(), out.numpy(), signs=bits, signs_last=True, threads=torch.get_num_threads())
    return out[:, : rotation.dim]


def _rotated(x: torch.Tensor, rotation: "Rotation", factors: torch.Tensor | None) -> torch.Tensor:
    """The rows of `x`, times factors, rotated by the CPU's kernel."""
    out = x.new_empty((len(x), rotation.padded))
    bits, scale = transform.sign_bits(rotation.seed, rotation.padded), None if factors is None else factors.numpy()
    values = x.detach().contiguous().numpy()
    _import_cpu_kernel().rotate(values, out.numpy(), factors=scale, signs=bits, threads=torch.get_num_threads())
    return out


def signs(seed: int, template: torch.Tensor) -> torch.Tensor:
    """The public signs for rows of the width of `template`."""
    return _signs(seed, template.shape[-1], template.dtype, template.device)


@lru_cache(maxsize=2)
def _signs(seed: int, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(transform.signs(seed, count)).to(device).to(dtype)


@lru_cache(maxsize=4)
def choose_indices(seed: int, round_index: int, count: int, total: int, device: torch.device) -> torch.Tensor:
    """`transform.choose_indices`, on a device.

    Args:
        seed: See there.
        round_index: See there.
        count: See there.
        total: See there.
        device: Where the indices are kept.

    Returns:
        The indices.
    """
    return torch.from_numpy(transform.choose_indices(seed, round_index, count, total)).to(device)


def hadamard(x: torch.Tensor, *, overwrite: bool = False) -> torch.Tensor:
    """The orthonormal Walsh–Hadamard transform of every row; the number of columns is a power of two."""
    if _has_gpu_kernel(x) and (kernel := _import_gpu_kernel()).fits(x.shape[-1]):
        out: torch.Tensor = kernel.hadamard(x if overwrite else x.clone(memory_format=torch.contiguous_format))
        return out
    if _has_cpu_kernel(x):
        values = x.detach().contiguous()
        out = values if overwrite else torch.empty_like(values)
        source, target = (array.view(-1, x.shape[-1]).numpy() for array in (values, out))
        _import_cpu_kernel().rotate(source, target, threads=torch.get_num_threads())
        return out
    product: torch.Tensor = transform.multiply_factors(x, lambda bits: _matrix(bits, x.dtype, x.device))
    return product


@lru_cache(maxsize=32)
def _matrix(bits: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(transform.hadamard_matrix(bits)).to(dtype).to(device)


def _has_gpu_kernel(x: torch.Tensor) -> bool:
    return x.is_cuda and x.dtype == torch.float32 and _has_triton()


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _has_cpu_kernel(x: torch.Tensor) -> bool:
    """Whether the CPU's kernel can run."""
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and _has_numba()


@cache
def _has_numba() -> bool:
    return find_spec("numba") is not None


def _import_cpu_kernel() -> Any:
    from rqm.kernels import rotation  # noqa: PLC0415 (needs the compiler)

    return rotation


def _import_gpu_kernel() -> Any:
    from rqm.kernels import cuda_rotation  # noqa: PLC0415 (needs Triton)

    return cuda_rotation


def clip_and_rotate(
    x: torch.Tensor, length: float | None, rotation: "Rotation | None"
) -> tuple[torch.Tensor, torch.Tensor]:
    """`transform.clip_and_rotate` for tensors.

    Args:
        x: The rows, which may be overwritten.
        length: The largest length; None: rows keep theirs.
        rotation: The rotation; None: rows are not rotated.

    Returns:
        The rows, and which of them were finite.
    """
    if rotation is not None and _has_gpu_kernel(x) and (kernel := _import_gpu_kernel()).fits(rotation.padded):
        factors, finite = _factors(x, length)
        row_signs = _signs(rotation.seed, rotation.padded, x.dtype, x.device)
        return kernel.rotate(x.contiguous(), row_signs, factors), finite
    if rotation is not None and _has_cpu_kernel(x):
        factors, finite = _factors(x, length)
        return _rotated(x, rotation, factors), finite
    finite = l2_clip(x, length)
    return (x if rotation is None else rotation.forward(x)), finite


def l2_clip(x: torch.Tensor, length: float | None) -> torch.Tensor:
    """Scale the rows of `x` in place to at most `length`; None leaves them. Returns which rows are finite.

    The others become zero. So does, on a GPU, a finite row whose length is beyond what a float32 can hold.
    """
    factors, finite = _factors(x, length)
    zero_rows(x, ~finite)
    if length is not None:
        x.mul_(factors[:, None])
    return finite


def _factors(x: torch.Tensor, length: float | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The factor of each row, zero for rows that are not finite, and which rows are finite."""
    size = _size(x) if length is None else torch.linalg.vector_norm(x, 2, dim=1)
    max_norm = 2.0**60  # squares of larger values would overflow float32
    if length is not None and not x.is_cuda and not (size < max_norm).all():
        # The factor of such a row is no normal float: scale its largest value to `length` first.
        largest = torch.linalg.vector_norm(x, torch.inf, dim=1)
        huge = torch.isfinite(largest) & ~(size < max_norm)
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


def zero_rows(x: torch.Tensor, rows: torch.Tensor) -> None:
    """Set some rows of `x` to zero, in place."""
    if _has_gpu_kernel(x) and x.is_contiguous():
        _import_gpu_kernel().zero_rows(x, rows)
    elif x.is_cuda or rows.any():  # reading `rows` would wait for the GPU; filling takes time on the CPU
        x.masked_fill_(rows[:, None], 0.0)


def copy_floats(x: torch.Tensor) -> torch.Tensor:
    """A copy in float64, or in float32 if `x` is."""
    return x.clone() if x.dtype in (torch.float32, torch.float64) else x.double()


def sum_rows(x: torch.Tensor) -> torch.Tensor:
    """The sum of all rows, in float64."""
    return x.sum(dim=0, dtype=torch.float64)


def stack(vectors: list[torch.Tensor]) -> torch.Tensor:
    """Vectors as rows."""
    return torch.stack(vectors)


def squared_distances(sampler: IntegerSampler, x: torch.Tensor, dropped_bits: int) -> torch.Tensor:
    """`quantizer.squared_distances` of the positions of tensors.

    Args:
        sampler: The encoder.
        x: The rows.
        dropped_bits: Low bits of each distance that are rounded up.

    Returns:
        A sum for each row.
    """
    if _has_gpu_kernel(x):
        sums: torch.Tensor = _import_gpu_kernel().squares(sampler, x.contiguous(), dropped_bits)
        return sums
    if _has_cpu_kernel(x):
        threads = torch.get_num_threads()
        return torch.from_numpy(
            _import_cpu_kernel().squares(sampler, x.detach().contiguous().numpy(), dropped_bits, threads)
        )
    max_rows = 64  # positions take several times the memory of the floats
    if len(x) > max_rows:
        return torch.cat([squared_distances(sampler, chunk, dropped_bits) for chunk in torch.split(x, max_rows)])
    distances: torch.Tensor = quantizer.squared_distances(sampler, positions(sampler, x), dropped_bits)
    return distances
