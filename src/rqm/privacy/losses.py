"""Privacy loss distributions of low-dimensional releases: a tighter ε where few coordinates are sent.

For fixed other inputs the hockey-stick divergence is jointly convex in the two laws, so where a coordinate's law is
affine on [-c, c] it is largest between the two ends, the others at the ends too. Its largest value over all splits of
the others, at every ε, is the profile of a pair that dominates every coordinate; such pairs compose (Zhu, Dong and
Wang 2022). What a PBM client sends is the sum of trials, each affine, so all others' trials stand at the ends; laws of
sums of trials are ordered by likelihood ratio, so the client's own, all together, are worst at the ends, too.

Of additive noise the others change nothing. Two rounded inputs are k steps apart, and by joint convexity the largest
value over all k that are possible is that of a pair that dominates, however inputs are rounded.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache, reduce
from math import inf, isfinite
from typing import Any

import numpy as np

from rqm._util.checks import FloatArray
from rqm.mechanisms.additive import Additive
from rqm.mechanisms.channel import Channel, Law
from rqm.privacy.profiles import Profile
from rqm.privacy.vector import end_laws, splits_of_others

GRID = 4000
"""Values of ε at which the profile of a coordinate is computed; between them it is bounded (Doroshenko et al. 2022)."""
CUT = 1e-15
"""Probability that may be cut off in composing a release's coordinates; it is charged."""
SLACK = 1e-13
"""Added to every δ of the profile: more than its rounding errors."""
SUMS = 1e-9
"""More than the relative errors of laws of sums of integer noise."""
RARE = 1e-16
"""Outcomes of additive noise that are less likely than this altogether may be taken to tell all."""

Pair = tuple[FloatArray, FloatArray, float]
"""Laws of a sum with the user at either end, for one choice of the others, and the mass that each lacks."""


def composed_epsilon(mech: Channel, *, honest: int, releases: int, delta: float, law: Law = "paper") -> float:
    """ε of ``releases`` coordinates among ``honest`` clients, each replaced; for laws affine on the clip."""
    composed = _composed(mech, honest, releases, law, 1e-3 * delta)
    return inf if composed is None else float(composed.get_epsilon_for_delta(delta))


def coordinates(
    mech: Channel, *, honest: int, releases: int, users: int | None = None, law: Law = "paper", quick: bool = False
) -> Profile | None:
    """The profile of ``releases`` coordinates among ``honest`` clients; None if some outcome tells all.

    With ``users`` the clients are a random sample of so many, of whom nobody knows who takes part; for one release.
    """
    composed = _composed(mech, honest, releases, law, CUT, quick, users)

    def profile(epsilon: FloatArray) -> FloatArray:
        if len(epsilon) == 1:  # without the differences of large sums that many at once are made of
            return np.array([composed.get_delta_for_epsilon(float(epsilon[0]))])
        with np.errstate(over="ignore", invalid="ignore"):
            found = np.asarray(composed.get_delta_for_epsilon(epsilon)) + SLACK
        return np.clip(np.nan_to_num(found, nan=1.0, posinf=1.0), 0, 1)

    return None if composed is None else profile


@lru_cache(maxsize=256)
def _composed(
    mech: Channel, honest: int, releases: int, law: Law, cut: float, quick: bool = False, users: int | None = None
) -> Any:
    if mech.additive is not None and users is None:
        return _of(*_shifted(mech.additive, honest, quick)).self_compose(releases, tail_mass_truncation=cut)
    laws, trials = end_laws(mech, law)
    if users is not None and trials * releases > 1:
        raise ValueError("users: coordinates of one sample are not independent")
    ends = tuple(laws[0].tolist()), tuple(laws[1].tolist())
    one = _loss(*ends, honest - 1, quick, users) if trials == 1 else _loss_of_trials(*ends, trials, honest - 1, quick)
    return None if one is None else one.self_compose(releases, tail_mass_truncation=cut)


@lru_cache(maxsize=64)
def _loss(low: tuple[float, ...], high: tuple[float, ...], others: int, quick: bool, users: int | None) -> Any:
    """The privacy loss distribution of a pair that dominates one coordinate; None if some outcome tells all."""
    grid, deltas = profile(np.array(low), np.array(high), others, quick=quick, users=users)
    return _of(grid, deltas) if isfinite(grid[-1]) else None


@lru_cache(maxsize=64)
def _loss_of_trials(low: tuple[float, ...], high: tuple[float, ...], trials: int, others: int, quick: bool) -> Any:
    """The same of a coordinate that is the sum of so many trials of every client; None if some outcome tells all."""
    own = [reduce(np.convolve, [np.array(law)] * trials) for law in (low, high)]
    if not all(law.all() for law in own):
        return None
    ways = splits_of_others(np.array(low), np.array(high), trials * others, quick=quick)
    pairs = [(np.convolve(own[0], base), np.convolve(own[1], base), lost) for base, lost in ways]
    last = 0.0
    for one, other, _ in pairs:
        seen = (one > 0) & (other > 0)
        ratio = np.log(one[seen]) - np.log(other[seen])
        last = max(last, _last(one[seen], ratio), _last(other[seen], -ratio))
    return _of(*_largest(pairs, last))


