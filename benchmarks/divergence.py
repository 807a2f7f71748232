"""Rényi divergences of a sum over clients, against the same in log-domain NumPy."""

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from benchmarks import Result, measure
from rqm.certify.renyi import renyi
from rqm.mechanisms.rqm import RQM

Logs = npt.NDArray[np.float64]


def log_convolve(a: Logs, b: Logs) -> Logs:
    """Convolve two pmfs given by their logarithms."""
    terms = np.full((len(b), len(a) + len(b) - 1), -np.inf)
    for k, value in enumerate(b):
        terms[k, k : k + len(a)] = a + value
    return np.asarray(logsumexp(terms, axis=0))


def bench() -> Result:
    """Three orders at once, 40 clients, the others balanced."""
    mech, clients, orders = RQM(), 40, [2, 8, 32]
    low, high = mech.log_pmf([-1.0, 1.0])

    def numpy_logs() -> list[float]:
        others = np.zeros(1)
        for k in range(clients - 1):
            others = log_convolve(others, high if k >= (clients - 1) // 2 else low)
        p, q = log_convolve(others, high), log_convolve(others, low)
        both = [(p, q), (q, p)]
        return [max(float(logsumexp(a * x - (a - 1) * y)) / (a - 1) for x, y in both) for a in orders]

    def ours() -> list[float]:
        return [bound.lower for bound in renyi(mech, orders, clients, "balanced")]

    np.testing.assert_allclose(ours(), numpy_logs(), rtol=1e-9)  # the same numbers, or the race means nothing
    entries = measure({"rqm": (ours, 1), "NumPy in logarithms": (numpy_logs, 1)})
    return Result("divergence", "rqm", ["NumPy in logarithms"], entries, unit="runs a second")
