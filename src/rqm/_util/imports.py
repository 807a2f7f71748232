"""Imports of optional and of slow libraries."""

import sys
from importlib import import_module

EXTRAS = {
    "train": ("torch",),
    "report": ("matplotlib",),
    "data": ("h5py", "pyarrow", "pillow"),
    "flower": ("flwr",),
    "docs": ("mkdocs-material",),
}
"""The distributions that each extra of the package installs, as in pyproject.toml."""


def how_to_install(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The same error, with the command that installs the module."""
    name = (error.name or "").split(".")[0]
    distribution = "pillow" if name == "PIL" else name
    for extra, distributions in EXTRAS.items():
        if distribution in distributions:
            return ModuleNotFoundError(f"{name} is not installed: pip install 'rqm[{extra}]'", name=error.name)
    return error


def start_lean() -> None:
    """Import numba without SciPy's BLAS and cffi, which it loads if they are installed.

    They take a fifth of the time of a short command, and no compiled function of this package needs them. They can be
    imported afterwards. Matrix products still compile: numba looks for BLAS again when it compiles one. Modules that
    are loaded already are left alone.
    """
    import_module("numba")
    hidden = [name for name in ("scipy.linalg.cython_blas", "cffi") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type] # None: its import fails at once
    try:
        for name in ("numba.np.arraymath", "numba.core.typing.cffi_utils"):  # these import them
            import_module(name)
    except ImportError:  # a version of numba with other names
        pass
    finally:
        for name in hidden:
            del sys.modules[name]
