"""Tables for sums over several clients: noise on a lattice, whose shape is optimised for a Rényi divergence."""

from collections.abc import Iterable
from math import inf, log

import numpy as np
from scipy.optimize import brentq, minimize

from rqm._util.checks import FloatArray, order, real, whole
from rqm.certify.distributions import all_pairs, divergences, repeated
from rqm.certify.renyi import renyi
from rqm.mechanisms.discrete import DiscreteMechanism
from rqm.mechanisms.table import Table

FLOOR = 1e-9
"""The share of a row that goes to outcomes beyond its noise: without it an outcome could rule out an input."""


def summed_table(
    alpha: float,
    clients: int,
    divergence: float,
    levels: int = 16,
    *,
    clip: float = 1.0,
    start: Iterable[DiscreteMechanism] = (),
) -> DiscreteMechanism:
    """A table of small variance whose certified D_α in a sum over ``clients`` does not exceed ``divergence``.

    An input is rounded to one of K + 1 levels, and noise on the outcomes that are left is added: whatever the others'
    inputs, their noise is the same, so that (but for a billionth) the worst case is known exactly. K and the shape of
    the noise are optimised. Of that and the mechanisms in ``start`` the best is returned, so it is never worse.
    """
    alpha, clients = order(alpha), whole("clients", clients, 2)
    divergence = real("divergence", divergence, "a positive finite number", 0, inf)
    levels = whole("levels", levels, 3, 256)
    known = [mech for mech in start if certified(mech, alpha, clients) <= divergence]
    best: DiscreteMechanism | None = min(known, key=lambda mech: mech.variance_max, default=None)
    # The variance is nearly that of a Gaussian, plus that of rounding, which fewer levels make larger.
    shapes = [shape for steps in range(1, levels - 1) if (shape := _noise(alpha, clients, divergence, levels, steps))]
    for steps, noise in sorted(shapes, key=lambda shape: _variance(*shape)):
        if best is not None and _variance(steps, noise) * clip**2 >= best.variance_max:
            break
        for flatter in (0.0, 1e-4, 1e-3, 1e-2):
            mech = lattice(steps, _tempered(noise, flatter), levels, clip)
            if attained(mech, alpha, clients) <= divergence and certified(mech, alpha, clients) <= divergence:
                if best is None or mech.variance_max < best.variance_max:
                    best = mech
                break
        if best is not None:
            break
    if best is None:
        raise ValueError(
            f"divergence = {divergence:g}: no lattice of {levels} levels reaches it for {clients} clients and order "
            f"{alpha:g}: must be larger, or the levels more"
        )
    return best


def certified(mech: DiscreteMechanism, alpha: float, clients: int) -> float:
    """What is certified of the law as the paper writes it, and of the integers that are deployed."""
    return max(renyi(mech, alpha, clients).upper, renyi(mech, alpha, clients, distribution="sampled").upper)


def lattice_variance(alpha: float, clients: int, divergence: float, levels: int) -> float | None:
    """About the variance, in clip², that ``summed_table`` would reach; None if no lattice does."""
    shapes = (_noise(alpha, clients, divergence, levels, steps, polish=False) for steps in range(1, levels - 1))
    return min((_variance(*shape) for shape in shapes if shape), default=None)


def lattice(steps: int, noise: FloatArray, levels: int, clip: float = 1.0) -> Table:
    """Rounding to ``steps`` + 1 levels, plus noise on 0, 1, …; a billionth of each row goes to all outcomes."""
    rows = np.zeros((steps + 1, levels))
    for j in range(steps + 1):
        rows[j, j : j + len(noise)] = (1 - FLOOR) * noise
        rows[j] += FLOOR * _tilted(levels, j + (len(noise) - 1) / 2)
    rows /= rows.sum(axis=1, keepdims=True)
    return Table(clip=clip, margin=(levels - 1) / steps - 1, rows=tuple(map(tuple, rows.tolist())))


def _tilted(levels: int, mean: float) -> FloatArray:
    """The law on all outcomes with that mean whose entropy is largest."""
    z = np.arange(levels) - (levels - 1) / 2

    def law(tilt: float) -> FloatArray:
        weights = np.exp(tilt * z - abs(tilt * z).max())
        return np.asarray(weights / weights.sum())

    tilt = brentq(lambda t: float(law(t) @ z) - (mean - (levels - 1) / 2), -40, 40, xtol=1e-14)
    return law(float(tilt))


