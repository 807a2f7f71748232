"""The adviser: which mechanism, with which parameters, for a budget of privacy and bits.

Every candidate is brought to the same certified ε in the same setting, and ranked by its worst-case error; or to the
same error, and ranked by its ε. Nothing is estimated: ε is what ``rqm.account`` would say, the error is computed from
the mechanism's law.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from math import ceil, inf, log, log2, sqrt
from typing import Any

import numpy as np

from rqm._checks import real, whole
from rqm.channel import Channel
from rqm.mechanisms.additive import Additive
from rqm.mechanisms.gaussian import Gaussian
from rqm.mechanisms.pbm import PBM
from rqm.mechanisms.response import RandomizedResponse
from rqm.mechanisms.rqm import RQM
from rqm.privacy.composition import Observer, smallest
from rqm.privacy.guarantee import Kind, Setting, calibrate, gaussian_noise, guarantee
from rqm.privacy.vector import Neighbours

Progress = Callable[[str, int, int], None]
"""Told what is looked at, how many were, and how many there are."""

TABLE_CLIENTS, TABLE_COORDINATES = 64, 16
"""Up to so many clients and coordinates a table is optimised for the sum."""
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
    population: int
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


@dataclass(frozen=True)
class Advice:
    """The candidates, best first; those that need a trusted server stand behind those that do not."""

    request: Request
    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate:
        """The winner."""
        return self.candidates[0]

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return {"request": asdict(self.request), "candidates": [one.to_dict() for one in self.candidates]}


def advise(
    *,
    clients: int,
    dim: int = 1,
    epsilon: float | None = None,
    noise: float | None = None,
    delta: float | None = None,
    levels: int | None = None,
    bits: int | None = None,
    population: int | None = None,
    rounds: int = 1,
    participations: int = 1,
    honest: int | float | None = None,
    observer: Observer = "server",
    neighbours: Neighbours = "replace",
    l2_clip: float = 1.0,
    progress: Progress | None = None,
) -> Advice:
    """Rank the mechanisms that reach ε (or a noise on the sum, in units of the L2 clip) within a budget of bits.

    ``clients`` of ``population`` users take part in each of ``rounds`` rounds, a user in at most ``participations``.
    ``bits`` (or ``levels``, their power of two) is what a client may send for a coordinate, before secure aggregation.
    Without ``delta`` one client's one coordinate gets pure differential privacy, everything else δ = 1/population.

    >>> advice = advise(clients=1, dim=1, epsilon=5.4699, levels=16)
    >>> advice.best.name, advice.best.mse < 0.048
    ('optimal table', True)
    """
    request = _request(
        clients, dim, epsilon, noise, delta, levels, bits, population, rounds, participations, honest, observer,
        neighbours, l2_clip,
    )  # fmt: skip
    makers = list(_pure(request) if request.delta is None else _sums(request))
    found: list[Candidate] = []
    for number, (name, make) in enumerate(makers):
        if progress is not None:
            progress(name, number, len(makers))
        try:
            candidate = make()
        except ValueError:
            continue  # this one cannot do it: some other can, or the error below says what would be possible
        if candidate is not None and (candidate.trusted_server or candidate.bits_per_coordinate <= request.bits):
            found.append(replace(candidate, name=name))
    if not any(not one.trusted_server for one in found):
        raise ValueError(_impossible(request))
    by_error = request.epsilon is not None
    found.sort(key=lambda one: (one.trusted_server, one.mse if by_error else one.epsilon))
    return Advice(request, tuple(_explained(found, request)))


def _request(
    clients: int, dim: int, epsilon: float | None, noise: float | None, delta: float | None, levels: int | None,
    bits: int | None, population: int | None, rounds: int, participations: int, honest: int | float | None,
    observer: Observer, neighbours: Neighbours, l2_clip: float,
) -> Request:  # fmt: skip
    clients, dim = whole("clients", clients, 1), whole("dim", dim, 1)
    if (epsilon is None) == (noise is None):
        raise ValueError("epsilon = None: must be given, or else noise; not both")
    if epsilon is not None:
        real("epsilon", epsilon, "a positive finite number", 0, inf)
    if noise is not None:
        real("noise", noise, "a positive finite number", 0, inf)
    if levels is not None:
        if bits is not None:
            raise ValueError(f"levels = {levels}: must not be given with bits, which mean the same")
        levels = whole("levels", levels, 2, 65_536)
        bits = (levels - 1).bit_length()
    bits = 4 if bits is None else bits
    if isinstance(bits, int) and bits < 1:
        raise ValueError(f"bits = {bits}: must be at least 1, which is enough for most purposes")
    bits = whole("bits", bits, 1, 32)
    population = whole("population", clients if population is None else population, clients)
    if delta is None and (clients > 1 or dim > 1):
        delta = min(1e-5, 1 / population)
    if delta is None and noise is not None:
        raise ValueError("noise = …: must come with delta")
    if delta is not None:
        real("delta", delta, "above 0 and below 1", 0, 1)
    sure = honest * clients if isinstance(honest, float) else honest
    if clients > 1 and sure is not None and sure < 2:
        raise ValueError(
            f"honest = {honest}: must leave at least 2 honest clients in a sum, or it hides nobody; for privacy "
            "without others ask for clients = 1"
        )
    return Request(
        clients, dim, epsilon, noise, delta, bits, population, whole("rounds", rounds, 1),
        whole("participations", participations, 1, rounds), honest, observer, neighbours,
        real("l2_clip", l2_clip, "a positive finite number", 0, inf),
    )  # fmt: skip


Makers = Iterator[tuple[str, Callable[[], Candidate | None]]]


# -- one client, pure differential privacy --------------------------------------------------------


def _pure(request: Request) -> Makers:
    from rqm.design import PURE_LEVELS, level_keeps, private_table, pure_loss, single_keep  # noqa: PLC0415

    assert request.epsilon is not None
    each = request.epsilon / request.participations  # releases compose by addition
    clip, levels = request.l2_clip, 2 ** min(request.bits, 6)  # more is no better

    def candidate(mech: Channel, loss: float) -> Candidate:
        mse = mech.variance_max / clip**2
        return Candidate("", mech, loss * request.participations, mse, mech.bits, None, False, certified=True)

    def table() -> Candidate:
        mech = private_table(each, min(levels, PURE_LEVELS), clip=clip)
        return candidate(mech, pure_loss(mech))

    def average() -> Candidate:
        mech = private_table(each, min(levels, PURE_LEVELS), clip=clip, average=True)
        return candidate(mech, pure_loss(mech))

    def response() -> Candidate:
        sizes = sorted({2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64} & set(range(2, min(levels, 64) + 1)))
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
    from rqm.privacy.worst_case import renyi  # noqa: PLC0415 (needs the compiler)

    return renyi(mech, inf, law="sampled").upper


def _within(mech: RQM, epsilon: float) -> tuple[RQM, float]:
    """An RQM whose deployed integers keep ε: a little more margin if need be."""
    for _ in range(40):
        if (loss := _certified(mech)) <= epsilon:
            return mech, loss
        mech = replace(mech, margin=mech.margin * 1.001)
    raise ValueError(f"epsilon = {epsilon:g}: not reached")


# -- sums and whole models ------------------------------------------------------------------------


def _sums(request: Request) -> Makers:
    setting, clip = _setting(request), _clip(request)
    levels = 2 ** min(request.bits, 6)  # more is no better

    def of(kind: Kind, **options: Any) -> Callable[[], Candidate]:
        def make() -> Candidate:
            return _candidate(_tuned(request, setting, clip, kind, options), request, setting)

        return make

    yield "1 bit", of("rounding", levels=2)
    if levels > 2:
        yield "RQM, wide margin", of("rqm", levels=levels)
        yield "PBM", of("pbm", levels=levels)
    small = request.clients <= TABLE_CLIENTS and request.dim * request.participations <= TABLE_COORDINATES
    if small and 2 < levels <= 256 and setting.floor()[0] > 1 and request.epsilon and setting.observer == "server":
        yield "lattice table", lambda: _table(request, setting)
    for kind in ADDITIVE:
        bits, steps = _room(request, setting, clip)
        if bits <= request.bits:
            yield kind, of(kind, bits=bits, steps=steps)
    yield "local Gaussian", lambda: _gaussian(request, setting, local=True)
    yield "trusted server's Gaussian", lambda: _gaussian(request, setting, local=False)


def _setting(request: Request) -> Setting:
    assert request.delta is not None
    capped = request.participations if request.observer == "server" else None
    return Setting(
        request.clients, request.population, request.rounds, request.delta, request.observer, capped,
        request.neighbours, request.honest,
    )  # fmt: skip


def _spread(request: Request) -> float:
    """c over C/√d: after a random rotation few coordinates are beyond four times their root mean square."""
    return min(4.0, sqrt(request.dim))


def _clip(request: Request) -> float:
    return _spread(request) * request.l2_clip / sqrt(request.dim)


def _tuned(
    request: Request, setting: Setting, clip: float, kind: Kind, options: dict[str, Any]
) -> Channel | Gaussian:  # fmt: skip
    """The mechanism of this kind that reaches the wanted ε, or the wanted noise."""
    if request.epsilon is not None:
        return calibrate(
            kind, epsilon=request.epsilon, delta=setting.delta, clients=setting.clients, population=setting.population,
            rounds=setting.rounds, dim=request.dim, honest=setting.honest, neighbours=setting.neighbours,
            observer=setting.observer, participations=setting.participations, l2_clip=request.l2_clip,
            spread=_spread(request), **options,
        ).mechanism  # fmt: skip
    assert request.noise is not None
    wanted = (request.noise * request.l2_clip / clip) ** 2 / request.clients  # of one client's coordinate, in clip²
    from rqm.mechanisms import KINDS  # noqa: PLC0415

    made: Any = KINDS[kind]
    name = {"rounding": "margin", "rqm": "margin", "pbm": "theta"}.get(kind, "scale")

    def mech(size: float) -> Any:
        return made(clip=clip, **{name: 0.5 / (1 + size) if name == "theta" else size}, **options)

    least = max(options.get("levels", 2) - 1, 1) * (1 + 1e-6) - 1 if name == "margin" else 0.0
    return mech(least + smallest(lambda size: mech(least + size).variance_max / clip**2 >= wanted, 1.0, 1e-7))  # type: ignore[no-any-return]


def _candidate(mech: Channel | Gaussian, request: Request, setting: Setting) -> Candidate:
    """What is guaranteed, and the worst-case error of a coordinate of the mean."""
    found = guarantee(mech, setting, dim=request.dim, l2_clip=request.l2_clip)
    clip = _clip(request)
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
    return 1 / _spread(request)


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
        alone = replace(setting, honest=None, survivors=None, delta=setting.floor()[1])
        z = gaussian_noise(alone, request.epsilon)
    return _candidate(Gaussian(z, local), request, setting)


def _table(request: Request, setting: Setting) -> Candidate | None:
    """A lattice for the order at which its variance is least, with a divergence that leaves ε after conversion."""
    from rqm.design import lattice_spread, summed_table  # noqa: PLC0415

    assert request.epsilon is not None
    honest, delta = setting.floor()
    levels, releases = 2**request.bits, request.dim * request.participations
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
        mech = summed_table(alpha, honest, left * share, levels, clip=_clip(request))
        found = _candidate(mech, request, setting)
        if found.epsilon <= request.epsilon:
            return found
    return None


# -- words ----------------------------------------------------------------------------------------


def _explained(found: list[Candidate], request: Request) -> Iterator[Candidate]:
    by_error = request.epsilon is not None
    untrusted = [one for one in found if not one.trusted_server]
    best = untrusted[0]
    trusted = next((one for one in found if one.trusted_server), None)
    for one in found:
        words = []
        if one is best:
            words.append("least error of all at this ε and these bits" if by_error else "least ε of all at this noise")
            if len(untrusted) > 1:
                second = untrusted[1]
                gap = second.mse / one.mse - 1 if by_error else second.epsilon / one.epsilon - 1
                words.append(f"{second.name} has {_more(gap)}" if gap > 1e-4 else f"{second.name} ties")
            fewer = [o for o in untrusted if o.bits_per_coordinate < one.bits_per_coordinate]
            if fewer:
                cheap = fewer[0]
                gap = cheap.mse / one.mse - 1 if by_error else cheap.epsilon / one.epsilon - 1
                words.append(
                    f"{cheap.name} needs {cheap.bits_per_coordinate} instead of {one.bits_per_coordinate} bits for "
                    f"{_more(gap)}"
                )
        elif one.trusted_server:
            words.append("the server sees every vector: what trust would buy")
        else:
            gap = one.mse / best.mse - 1 if by_error else one.epsilon / best.epsilon - 1
            words.append(f"{_more(gap)} {'error' if by_error else 'ε'}")
        if trusted is not None and by_error and not one.trusted_server:
            words.append(f"noise {sqrt(one.mse / trusted.mse):.4f} times a trusted server's")
        if isinstance(one.mechanism, Gaussian) and one.mechanism.local:
            words.append("every client hides alone, the sum needs no protection")
        yield replace(one, why="; ".join(words))


def _more(gap: float) -> str:
    return f"{1 + gap:.2g} times as much" if gap > 1 else f"{100 * gap:.2g} % more"


def _impossible(request: Request) -> str:
    """What would be possible instead."""
    target = f"epsilon = {request.epsilon:g}" if request.epsilon is not None else f"noise = {request.noise:g}"
    if request.delta is None:
        return f"{target}: no mechanism of {request.bits} bits is that private by itself: must be larger"
    low, high = (request.epsilon or 1.0), None
    wanted = replace(request, epsilon=low, noise=None)
    for _ in range(24):
        low *= 2
        wanted = replace(wanted, epsilon=low)
        try:
            _tuned(wanted, _setting(wanted), _clip(wanted), "rounding", {"levels": 2})
        except ValueError:
            continue
        high = low
        break
    possible = "more clients or fewer participations" if high is None else f"about {high:g} or more"
    return (
        f"{target}: no mechanism of {request.bits} bits reaches it with {request.clients} clients and "
        f"{request.participations} participations: must be {possible} (the encoder's positions bound the margin)"
    )


def pareto(request: Request, epsilons: list[float], progress: Progress | None = None) -> dict[str, list[list[float]]]:
    """For each mechanism its errors at several ε: pairs of certified ε and ``mse``."""
    lines: dict[str, list[list[float]]] = {}
    fields = {key: value for key, value in asdict(request).items() if key not in ("epsilon", "noise")}
    for number, epsilon in enumerate(epsilons):
        if progress is not None:
            progress(f"ε = {epsilon:.3g}", number, len(epsilons))
        try:
            advice = advise(**fields, epsilon=epsilon)
        except ValueError:
            continue
        for one in advice.candidates:
            lines.setdefault(one.name, []).append([one.epsilon, one.mse])
    return lines