def _of(grid: FloatArray, deltas: FloatArray) -> Any:
    """The privacy loss distribution of a pair with this profile."""
    from dp_accounting.pld import pld_pmf  # noqa: PLC0415 (takes a second)
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution  # noqa: PLC0415

    gap = grid[1] - grid[0]
    bound = round(grid[-1] / gap)
    return PrivacyLossDistribution(pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(gap, -bound, bound, deltas))


def profile(
    low: FloatArray, high: FloatArray, others: int, *, quick: bool = False, users: int | None = None
) -> tuple[FloatArray, FloatArray]:
    """A grid of ε and the largest δ of one coordinate at each, over all inputs of everyone."""
    with np.errstate(divide="ignore", invalid="ignore"):  # what both cannot be tells nothing
        steepest = float(np.nanmax(np.abs(np.log(high) - np.log(low))))
    if not isfinite(steepest):
        return np.array([inf]), np.ones(1)
    pairs = _fixed(low, high, others, quick) if users is None else _drawn(low, high, others + 1, users)
    return _largest(pairs, steepest * (1 + 1e-9))


def _largest(pairs: Iterable[Pair], last: float) -> tuple[FloatArray, FloatArray]:
    """A grid of ε from −last to last and the largest δ of some pairs at each."""
    half = GRID // 2
    grid = np.arange(-half, half + 1, dtype=np.float64) * (last / half)
    best: FloatArray = np.zeros(len(grid))
    for one, other, lost in pairs:
        for p, q in ((one, other), (other, one)):
            seen = (p > 0) & (q > 0)
            order = np.argsort(-(np.log(p[seen]) - np.log(q[seen])))
            ratio = (np.log(p[seen]) - np.log(q[seen]))[order]
            above = np.searchsorted(-ratio, -grid, side="left")  # outcomes whose loss exceeds ε
            mass_p, mass_q = (np.concatenate([[0.0], np.cumsum(law[seen][order])]) for law in (p, q))
            best = np.maximum(best, mass_p[above] - np.exp(grid) * mass_q[above] + lost)
    return _falling(grid, best)


def _falling(grid: FloatArray, best: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The grid, and values of δ that can be a profile's, no smaller."""
    best = np.clip(np.nan_to_num(best + SLACK, nan=1.0), np.maximum(0, -np.expm1(grid)), 1)
    return np.asarray(grid, dtype=np.float64), np.asarray(np.minimum.accumulate(best), dtype=np.float64)


@lru_cache(maxsize=64)
def _shifted(mech: Additive, honest: int, quick: bool) -> tuple[FloatArray, FloatArray]:
    """A grid of ε and the largest δ of a coordinate with additive noise; losses that are too rare are infinite."""
    law = mech.summed(honest, quick=quick)
    shifts = (mech.steps,) if quick else range(1, mech.steps + 1)
    pairs = [pair for k in shifts for pair in ((law, np.roll(law, k)), (np.roll(law, k), law))]
    last = max(_last(p, np.log(p) - np.log(q)) for p, q in pairs)
    half = GRID // 2
    grid = np.arange(-half, half + 1, dtype=np.float64) * (last / half)
    best: FloatArray = np.zeros(len(grid))
    for p, q in pairs:
        place = np.clip(np.ceil((np.log(p) - np.log(q)) / (last / half) + half), 0, len(grid)).astype(np.int64)
        above_p, above_q = (np.cumsum(np.bincount(place, one, len(grid) + 1)[:0:-1])[::-1] for one in (p, q))
        best = np.maximum(best, (1 + SUMS) * above_p - (1 - SUMS) * np.exp(grid) * above_q)
    return _falling(grid, best)


def _last(p: FloatArray, ratio: FloatArray) -> float:
    """A loss beyond which hardly anything is left."""
    unit = max(float(ratio.max()), 1e-9) / GRID
    place = np.clip(np.ceil(ratio / unit), 0, GRID).astype(np.int64)
    rest = np.cumsum(np.bincount(place, p, GRID + 1)[::-1])
    return (GRID - int(np.searchsorted(rest, RARE))) * unit * (1 + 1e-9)


def _fixed(low: FloatArray, high: FloatArray, others: int, quick: bool) -> Iterator[Pair]:
    for base, lost in splits_of_others(low, high, others, quick=quick):
        yield np.convolve(low, base), np.convolve(high, base), lost


def _drawn(low: FloatArray, high: FloatArray, clients: int, users: int) -> Iterator[Pair]:
    """The clients are drawn from the users. Laws are affine in everybody's input, so all others stand at the ends."""
    from scipy.stats import hypergeom  # noqa: PLC0415 (rare)

    def sums(count: int) -> list[FloatArray]:
        """Laws of the sum of ``count`` others of whom 0, 1, … stand at the high end."""
        return [reduce(np.convolve, [high] * up + [low] * (count - up), np.ones(1)) for up in range(count + 1)]

    rest = users - 1
    beside, instead = sums(clients - 1), sums(clients) if clients <= rest else []
    for up in range(users):  # others at the high end
        near = hypergeom(rest, up, clients - 1).pmf(np.arange(clients)) @ np.array(beside)
        pair = [np.convolve(own, near) for own in (low, high)]
        if instead:
            away = hypergeom(rest, up, clients).pmf(np.arange(clients + 1)) @ np.array(instead)
            pair = [clients / users * own + (1 - clients / users) * away for own in pair]
        yield pair[0], pair[1], 0.0
