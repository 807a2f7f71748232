"""ε of a Gaussian, and best tests."""

from math import inf

import pytest

from rqm import StochasticRounding
from rqm.verify.gaussian_bound import best_tests, gaussian_epsilon
from rqm.verify.integer_pmfs import end_pmfs


def test_a_sum_that_lacks_too_much_has_no_bound():
    low, high = end_pmfs(StochasticRounding(levels=2, margin=1.0).to_dict())[:2]
    assert best_tests(low, high, 1e-9, missing=0.0).steepest < inf
    assert best_tests(low, high, 1e-9, missing=1e-9).steepest == inf


@pytest.mark.parametrize(("mu", "delta"), [(1e-4, 1e-6), (0.1, 1e-9), (1.0, 1e-5), (12.0, 1e-7), (300.0, 1e-6)])
def test_epsilon_of_a_gaussian_is_exact(mu, delta):
    mpmath = pytest.importorskip("mpmath")
    above, below = gaussian_epsilon(mu, delta)

    def exact_delta(epsilon):
        with mpmath.workdps(80):
            a, b = (mpmath.ncdf(sign * mpmath.mpf(mu) / 2 - epsilon / mpmath.mpf(mu)) for sign in (1, -1))
            return a - mpmath.exp(epsilon) * b

    assert exact_delta(above) <= delta
    assert above - below < 1e-5 * above + 1e-12
    assert below == 0 or exact_delta(below) >= delta
