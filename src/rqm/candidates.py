"""Who can do what is asked: every mechanism brought to a wanted ε, or to a wanted noise, in one setting."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil, inf, log, log2, sqrt
from typing import Any

import numpy as np

from rqm.channel import Channel
from rqm.design import lattice_spread, level_keeps, private_table, pure_loss, single_keep, summed_table
from rqm.mechanisms import KINDS
from rqm.mechanisms.additive import Additive
from rqm.mechanisms.gaussian import Gaussian
from rqm.mechanisms.pbm import PBM
from rqm.mechanisms.response import RandomizedResponse
from rqm.mechanisms.rqm import RQM
from rqm.privacy.calibrate import Kind, coordinate_clip, fitted
from rqm.privacy.composition import smallest
from rqm.privacy.guarantee import gaussian_noise, guarantee
from rqm.privacy.setting import Neighbours, Observer, Setting
from rqm.privacy.worst_case import renyi

MOST_BITS = 6
"""Outcomes beyond 64 cost time and buy nothing."""
TABLE_CLIENTS, TABLE_COORDINATES, TABLE_LEVELS = 64, 16, 16
"""Up to so many clients and coordinates a table is optimised for the sum, with so many outcomes at most."""
ADDITIVE: tuple[Kind, ...] = ("discrete-gaussian", "skellam", "binomial")


@dataclass(frozen=True)
class Request:
    """What is asked for. ``epsilon`` or ``noise`` is the target; ``delta`` None is pure differential privacy."""

    clients: int
    dim: int
    epsilon: float | None
    noise: float | None
    delta: float | None
    bits: int
    population: int | None
    rounds: int
    participations: int
    honest: int | float | None
    observer: Observer
    neighbours: Neighbours
    l2_clip: float


@dataclass(frozen=True)
class Candidate:
    """A mechanism that keeps the request. ``mse`` is the worst-case error of a coordinate of the mean, in clip²."""

    name: str
    mechanism: Channel | Gaussian
    epsilon: float
    mse: float
    bits_per_coordinate: int
    bits_under_secagg: int | None
    trusted_server: bool
    certified: bool
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        fields = {key: value for key, value in vars(self).items() if key != "mechanism"}
        return {"mechanism": self.mechanism.to_dict(), **fields}


Makers = Iterator[tuple[str, Callable[[], Candidate | None]]]


# -- one client, pure differential privacy --------------------------------------------------------


def pure(request: Request) -> Makers:
    """One client alone: pure differential privacy of what it sends."""
    assert request.epsilon is not None
    each = request.epsilon / request.participations  # releases compose by addition
    clip, levels = request.l2_clip, 2 ** min(request.bits, MOST_BITS)

    def candidate(mech: Channel, loss: float) -> Candidate:
        mse = mech.variance_max / clip**2
        return Candidate("", mech, loss * request.participations, mse, mech.bits, None, False, certified=True)

    def table() -> Candidate:
        mech = private_table(each, levels, clip=clip)
        return candidate(mech, pure_loss(mech))

    def average() -> Candidate:
        mech = private_table(each, levels, clip=clip, average=True)
        return candidate(mech, pure_loss(mech))

    def response() -> Candidate:
        sizes = sorted({2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64} & set(range(2, levels + 1)))
        found = [RandomizedResponse(clip=clip, levels=k, epsilon=min(each, 25.0)) for k in sizes]
        best = min(found, key=lambda mech: mech.variance_max)
        return candidate(best, best.loss)

    def one_bit() -> Candidate:
        mech = RandomizedResponse(clip=clip, levels=2, epsilon=min(each, 25.0))
        return candidate(mech, mech.loss)

    def pbm() -> Candidate:
        ratio = np.exp(each / (levels - 1))
        mech = PBM(clip=clip, theta=0.5 * (ratio - 1) / (ratio + 1) * (1 - 1e-6), levels=levels)
        return candidate(mech, _certified(mech))

    def rqm() -> Candidate:
        return candidate(*_within(single_keep(inf, 1, each * (1 - 1e-6), levels, clip=clip), each))

    def keeps() -> Candidate:
        return candidate(*_within(level_keeps(inf, 1, each * (1 - 1e-6), levels, clip=clip), each))

    yield "optimal table", table
    yield "MVU, evenly spaced", average
    yield "randomized response", response
    yield "1 bit", one_bit
    yield "PBM", pbm
    if levels > 2:
        yield "RQM", rqm
    if 4 <= levels <= 32:
        yield "RQM, a keep for each level", keeps


def _certified(mech: Channel) -> float:
    return renyi(mech, inf, law="sampled").upper


def _within(mech: RQM, epsilon: float) -> tuple[RQM, float]:
    """An RQM whose deployed integers keep ε: a little more margin if need be."""
    for _ in range(40):
        if (loss := _certified(mech)) <= epsilon:
            return mech, loss
        mech = replace(mech, margin=mech.margin * 1.001)
    raise ValueError(f"epsilon = {epsilon:g}: not reached")


# -- sums and whole models ------------------------------------------------------------------------


def sums(request: Request) -> Makers:
    """Sums over clients, of a coordinate or of a whole model: (ε, δ)."""
    setting, clip = setting_of(request), clip_of(request)
    levels = 2 ** min(request.bits, MOST_BITS)

    def of(kind: Kind, **options: Any) -> Callable[[], Candidate]:
        def make() -> Candidate:
            return _candidate(tuned(request, setting, clip, kind, options), request, setting)

        return make

    yield "1 bit", of("rounding", levels=2)
    if levels > 2:
        yield "RQM, wide margin", of("rqm", levels=levels)
        yield "PBM", of("pbm", levels=levels)
    small = request.clients <= TABLE_CLIENTS and request.dim * request.participations <= TABLE_COORDINATES
    if small and levels > 2 and setting.floor().honest > 1 and request.epsilon and setting.observer == "server":
        yield "lattice table", lambda: _table(request, setting, min(levels, TABLE_LEVELS))
    for kind in ADDITIVE:
        bits, steps = _room(request, setting, clip)
        if bits <= request.bits:
            yield kind, of(kind, bits=bits, steps=steps)
    yield "local Gaussian", lambda: _gaussian(request, setting, local=True)
    yield "trusted server's Gaussian", lambda: _gaussian(request, setting, local=False)


def setting_of(request: Request) -> Setting:
    """Who takes part and who watches, for the accountant."""
    assert request.delta is not None
    capped = request.participations if request.observer == "server" else None
    return Setting(
        clients=request.clients, rounds=request.rounds, delta=request.delta, population=request.population,
        observer=request.observer, participations=capped, neighbours=request.neighbours, honest=request.honest,
    )  # fmt: skip


def clip_of(request: Request) -> float:
    """c: the clip of one coordinate."""
    return coordinate_clip(request.l2_clip, request.dim)


def tuned(
    request: Request, setting: Setting, clip: float, kind: Kind, options: dict[str, Any]
) -> Channel | Gaussian:  # fmt: skip
    """The mechanism of this kind that reaches the wanted ε, or the wanted noise."""
    if request.epsilon is not None:
        return fitted(kind, request.epsilon, setting, dim=request.dim, l2_clip=request.l2_clip, **options)
    assert request.noise is not None
    wanted = (request.noise * request.l2_clip / clip) ** 2 / request.clients  # of one client's coordinate, in clip²
    made: Any = KINDS[kind]
    name = {"rounding": "margin", "rqm": "margin", "pbm": "theta"}.get(kind, "scale")

    def mech(size: float) -> Any:
        return made(clip=clip, **{name: 0.5 / (1 + size) if name == "theta" else size}, **options)

    least = max(options.get("levels", 2) - 1, 1) * (1 + 1e-6) - 1 if name == "margin" else 0.0
    found: Channel = mech(least + smallest(lambda size: mech(least + size).variance_max / clip**2 >= wanted, 1.0, 1e-7))
    return found


def _candidate(mech: Channel | Gaussian, request: Request, setting: Setting) -> Candidate:
    """What is guaranteed, and the worst-case error of a coordinate of the mean."""
    found = guarantee(mech, setting, dim=request.dim, l2_clip=request.l2_clip)
    clip = clip_of(request)
    if isinstance(mech, Gaussian):
        mse = (found.noise_multiplier * request.l2_clip / clip / request.clients) ** 2
    elif isinstance(mech, Additive):
        mse = max(mech.wrapped(request.clients, part * clip)[1] for part in (0.0, _typical(request))) / clip**2
    else:
        mse = mech.variance_max / request.clients / clip**2
    return Candidate(
        "", mech, found.epsilon, mse, found.bits_per_coordinate, found.bits_under_secagg, found.trusted_server,
        certified=True,
    )  # fmt: skip


def _typical(request: Request) -> float:
    """How large a coordinate of the mean may be, in clips: all clients alike, rotated."""
    return request.l2_clip / clip_of(request) / sqrt(request.dim)


def _room(request: Request, setting: Setting, clip: float) -> tuple[int, int]:
    """Bits that hold a sum of additive noise, and the steps between -c and c that they leave."""
    z = gaussian_noise(setting, request.epsilon) if request.epsilon is not None else request.noise
    assert z is not None
    sigma = z * request.l2_clip / clip  # of the sum, in clips
    for steps in (15, 7):
        half = (request.clients * _typical(request) + 6 * sigma) * steps / 2
        bits = ceil(log2(2 * half))
        if bits <= 16:
            return max(bits, 5), steps
    return 99, 7


def _gaussian(request: Request, setting: Setting, *, local: bool) -> Candidate:
    if request.epsilon is None:
        assert request.noise is not None
        z = request.noise / (sqrt(request.clients) if local else 1)
    else:
        # One's own noise must do alone, or that of the sum.
        alone = replace(setting, honest=None, survivors=None, delta=setting.floor().delta)
        z = gaussian_noise(alone, request.epsilon)
    return _candidate(Gaussian(z, local), request, setting)


def _table(request: Request, setting: Setting, levels: int) -> Candidate | None:
    """A lattice for the order at which its variance is least, with a divergence that leaves ε after conversion."""
    assert request.epsilon is not None
    floor = setting.floor()
    honest, delta = floor.honest, floor.delta
    releases = request.dim * request.participations
    budgets = {}
    for alpha in (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0):
        cost = log((alpha - 1) / alpha) - (log(delta) + log(alpha)) / (alpha - 1)
        left = (request.epsilon - cost) / releases
        if left > 0:
            spread = lattice_spread(alpha, honest, left, levels)
            if spread is not None:
                budgets[alpha] = (spread, left)
    if not budgets:
        return None
    alpha = min(budgets, key=lambda a: budgets[a][0])
    left = budgets[alpha][1]
    for share in (1 - 1e-6, 0.999, 0.99):
        mech = summed_table(alpha, honest, left * share, levels, clip=clip_of(request))
        found = _candidate(mech, request, setting)
        if found.epsilon <= request.epsilon:
            return found
    return None
