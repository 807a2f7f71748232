"""The parameters with which a mechanism reaches a wanted ε in a setting."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf, isfinite, log, sqrt
from typing import Any

from rqm._util.checks import real, whole
from rqm.mechanisms.base import Ask, Mechanism
from rqm.mechanisms.channel import Channel
from rqm.mechanisms.registry import model_mechanism
from rqm.mechanisms.transient import Cancel, Transient
from rqm.privacy.accountant import gaussian_noise, spent
from rqm.privacy.composition import smallest
from rqm.privacy.event import Event
from rqm.privacy.factorization import Workload
from rqm.privacy.holding import gaussian_handed, gaussian_paths
from rqm.privacy.iterates import Gain, gain
from rqm.privacy.setting import Setting, checked_epsilon

SPREAD = 4.0
"""c over C/√d: after a random rotation few coordinates are beyond four times their root mean square."""
HARDLY = 1.05
"""Noise within this of a Gaussian's is as good as any."""
SMALL = 1e-3
"""Less noise than this, in clips, is no place to begin at."""
INSIDE = 16
"""Honest clients up to whom levels may lie inside the clip. Of more, a certificate takes up to minutes: they may …"""
LEAST = 0.02
"""Less noise than so many squared clips a client has no RQM of sixteen levels: then it is not worth the wait."""
HELPS = 1.5
"""… if else there is more noise than so many times a Gaussian's, or no way to reach ε."""
NEAR, AIM = 0.996, 0.9985
"""A search ends where ε is at least this part of what was asked for, and looks for that one."""
NARROW, WIDE = 1.02, 1.05
"""The first step of a search, by a factor; the wider one where each takes seconds."""
JUMP = 1e-3
"""Where ε jumps within such a part of the noise, there is nothing between."""
TWICE = 3
"""After so many steps on one side a search halves what is left."""
COARSE = 1.25
"""Coins must be so many times finer than the noise that stays, or noise that cancels is not worth it."""
FAIR = 0.25
"""The variance of a fair coin, in steps²."""
KEPT = (0.5, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Deviations, in steps, of noise that stays, from which the best is taken …"""
WIDE_BITS = 16
"""… such that sums have room in so many bits, unless others are asked for, …"""
TAME = (20.0, 15.0)
"""… and that a sum of what stays, and of what goes over how often that is sent, deviates by at least so many steps: a
path that ends at random tells much in narrower tails."""
AS_GOOD = 1.015
"""Of those that leave hardly more noise than this times the least, the one with the shortest messages is taken."""
SHAPES = (0.25, 0.4, 0.6, 1.0, 1.6, 2.5)
"""Noise that goes over the part that stays as it is first sent, from which the best is taken."""
LEAST_HELD = 0.5
"""Steps of transient noise below which there is no use in it."""
NEAR_ENOUGH = 0.98
"""What reaches less than this part of ε is refused: there is a better way to spend privacy."""
LEVELS = 16
"""Outcomes where nobody asks for another number: four bits."""
DEFAULTS = (("rounding", 2), ("pbm", LEVELS))
"""What is tried where nobody asks for a mechanism: one bit, and four."""
FEW = (("rounding", 2), ("pbm", 3), ("pbm", 5))
"""The same for few coordinates, on each of which there is less noise, so that one bit may be too coarse: one trial of a
client, two, four, each of which costs a bit of the sum; and then …"""
FINER = "discrete-gaussian"
"""… integer noise, of as few steps as will do."""


def coordinate_clip(l2_clip: float, dim: int, spread: float | None = None) -> float:
    """c, the clip of each of ``dim`` rotated coordinates of vectors within C: 4 C/√d, and never more than C."""
    spread = min(SPREAD, sqrt(dim)) if spread is None else spread
    return real("spread", spread, "a positive finite number", 0, float("inf")) * l2_clip / sqrt(dim)


def proposed(
    kind: str, options: Mapping[str, Any], epsilon: float, setting: Setting, *, dim: int, l2_clip: float, clip: float
) -> list[Mechanism]:
    """Mechanisms of this kind before their noise is adjusted: as it proposes itself, if no option says otherwise."""
    first = model_mechanism(kind, clip, options)
    if any(name in first.options() for name in options):
        return [first]
    noise = _gaussian(setting, checked_epsilon(epsilon))
    ask = Ask(
        levels=LEVELS,
        bits=16,
        clients=setting.clients,
        typical=l2_clip / clip / sqrt(dim),
        deviation=noise * l2_clip / clip,
    )
    return [model_mechanism(kind, clip, own) for _, own in first.proposals(ask)] or [first]


def best_fitted(
    firsts: Sequence[Mechanism], epsilon: float, setting: Setting, *, dim: int, l2_clip: float
) -> Mechanism:
    """The first of some mechanisms that reaches ε with hardly more noise than a Gaussian, or the one with the least."""
    found: list[tuple[float, Mechanism]] = []
    refused: ValueError | None = None
    honest = setting.floor().honest
    wanted = (_gaussian(setting, epsilon) * l2_clip) ** 2 / honest  # the variance of one client's coordinate
    server = setting.observer == "server" and (not firsts[0].integers or wanted > LEAST * firsts[0].channel.clip ** 2)
    few = server and honest <= INSIDE
    for first, fine in [(first, few) for first in firsts] + [(first, True) for first in firsts if server and not few]:
        helped = min((over for over, _ in found), default=inf) < HELPS or first.finest_noise == first.least_noise
        if fine and not few and helped:
            continue
        try:
            mech = fitted(first, epsilon, setting, dim=dim, l2_clip=l2_clip, fine=fine)
        except ValueError as error:
            refused = refused or error
            continue
        if not mech.integers:
            return mech
        over = sqrt(float(mech.channel.variance(0.0)) * setting.floor().honest) / l2_clip / _gaussian(setting, epsilon)
        near = spent(Event(mech, mech.slots(dim), l2_clip), setting).epsilon >= NEAR_ENOUGH * epsilon
        if over < HARDLY and near:
            return mech
        found.append((over if near else inf, mech))
    if not found:
        assert refused is not None
        raise refused
    least, mech = min(found, key=lambda one: one[0])
    if least == inf:  # all of them are too noisy
        most = max(spent(Event(one, one.slots(dim), l2_clip), setting).epsilon for _, one in found)
        raise ValueError(
            f"epsilon = {epsilon:g}: {mech.kind} has more noise than that here, and cannot be adjusted so finely; "
            f"possible is {most * 1.005:.3g}"
        )
    return mech


def _gaussian(setting: Setting, epsilon: float) -> float:
    """A trusted server's noise multiplier."""
    return gaussian_noise(replace(setting, honest=None, survivors=None), epsilon)


def fitted(
    first: Mechanism,
    epsilon: float,
    setting: Setting,
    *,
    dim: int,
    l2_clip: float,
    cancel: Cancel | None = None,
    record_clip: float | None = None,
    fine: bool = False,
) -> Mechanism:
    """The mechanism ``first`` with the least noise that makes a run (ε, δ)-private for every user.

    ``dim`` counts the coordinates that are sent, and vectors are within ``l2_clip``. What it reaches, as it will be
    reported, is between 99.5 and 100 % of ε; where nothing does, the error names the best that is possible. With
    ``cancel`` the noise of that many steps is taken back a round later. With ``record_clip`` it is every record's.
    ``fine``: levels may lie inside the clip.
    """
    epsilon, dim = checked_epsilon(epsilon), whole("dim", dim, 1)
    least = first.finest_noise if fine else first.least_noise
    if least is None:
        raise ValueError(f"mechanism = {first.kind!r}: has no noise to adjust")
    noise = _gaussian(setting, epsilon)
    if first.gaussian_multiplier is not None:
        return first.with_noise(noise)

    def reached(extra: float, *, quick: bool) -> float:
        mech = first.with_noise(least + extra)
        event = Event(mech, mech.slots(dim), l2_clip, record_clip=record_clip)
        if cancel is not None:
            event = replace(event, cancel=cancel, separation=setting.apart)
        return spent(event, setting, quick=quick).epsilon

    if cancel is None:
        start = _alike(first, least, (noise * (record_clip or l2_clip)) ** 2 / setting.floor().honest)
        step = NARROW
    else:
        start, step = _held(first, least, cancel, setting, noise * l2_clip), WIDE
    try:
        quickly = partial(reached, quick=True)
        start = _least(quickly, epsilon, start, step)
        certified, below = reached(start, quick=False), None
        if epsilon < certified < inf:  # by as much more noise as a quick look is short of it
            below = start, certified
            start = _least(quickly, AIM * epsilon * quickly(start) / certified, start, step)
        found = _least(partial(reached, quick=False), epsilon, start, below=below)  # mostly the same
    except _Unreached as error:
        what = f"epsilon = {epsilon:g}: {first.kind} does not reach it here"
        raise ValueError(f"{what}; must be at least {error.best:.3g}" if error.best < inf else what) from None
    return first.with_noise(least + found)


class _Unreached(Exception):  # noqa: N818 (an answer)
    """No noise that is possible reaches a target; the best that one does."""

    def __init__(self, best: float) -> None:
        self.best = best


def _alike(first: Mechanism, least: float, variance: float) -> float:
    """What to add to the least noise for a coordinate of this variance: where a search begins."""

    def enough(extra: float) -> bool:
        return float(first.with_noise(least + extra).channel.variance(0.0)) >= variance

    try:
        found = smallest(enough, 0.1, 1e-3)
    except ValueError:
        found = 0.0
    return found if found > SMALL else 0.1


def _held(first: Mechanism, least: float, cancel: Cancel, setting: Setting, noise: float) -> float:
    """The same where ``cancel`` steps of noise are taken back, for as much privacy as independent ``noise`` of a sum.

    As if all noise were Gaussian, and the others' inputs at an end of the clip, where coins are least fair.
    """
    honest = setting.floor().honest

    def enough(extra: float) -> bool:
        channel = first.with_noise(least + extra).channel
        coins, one = float(channel.variance(channel.clip)), honest * channel.grid.step**2
        return _as_gaussian(cancel, setting.apart, coins * honest / one) / one * noise**2 <= 1

    return smallest(enough, 0.1, 1e-3)


def _least(
    reached: Callable[[float], float],
    target: float,
    start: float,
    step: float = NARROW,
    below: tuple[float, float] | None = None,
) -> float:
    """The smallest x with ``reached`` below the target, to within some thousandths of it; it falls in x.

    What cannot be made raises ValueError, and is taken for too large. ``below`` is an x that is too small, and what is
    reached there.
    """
    low, at_low = below or (0.0, inf)
    high, at_high, best, x, side = inf, 0.0, at_low, start, 0
    for _ in range(80):
        try:
            now = reached(x)
        except ValueError:  # impossible: the answer is below, if there is one
            now = -inf
        if now < 0:
            if low and x <= low * (1 + 1e-4):
                raise _Unreached(best)
            high, at_high = x, now
        elif now <= target:
            if now >= NEAR * target or (low and x - low <= JUMP * x):
                return x
            high, at_high, side = x, now, max(side, 0) + 1
        else:
            low, at_low, best, side = x, now, min(best, now), min(side, 0) - 1
        if not low:
            x, step = x / step, step**2
        elif high == inf:
            x, step = x * step, step**2
        else:
            ends = log(at_low / target), log(at_high / (AIM * target)) if at_high > 0 else -inf
            x = _between(low, high, *ends) if abs(side) < TWICE else sqrt(low * high)  # a line may be far off there
        if x < 1e-12 * start or x > 1e12 * start:
            break
    if high < inf and at_high > 0:
        return high
    raise _Unreached(best)


def _between(low: float, high: float, above: float, below: float) -> float:
    """Where a line through both ends meets the target, in logarithms; not too near to either end."""
    part = above / (above - below) if isfinite(above) and isfinite(below) and below < 0 else 0.5
    part = min(max(part, 0.02), 0.98)
    return float(low * (high / low) ** part)


def _as_gaussian(cancel: Cancel, apart: int, coins: float) -> float:
    """μ² of a shift by one step, for one client of this variance of its coin, if all noise were Gaussian."""
    if isinstance(cancel, tuple):
        goes, stays, times = cancel
        return gaussian_handed(apart, goes**2, stays**2, times, coins)
    return gaussian_paths(apart, cancel**2, coins)


def best_held(
    setting: Setting, workload: Workload | None = None, *, coarse: float = 0.0, bits: int = WIDE_BITS
) -> Cancel:
    """Transient noise, in steps of two levels, that suits the coins' for the least noise in a server's iterates.

    A part of it stays, if that is better, and sums have room in so many ``bits``. ``coarse`` is the μ² of a shift by
    one step that a client's noise must at least allow for, as steps cannot be finer.
    """
    if setting.apart == 1:
        raise ValueError("separation = None: must be given, or participations = 1: else nothing can be taken back")
    gains = gain(workload or Workload(setting.rounds))
    goes = max(gains.best_ratio(setting.apart) / 2, LEAST_HELD)  # the deviation of a fair coin is half a step
    kept = [_best_kept(setting, gains, stays, bits) for stays in KEPT]
    fine = [one for one in kept if one is not None and _as_gaussian(one, setting.apart, FAIR) >= coarse]
    noise = {one: _predicted(one, setting, gains) for one in (goes, *fine)}
    good = [one for one in noise if noise[one] <= AS_GOOD * min(noise.values())]
    return min(good, key=lambda one: (Transient.of(one).bits(setting.clients, setting.clients), noise[one]))


def _predicted(cancel: Cancel, setting: Setting, gains: Gain) -> float:
    """The noise of the iterates over that of independent noise, if it were Gaussian but for how paths are drawn."""
    goes, stays, times = cancel if isinstance(cancel, tuple) else (cancel, 0.0, 1)
    told = _as_gaussian(cancel, setting.apart, FAIR)
    if stays:  # a path ends in one round or another: to draw which tells more, the less clients there are
        told += (1 / stays**2 + times**2 / goes**2) ** 2 / (4 * times * setting.floor().honest)
    return gains.noise(sqrt(FAIR), goes, stays, times) * sqrt(told) / gains.noise(1.0, 0.0)


def _best_kept(setting: Setting, gains: Gain, stays: float, bits: int) -> Cancel | None:
    """Noise of which ``stays`` steps stay, within so many ``bits``: the best of some, then of those around it."""
    best: tuple[float, float, int] | None = None
    enough, least = (one / sqrt(setting.floor().honest) for one in TAME)
    tried = [(shape * stays, times) for shape in SHAPES for times in range(8, 129, 8)] if stays >= enough else []
    for _ in range(2):
        found = [(round(one * times, 4), stays, times) for one, times in tried if one >= max(least, LEAST_HELD)]
        found = [one for one in found if Transient(*one).bits(setting.clients, setting.clients) <= bits]
        if not found:
            return best
        best = min(found, key=lambda one: _predicted(one, setting, gains))
        goes, _, middle = best
        tried = [
            (by * goes / middle, times) for by in (0.9, 1.0, 1.1) for times in range(max(2, middle - 7), middle + 8)
        ]
    return best


def best_cancelled(
    epsilon: float,
    setting: Setting,
    *,
    dim: int,
    l2_clip: float,
    workload: Workload | None = None,
    spread: float | None = None,
    bits: int = WIDE_BITS,
) -> tuple[Channel, Cancel]:
    """One bit and transient noise, in steps, that reach ε with the least noise in a server's iterates.

    ``workload`` tells how the server steps; by default with momentum .9 and a rate that falls to zero.
    """
    clip = coordinate_clip(l2_clip, dim, spread)
    noise = _gaussian(setting, epsilon) * l2_clip
    cancel = best_held(setting, workload, coarse=setting.floor().honest * (2 * COARSE * clip / noise) ** 2, bits=bits)
    first = model_mechanism("rounding", clip, {"levels": 2})
    return fitted(first, epsilon, setting, dim=dim, l2_clip=l2_clip, cancel=cancel).channel, cancel


def pays(epsilon: float, setting: Setting, dim: int) -> bool:
    """Whether noise that cancels leaves less in the models than independent noise: if coins are not too coarse for it.

    A quick rule, by what a Gaussian of that shape would need; nothing is certified.
    """
    if setting.apart == 1:
        return False
    cancel = max(gain(Workload(setting.rounds)).best_ratio(setting.apart) / 2, LEAST_HELD)
    needed = _gaussian(setting, epsilon) * sqrt(gaussian_paths(setting.apart, 4 * cancel**2, 1.0))
    least = coordinate_clip(1.0, dim) * sqrt(setting.floor().honest)  # of coins whose levels are the ends of the clip
    return needed > COARSE * least


def best_fit(epsilon: float, setting: Setting, *, dim: int, l2_clip: float) -> tuple[Channel, None]:
    """The mechanism to use where nobody asks for another: one bit, or where that is noticeably noisier, PBM at four.

    Both are affine trial by trial, so that they are certified under an L2 budget. No noise is taken back.
    """
    clip = coordinate_clip(l2_clip, dim)
    firsts = [model_mechanism(kind, clip, {"levels": levels}) for kind, levels in DEFAULTS]
    return best_fitted(firsts, epsilon, setting, dim=dim, l2_clip=l2_clip).channel, None


def best_few(epsilon: float, setting: Setting, *, dim: int, l2_clip: float) -> tuple[Channel, None]:
    """The same for few coordinates of many: the shortest messages that are hardly noisier than a Gaussian."""
    clip = coordinate_clip(l2_clip, dim)
    finer = proposed(FINER, {}, epsilon, setting, dim=dim, l2_clip=l2_clip, clip=clip)
    firsts = [*(model_mechanism(kind, clip, {"levels": levels}) for kind, levels in FEW), *reversed(finer)]
    return best_fitted(firsts, epsilon, setting, dim=dim, l2_clip=l2_clip).channel, None
