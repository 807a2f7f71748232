"""The compiler's lean start: nothing is loaded that need not be, and nothing is missing afterwards."""

import subprocess
import sys

import pytest

START = "from rqm._util.imports import start_lean; start_lean(); import sys; "


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize("looked_for", ["scipy.linalg", "cffi"])
def test_what_numba_looks_for_is_not_loaded_and_can_be(looked_for):
    assert run(START + f"before = '{looked_for}' in sys.modules; import {looked_for}; print(before)") == ["False"]


def test_products_of_matrices_still_compile():
    product = "import numba, numpy; print(numba.njit(lambda a: a @ a)(numpy.full((2, 2), 3.0)).sum())"
    assert run(START + product) == ["72.0"]


def test_what_is_loaded_already_stays():
    assert run("import scipy.linalg.cython_blas as blas; " + START + "print(sys.modules[blas.__name__] is blas)") == [
        "True"
    ]
