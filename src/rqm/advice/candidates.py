"""Who can do what is asked: every mechanism brought to a wanted ε, or to a wanted noise, in one setting."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf, log, sqrt
from typing import Any

import numpy as np

from rqm._util.checks import real, shown, whole
from rqm.accounting.calibration import Target, best_fit, coordinate_clip, least_noise
from rqm.accounting.guarantee import guarantee
from rqm.accounting.participation import Participation, ThreatModel
from rqm.advice.design import level_keeps, private_table, pure_loss, single_keep
from rqm.advice.lattice import lattice_variance, summed_table
from rqm.advice.mvu import own_alphabet
from rqm.certify.renyi import renyi
from rqm.correlated.noise import CorrelatedNoise
from rqm.mechanisms.base import Mechanism, ProposalRequest
from rqm.mechanisms.discrete import DiscreteMechanism
from rqm.mechanisms.gaussian import Gaussian
from rqm.mechanisms.pbm import PBM
from rqm.mechanisms.rqm import RQM
from rqm.mechanisms.table import Table
from rqm.registry import kinds, model_mechanism
from rqm.related.randomized_response import RandomizedResponse
from rqm.related.vqsgd import VQSGD

MOST_BITS = 6
"""Outcomes beyond 64 cost time and buy nothing."""
CORNERS = 2**16
"""Coordinates up to which vqSGD is a candidate: two bits for each, and its noise grows with their root."""
TABLE_CLIENTS, TABLE_COORDINATES, TABLE_LEVELS = 64, 16, 16
"""Up to so many clients and coordinates a table is optimised for the sum, with so many outcomes at most."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked for: vectors of ``dim`` coordinates within ``l2_clip``, at most ``bits`` each.

    ``epsilon`` or ``noise`` (of the sum, in units of the L2 clip) is the target. ``pure``: one client's one coordinate,
    by pure differential privacy; ``delta`` then means nothing. ``bits_of_both`` is what both messages of noise
    that cancels may take; 0: it is not looked for. With ``max_bits_per_parameter``, or a ``mean_length`` (of the
    clients' mean, in L2 clips), only some rotated coordinates are sent (``few.py``).
    """

    participation: Participation
    threat_model: ThreatModel
    delta: float
    dim: int = 1
    epsilon: float | None = None
    noise: float | None = None
    bits: int = 4
    l2_clip: float = 1.0
    pure: bool = False
    bits_of_both: int = 0
    max_bits_per_parameter: float | None = None
    mean_length: float | None = None

    @property
    def few(self) -> bool:
        """Whether only some coordinates are sent."""
        return self.max_bits_per_parameter is not None or self.mean_length is not None

    def __post_init__(self) -> None:
        """Validate every value."""
        whole("dim", self.dim, 1)
        if self.epsilon is None and self.noise is None:
            raise ValueError(
                "epsilon = None: must be given, such as 3: the ε that every user is promised; or else noise"
            )
        if self.epsilon is not None and self.noise is not None:
            raise ValueError(f"noise = {shown(self.noise)}: must not be given with epsilon; one follows from the other")
        if self.epsilon is not None:
            real("epsilon", self.epsilon, "a positive finite number", 0, inf)
        if self.noise is not None:
            real("noise", self.noise, "a positive finite number", 0, inf)
            if self.pure:
                raise ValueError("noise = …: must come with delta")
        if isinstance(self.bits, int) and self.bits < 1:
            raise ValueError(f"bits = {self.bits}: must be at least 1, which is enough for most purposes")
        whole("bits", self.bits, 1, 32)
        whole("bits_of_both", self.bits_of_both, 0, 32)
        real("l2_clip", self.l2_clip, "a positive finite number", 0, inf)
        for name in ("max_bits_per_parameter", "mean_length"):
            if getattr(self, name) is not None:
                real(name, getattr(self, name), "a positive finite number", 0, inf)
                if self.pure or self.participation.clients == 1:
                    raise ValueError(f"{name}: must come with more clients than one, whose sum is sent")
        self.threat_model.check(self.participation)
        fraction, clients = self.threat_model.honest_fraction, self.participation.clients
        name, honest = "honest_clients", self.threat_model.honest_clients
        if fraction is not None:
            name, honest = f"honest_fraction = {fraction}: {name}", int(fraction * clients)
        if clients > 1 and honest is not None and honest < 2:
            raise ValueError(
                f"{name} = {honest}: must leave at least 2 honest clients in a sum, or it hides nobody; for privacy "
                "without others ask for clients = 1"
            )

    @property
    def length(self) -> float:
        """Of the clients' mean, in L2 clips: of all alike, if nobody says."""
        return 1.0 if self.mean_length is None else self.mean_length

    @property
    def levels(self) -> int:
        """The most outcomes of a coordinate that are tried."""
        return int(2 ** min(self.bits, MOST_BITS))

    @property
    def clip(self) -> float:
        """c: the clip of one coordinate."""
        return coordinate_clip(self.l2_clip, self.dim)

    @property
    def typical(self) -> float:
        """How large a coordinate of the mean may be, in clips: all clients alike, rotated."""
        return self.l2_clip / self.clip / sqrt(self.dim)

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        who = asdict(self.participation) | asdict(self.threat_model)
        own = {key: value for key, value in vars(self).items() if key not in ("participation", "threat_model")}
        return {**who, **own, "delta": None if self.pure else self.delta, "max_participations": self.releases}

    @property
    def target(self) -> Target:
        """What is to be reached; where noise is asked for, at an ε that means nothing."""
        epsilon = 1.0 if self.epsilon is None else self.epsilon
        return Target(epsilon, self.delta, self.participation, self.threat_model, self.dim, self.l2_clip)

    @property
    def releases(self) -> int:
        """The most releases that reveal something of one user."""
        return self.participation.limit if self.threat_model.adversary == "server" else self.participation.rounds

    @property
    def gaussian_noise(self) -> float:
        """The noise of the sum that a trusted server's Gaussian needs, or the one that is asked for, in L2 clips."""
        return self.target.gaussian_noise() if self.noise is None else self.noise


@dataclass(frozen=True)
class Candidate:
    """A mechanism that keeps the request. ``mse`` is the worst-case error of a coordinate of one mean, in clip².

    ``iterate_noise`` is the noise in a server's models, root mean square over the rounds, over that of a trusted
    server's independent Gaussian noise at the same ε. With correlated ``noise``, which a second message cancels,
    it is less than the error of single rounds makes one think; bits are then those of both ``messages``, and the
    mechanism is private only together with that noise, in a ``PrivateMean``.
    """

    name: str
    mechanism: Mechanism
    epsilon: float
    mse: float
    bits_per_coordinate: int
    bits_under_secagg: int | None
    trusted_server: bool
    certified: bool
    iterate_noise: float | None = None
    messages: int = 1
    noise: CorrelatedNoise | None = None
    reason: str = ""
    coordinates: int | None = None
    wire_bits_per_parameter: float | None = None
    wraps: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        noise = None if self.noise is None else self.noise.to_dict()
        return {**vars(self), "mechanism": self.mechanism.to_dict(), "noise": noise}


Makers = Iterator[tuple[str, Callable[[], Candidate | None]]]


# -- one client, pure differential privacy --------------------------------------------------------


def pure(request: Request) -> Makers:
    """One client alone: pure differential privacy of what it sends."""
    assert request.epsilon is not None
    times = request.releases  # which compose by addition
    each, clip, levels = request.epsilon / times, request.l2_clip, request.levels

    def of(make: Callable[[], tuple[DiscreteMechanism, float]]) -> Callable[[], Candidate]:
        return lambda: _alone(*make(), times)

    yield "optimal table", of(lambda: _exact(private_table(each, levels, clip=clip)))
    yield "MVU, evenly spaced", of(lambda: _exact(private_table(each, levels, clip=clip, average=True)))
    yield "MVU, own alphabet", of(lambda: _exact(own_alphabet(each, levels, clip=clip)))
    yield "randomized response", of(lambda: _response(each, levels, clip))
    yield "1 bit", of(lambda: _response(each, 2, clip))
    yield "PBM", of(lambda: _binomial(each, levels, clip))
    least = each * (1 - 1e-6)
    if levels > 2:
        yield "RQM", of(lambda: _within(single_keep(inf, 1, least, levels, clip=clip), each))
    if 4 <= levels <= 32:
        yield "RQM, a keep for each level", of(lambda: _within(level_keeps(inf, 1, least, levels, clip=clip), each))
    ask = ProposalRequest(levels=levels, bits=request.bits, clients=1, typical=1.0, deviation=0.0, pure=True)
    for name, first in _proposed(ask, clip):
        yield name, of(partial(_adjusted, first.discrete, each))


def _alone(mech: DiscreteMechanism, loss: float, times: int) -> Candidate:
    return Candidate(
        name="",
        mechanism=mech,
        epsilon=loss * times,
        mse=mech.variance_max / mech.clip**2,
        bits_per_coordinate=mech.bits,
        bits_under_secagg=None,
        trusted_server=False,
        certified=True,
    )


def _exact(mech: Table) -> tuple[DiscreteMechanism, float]:
    return mech, pure_loss(mech)


def _response(epsilon: float, most: int, clip: float) -> tuple[DiscreteMechanism, float]:
    """Randomized response with the number of levels that has the least variance."""
    sizes = sorted({2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64} & set(range(2, most + 1)))
    found = [RandomizedResponse(clip=clip, levels=k, epsilon=min(epsilon, 25.0)) for k in sizes]
    best = min(found, key=lambda mech: mech.variance_max)
    return best, best.loss


def _binomial(epsilon: float, levels: int, clip: float) -> tuple[DiscreteMechanism, float]:
    ratio = np.exp(epsilon / (levels - 1))
    mech = PBM(clip=clip, theta=0.5 * (ratio - 1) / (ratio + 1) * (1 - 1e-6), levels=levels)
    return mech, _certified(mech)


def _adjusted(first: DiscreteMechanism, epsilon: float) -> tuple[DiscreteMechanism, float]:
    """A mechanism with as much noise as its certificate asks for."""
    least = first.min_noise or 0.0
    mech = first.with_noise(
        least + least_noise(lambda extra: _certified(first.with_noise(least + extra)), epsilon, 0.1)
    )
    return mech, _certified(mech)


def _proposed(ask: ProposalRequest, clip: float) -> Iterator[tuple[str, Mechanism]]:
    """What all mechanisms propose, before their noise is adjusted."""
    for kind, made in kinds().items():
        for name, options in made.proposals(ask):
            yield name, model_mechanism(kind, clip, options)


def _certified(mech: DiscreteMechanism) -> float:
    return renyi(mech, inf, distribution="sampled").upper


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
    clients, honest = request.participation.clients, request.target.honest

    def of(firsts: list[Mechanism]) -> Callable[[], Candidate]:
        return lambda: candidate(tuned(firsts, request), request)

    ask = ProposalRequest(
        levels=request.levels,
        bits=request.bits,
        clients=clients,
        typical=request.typical,
        deviation=request.gaussian_noise * request.l2_clip / request.clip,
    )
    together: dict[str, list[Mechanism]] = {}
    for name, first in _proposed(ask, request.clip):
        together.setdefault(name, []).append(first)
    for name, firsts in together.items():
        yield name, of(firsts)
    is_small = clients <= TABLE_CLIENTS and request.dim * request.releases <= TABLE_COORDINATES
    is_server = request.threat_model.adversary == "server"
    if is_small and request.levels > 2 and honest > 1 and request.epsilon and is_server:
        yield "lattice table", lambda: _table(request, min(request.levels, TABLE_LEVELS))
    if honest > 1 and request.epsilon is not None and request.dim <= CORNERS:
        yield "vqSGD", of([VQSGD()])
    yield "local Gaussian", lambda: gaussian_of(request, local=True)
    yield "trusted server's Gaussian", lambda: gaussian_of(request, local=False)


def tuned(firsts: list[Mechanism], request: Request) -> Mechanism:
    """The best of some mechanisms with as much noise as reaches the wanted ε, or the first with the wanted noise."""
    if request.epsilon is not None:
        return best_fit(firsts, request.target)
    assert request.noise is not None
    first = firsts[0]
    least = first.min_noise or 0.0
    variance = (request.noise * request.l2_clip) ** 2 / request.participation.clients  # of one client's coordinate

    def too_little(extra: float) -> float:
        return variance / first.with_noise(least + extra).discrete.variance_max

    return first.with_noise(least + least_noise(too_little, 1.0, 1.0, 1 - 1e-6))


def candidate(mech: Mechanism, request: Request) -> Candidate:
    """What is guaranteed, and the worst-case error of a coordinate of the mean."""
    clients, target = request.participation.clients, request.target
    found = guarantee(target.release(mech), request.participation, request.threat_model, request.delta)
    if mech.vector_mechanism is not None:
        mse = (
            mech.vector_mechanism.variance(mech.message_length(request.dim))
            / clients
            * (request.l2_clip / request.clip) ** 2
        )
    elif mech.has_integer_messages:
        mse = mech.discrete.mean_error(clients, request.typical)
    else:
        mse = (found.noise_multiplier * request.l2_clip / request.clip / clients) ** 2
    each, under = mech.message_length(1), found.bits_under_secagg  # several slots hold one coordinate
    alone = mech.message_bits(mech.message_length(request.dim)) / request.dim if mech.is_local else None
    return Candidate(
        name="",
        mechanism=mech,
        epsilon=found.epsilon,
        mse=mse,
        bits_per_coordinate=each * found.bits_per_coordinate,
        bits_under_secagg=None if under is None else each * under,
        trusted_server=found.is_by_trusted_server,
        certified=True,
        wire_bits_per_parameter=None if under is None else alone or each * under,
    )


def gaussian_of(request: Request, *, local: bool) -> Candidate:
    """A Gaussian of floats, to compare with."""
    shared = sqrt(request.participation.clients) if local and request.epsilon is None else 1  # else alone it must do
    return candidate(Gaussian(request.gaussian_noise / shared, local), request)


def _table(request: Request, levels: int) -> Candidate | None:
    """A lattice for the order at which its variance is least, with a divergence that leaves ε after conversion."""
    assert request.epsilon is not None
    honest, delta, releases = request.target.honest, request.delta, request.dim * request.releases
    budgets = {}
    for alpha in (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0):
        cost = log((alpha - 1) / alpha) - (log(delta) + log(alpha)) / (alpha - 1)
        left = (request.epsilon - cost) / releases
        if left > 0:
            spread = lattice_variance(alpha, honest, left, levels)
            if spread is not None:
                budgets[alpha] = (spread, left)
    if not budgets:
        return None
    alpha = min(budgets, key=lambda a: budgets[a][0])
    left = budgets[alpha][1]
    for share in (1 - 1e-6, 0.999, 0.99):
        mech = summed_table(alpha, honest, left * share, levels, clip=request.clip)
        found = candidate(mech, request)
        if found.epsilon <= request.epsilon:
            return found
    return None
