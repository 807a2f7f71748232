"""The compiler's start, without what no compiled function of this package needs."""

import sys
from importlib import import_module

UNUSED = ("scipy.linalg.cython_blas", "cffi")
"""What numba looks for when it starts, in vain if it is not installed: a fifth of a short command's time."""
LOOKING = ("numba.np.arraymath", "numba.core.typing.cffi_utils")


def start_lean() -> None:
    """Start numba as if SciPy and cffi were not installed, which they are again afterwards.

    For commands whose processes are all our own. Products of matrices still compile: numba looks for BLAS again when it
    meets one. What is loaded already is left alone.
    """
    import_module("numba")
    hidden = [name for name in UNUSED if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type] # None: its import fails at once
    try:
        for name in LOOKING:
            import_module(name)
    except ImportError:  # another numba, in which these have other names
        pass
    finally:
        for name in hidden:
            del sys.modules[name]