def _variance(steps: int, noise: FloatArray) -> float:
    """The largest variance, in clip²: that of the noise and of rounding half-way between two levels."""
    z = np.arange(len(noise)) - (len(noise) - 1) / 2
    return float(noise @ z**2 + 0.25) * (2 / steps) ** 2


def _tempered(noise: FloatArray, flatter: float) -> FloatArray:
    """The noise with its logarithm a little flatter, and somewhat bent outwards: more variance, more privacy."""
    z = np.linspace(-1, 1, len(noise))
    law = np.maximum(noise, 1e-30) ** (1 - flatter) * np.exp(flatter * z**2)
    return np.asarray(law / law.sum())


def _shifted(noise: FloatArray, steps: int, clients: int, alpha: float) -> float:
    """About the largest D_α between the noise of all clients and the same shifted, with a floor as in ``lattice``."""
    law = np.ones(1)
    square, count = np.pad((1 - FLOOR) * noise, steps), clients
    square += FLOOR / len(square)
    while count:
        law = np.convolve(law, square) if count & 1 else law
        count >>= 1
        square = np.convolve(square, square) if count else square
    with np.errstate(divide="ignore", under="ignore"):
        logs = np.log(law)

    def shifted(by: int) -> float:
        p, q = logs[by:], logs[: len(logs) - by]  # the noise is symmetric: so are the two directions
        seen = np.isfinite(p) & np.isfinite(q)
        p, q = p[seen], q[seen]
        if alpha == 1:
            return float((np.exp(p) * (p - q)).sum())
        if alpha == inf:
            return float(abs(p - q).max())
        powers = alpha * p + (1 - alpha) * q
        top = powers.max()
        return float((top + log(np.exp(powers - top).sum())) / (alpha - 1))

    return max(shifted(by) for by in range(1, steps + 1))


def _noise(
    alpha: float, clients: int, divergence: float, levels: int, steps: int, *, polish: bool = True
) -> tuple[int, FloatArray] | None:
    """The symmetric noise of least variance on the outcomes that ``steps`` leave; None if none is private enough."""
    width = levels - steps
    z = np.arange(width) - (width - 1) / 2
    if width < 2:
        return None

    def law(bend: float) -> FloatArray:
        weights = np.exp(bend * z**2 - (bend * z**2).max())
        return np.asarray(weights / weights.sum())

    def gap(bend: float) -> float:
        return _shifted(law(bend), steps, clients, alpha) - divergence

    bends = np.linspace(-12, 3, 31) / max(z**2)  # from a peak, over a plateau, to two peaks
    gaps = np.array([gap(bend) for bend in bends])
    if not (gaps <= 0).any():
        return None
    first = int(np.argmax(gaps <= 0))
    best = law(bends[0] if first == 0 else float(brentq(gap, bends[first - 1], bends[first], xtol=1e-9)))
    half = (width + 1) // 2
    if polish and half > 2:  # let every probability go its own way: the variance, and a high price for less privacy

        def unfold(logs: FloatArray) -> FloatArray:
            full = np.concatenate([logs, logs[: width - half][::-1]])
            weights = np.exp(full - full.max())
            return np.asarray(weights / weights.sum())

        def price(logs: FloatArray) -> float:
            noise = unfold(logs)
            over = max(0.0, _shifted(noise, steps, clients, alpha) / divergence - 1)
            return _variance(steps, noise) * (1 + 20 * over)

        with np.errstate(divide="ignore"):
            begin = np.maximum(np.log(best[:half]), -60)
        found = unfold(minimize(price, begin, method="Nelder-Mead", options={"maxiter": 400, "xatol": 1e-6}).x)
        if _shifted(found, steps, clients, alpha) <= divergence and _variance(steps, found) < _variance(steps, best):
            best = found
    return steps, best


def attained(mech: DiscreteMechanism, alpha: float, clients: int) -> float:
    """The largest D_α with all other clients at one and the same knot: quick, attained, and no guarantee."""
    pmfs = np.exp(mech.breakpoint_log_pmfs())
    pairs = all_pairs(len(pmfs))
    others = [repeated(pmf, clients - 1) for pmf in pmfs[: (len(pmfs) + 1) // 2]]  # mirror images are alike
    return float(divergences(others, pmfs, pairs, [order(alpha)], "renyi")[0].max())
