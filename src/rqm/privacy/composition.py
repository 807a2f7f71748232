"""From one release to a training run: rounds, sampling, and the conversion to (ε, δ).

Who watches decides what composes. The **server** picks the participants, so sampling hides nothing from it: a user who
takes part at most k times is protected by the k-fold composition of one release. An **outsider** sees the models but
not who took part: every round counts, and each is amplified by sampling n of N users without replacement.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import expm1, inf, log, log1p

import numpy as np
from scipy.special import gammaln, logsumexp

from rqm._util.checks import FloatArray, real, whole
from rqm.privacy.setting import Neighbours, Observer, checked_delta

INTEGER_ORDERS = (*range(2, 129), 256)
"""The orders of published accounts of DP-SGD."""
ORDERS = (
    1.25,
    1.5,
    1.75,
    2.0,
    3.0,
    3.25,
    3.5,
    3.75,
    4.0,
    4.5,
    5.0,
    5.5,
    6.0,
    6.5,
    7.0,
    8.0,
    9.0,
    10.0,
    11.0,
    12.0,
    14.0,
    16.0,
    18.0,
    20.0,
    24.0,
    28.0,
    32.0,
    40.0,
    48.0,
    64.0,
    96.0,
    128.0,
    256.0,
    512.0,
)
"""Orders for releases that are not sampled. What lies between 2 and 3 the vector bound does not cover."""
SAMPLED_ORDERS = tuple(range(2, 129))
"""Orders for the bound of sampling without replacement, which needs all integers below each."""


@dataclass(frozen=True)
class Rdp:
    """Certified Rényi divergences of a release at some orders, and for which neighbours they hold."""

    orders: tuple[float, ...]
    values: FloatArray
    neighbours: Neighbours

    def times(self, count: int) -> "Rdp":
        """The composition of ``count`` such releases, each chosen after seeing the ones before."""
        return Rdp(self.orders, count * self.values, self.neighbours)

    def plus(self, other: "Rdp") -> "Rdp":
        """The composition with another release at the same orders."""
        return Rdp(self.orders, self.values + other.values, self.neighbours)

    def epsilon(self, delta: float) -> tuple[float, float]:
        """The smallest ε for δ over all orders, and its order (Canonne, Kamath and Steinke 2020)."""
        found = self.epsilons(delta)
        best = int(np.argmin(found))
        return max(0.0, found[best]), float(self.orders[best])

    def epsilons(self, delta: float) -> list[float]:
        """ε for δ by each order."""
        delta = checked_delta(delta)
        return [_converted(order, value, delta) for order, value in zip(self.orders, self.values.tolist(), strict=True)]


def _converted(order: float, divergence: float, delta: float) -> float:
    """ε of a release with this divergence, as dp-accounting computes it, which takes a second to import."""
    if delta**2 + expm1(-divergence) > 0:  # by the KL divergence δ is at most √(1 − exp(−KL))
        return 0.0
    return divergence + log1p(-1 / order) - log(delta * order) / (order - 1) if order > 1.01 else inf


def gaussian_rdp(noise_multiplier: float, orders: Sequence[float], neighbours: Neighbours) -> Rdp:
    """The Gaussian mechanism: noise of ``noise_multiplier`` times the L2 clip C on a sum of vectors within C."""
    z = real("noise_multiplier", noise_multiplier, "a positive finite number", 0, inf)
    distance = 2.0 if neighbours == "replace" else 1.0
    return Rdp(tuple(map(float, orders)), np.array(orders, dtype=float) * distance**2 / (2 * z * z), neighbours)


def without_replacement(rdp: Rdp, clients: int, population: int) -> Rdp:
    """A release on ``clients`` of ``population`` users, drawn without replacement, seen by who does not know whom.

    Wang, Balle and Kasiviswanathan (2019), Theorem 9, without a bound on ε(∞). ``rdp`` must hold all integers from 2
    on, for replacing a user's vector: a sample with the user is compared with one that holds somebody else instead, so
    divergences for zeroing out a vector must not be used here, and are refused.
    """
    if rdp.neighbours != "replace":
        raise ValueError(f"neighbours = {rdp.neighbours!r}: sampling without replacement takes 'replace' divergences")
    if rdp.orders != tuple(map(float, range(2, len(rdp.orders) + 2))):
        raise ValueError("orders: must be all integers from 2 on")
    clients = whole("clients", clients, 1)
    if whole("population", population, 1) < clients:
        raise ValueError(f"population = {population}: must be at least {clients}, a round's clients")
    rate = clients / population
    orders, values = np.array(rdp.orders), rdp.values
    with np.errstate(over="ignore"):
        second = np.minimum(np.log(4) + _log_expm1(values[0]), np.log(2) + values[0])
    terms = np.concatenate([[second], np.log(2) + (orders[1:] - 1) * values[1:]]) + orders * np.log(rate)
    out = np.empty(len(orders))
    for k, alpha in enumerate(orders):
        j = orders[: k + 1]
        choose = gammaln(alpha + 1) - gammaln(j + 1) - gammaln(alpha - j + 1)
        out[k] = logsumexp(np.append(choose + terms[: k + 1], 0.0)) / (alpha - 1)
    return Rdp(rdp.orders, np.minimum(out, values), "replace")  # not to sample at all never leaks less


def _log_expm1(x: float) -> float:
    return float(x + np.log(-np.expm1(-x))) if x > 0 else -inf


def poisson_gaussian_epsilon(
    noise_multiplier: float, rate: float, rounds: int, delta: float, orders: Sequence[float] = INTEGER_ORDERS
) -> float:
    """ε of a trusted server's DP-SGD: Poisson sampling, users added or removed (Mironov, Talwar and Zhang 2019)."""
    import dp_accounting as dp  # noqa: PLC0415 (takes a second)

    accountant = dp.rdp.RdpAccountant(list(map(float, orders)))
    event = dp.PoissonSampledDpEvent(
        real("rate", rate, "from 0 to 1", 0, 1, closed="]"), dp.GaussianDpEvent(noise_multiplier)
    )
    accountant.compose(event, whole("rounds", rounds, 1))
    return float(accountant.get_epsilon(checked_delta(delta)))


LOW = 2.0
"""Orders up to here are bounded under an L2 budget also for laws with kinks inside the clip (``budget.py``)."""


def orders_for(observer: Observer, few: bool = False) -> tuple[float, ...]:
    """The orders at which a run is accounted for."""
    if observer == "server":
        return (1.5, 1.75, 2.0, 8.0, 32.0) if few else ORDERS
    return tuple(map(float, SAMPLED_ORDERS[: 3 if few else None]))


def smallest(enough: Callable[[float], bool], start: float, tolerance: float = 1e-4, growth: float = 2.0) -> float:
    """The smallest positive number that is enough, to within ``tolerance``, and itself enough."""
    low = high = start
    while not enough(high):
        low, high = high, growth * high
        if high > 1e12 * start:
            raise ValueError("no amount of noise reaches the target")
    while low == high and high > 1e-12 * start:  # enough at once: look below
        if enough(high / growth):
            low = high = high / growth
        else:
            low = high / growth
    while high > (1 + tolerance) * low:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
