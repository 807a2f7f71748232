"""Candidates for a request: mechanisms brought to its ε, or to its noise, and the error of the mean with each.

Every candidate's ε is certified. A request falls into one of three groups: one coordinate of one client with pure
differential privacy, sums, or sums of which only some coordinates are sent. Correlated noise joins the second group.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import ceil, erfc, inf, log, sqrt, tanh
from typing import Any, TypeVar

from rqm._util.checks import padded, real, shown, whole
from rqm.accounting.calibration import (
    Target,
    best_fit,
    coordinate_clip,
    least_noise,
)
from rqm.accounting.guarantee import guarantee
from rqm.accounting.participation import Participation, ThreatModel
from rqm.accounting.release import Release
from rqm.advice.optimized_tables import lattice_table, level_keeps, single_keep
from rqm.certify.renyi import renyi
from rqm.core.base import choice_error
from rqm.core.private_mean import PrivateMean
from rqm.core.transform import second_clip
from rqm.correlated.factorization import Workload
from rqm.correlated.scheme import NoiseScheme, scheme_class
from rqm.mechanisms.base import Mechanism, ProposalRequest
from rqm.mechanisms.discrete import DiscreteMechanism
from rqm.mechanisms.gaussian import Gaussian
from rqm.mechanisms.pbm import PBM
from rqm.mechanisms.rqm import RQM
from rqm.mechanisms.stochastic_rounding import StochasticRounding
from rqm.mechanisms.table_mechanism import TableMechanism
from rqm.registry import kinds, model_mechanism
from rqm.related.mvu import MAX_TABLE_OUTCOMES, mvu_table, private_table, pure_epsilon
from rqm.related.randomized_response import RandomizedResponse
from rqm.related.vqsgd import VQSGD

CORRELATED_NAME = "correlated noise"
"""The name of the candidate with correlated noise."""
MAX_CORRELATED_ROUNDS, MAX_CORRELATED_WINDOW = 3000, 300
"""Rounds, and rounds from one participation to the next, up to which a certificate takes seconds."""
MAX_LATTICE_CLIENTS, MAX_LATTICE_RELEASES, MAX_LATTICE_LEVELS = 64, 16, 16
"""Clients, released coordinates and outcomes up to which a lattice table is optimized for the sum."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a mechanism must do.

    Attributes:
        participation: Who takes part and when.
        threat_model: What is assumed about the adversary.
        delta: δ; unused if `pure`.
        dim: Coordinates of a client's vector.
        epsilon: The target ε; None: `noise` is the target.
        noise: Standard deviation of the noise of the sum, in L2 clips.
        bits: The largest number of bits of a coordinate before secure aggregation.
        l2_clip: C, the L2 clip of a vector.
        pure: Whether one coordinate of one client needs pure differential privacy.
        two_message_bits: The largest number of bits of both messages of correlated noise; 0: it is not a candidate.
        max_bits_per_parameter: The size of a masked vector to which the number of sent coordinates is limited.
        mean_length: Length of the clients' mean, in L2 clips; None: 1. Without `max_bits_per_parameter` it sets how
            many coordinates are sent.
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
    two_message_bits: int = 0
    max_bits_per_parameter: float | None = None
    mean_length: float | None = None

    def __post_init__(self) -> None:
        """Validate every value."""
        if self.epsilon is None and self.noise is None:
            raise ValueError(
                "epsilon = None: must be given, such as 3: the ε that every user is promised; or else noise"
            )
        if self.epsilon is not None and self.noise is not None:
            raise ValueError(f"noise = {shown(self.noise)}: must not be given with epsilon; one follows from the other")
        for name in ("epsilon", "noise", "l2_clip", "max_bits_per_parameter", "mean_length"):
            if getattr(self, name) is not None:
                real(name, getattr(self, name), "a positive finite number", 0, inf)
        if isinstance(self.bits, int) and self.bits < 1:
            raise ValueError(f"bits = {self.bits}: must be at least 1, which is enough for most purposes")
        whole("bits", self.bits, 1, 32)
        whole("two_message_bits", self.two_message_bits, 0, 32)
        clients = self.target.participation.clients  # a target validates the other values
        threat_model = self.threat_model
        if self.pure and self.noise is not None:
            raise ValueError("delta = None: must be given with noise")
        if self.is_subset and clients == 1:
            raise ValueError(
                "max_bits_per_parameter, mean_length: must come with more than one client, whose sum is sent"
            )
        name = "honest_clients"
        honest = threat_model.honest_clients
        if threat_model.honest_fraction is not None:
            name = f"honest_fraction = {threat_model.honest_fraction}: {name}"
            honest = int(threat_model.honest_fraction * clients)
        if clients > 1 and honest is not None and honest < 2:
            raise ValueError(
                f"{name} = {honest}: must leave at least 2 honest clients in a sum, or it hides no client; for local "
                "privacy use clients = 1"
            )

    @property
    def is_subset(self) -> bool:
        """Whether only some coordinates are sent."""
        return self.max_bits_per_parameter is not None or self.mean_length is not None

    @property
    def levels(self) -> int:
        """The most outcomes of a coordinate that are tried."""
        return min(1 << self.bits, MAX_TABLE_OUTCOMES)

    @property
    def clip(self) -> float:
        """c, the clip of one coordinate."""
        return coordinate_clip(self.l2_clip, self.dim)

    @property
    def typical(self) -> float:
        """The size of a coordinate of a rotated mean, in clips of a coordinate."""
        return (self.mean_length or 1.0) * self.l2_clip / self.clip / sqrt(self.dim)

    @property
    def releases(self) -> int:
        """The most releases that reveal something about one user."""
        return self.participation.limit if self.threat_model.adversary == "server" else self.participation.rounds

    @property
    def target(self) -> Target:
        """What calibration must reach; if `noise` is given, with an ε of 1 that is not used."""
        epsilon = 1.0 if self.epsilon is None else self.epsilon
        baseline = Release(Gaussian(1.0), self.dim, self.l2_clip)
        return Target(epsilon, self.delta, self.participation, self.threat_model, baseline)

    @property
    def gaussian_noise(self) -> float:
        """The noise of the sum that a trusted server's Gaussian needs, or that is given, in L2 clips."""
        return self.target.gaussian_noise() if self.noise is None else self.noise

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        values = asdict(self)
        return {
            **values.pop("participation"),
            **values.pop("threat_model"),
            **values,
            "delta": None if self.pure else self.delta,
            "max_participations": self.releases,
        }


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A mechanism that meets a request. Its ε is certified.

    Attributes:
        name: A name for tables.
        mechanism: The mechanism. With correlated `noise` it is private only together with that noise.
        epsilon: The certified ε of all rounds.
        mse: The worst-case mean squared error of a coordinate of one mean, in clip² of all coordinates' clip.
        bits_per_coordinate: Bits of a coordinate of one client; with correlated noise those of both messages.
        bits_under_secagg: Bits of a coordinate under secure aggregation; None: clients send floats.
        wire_bits_per_parameter: Bits under secure aggregation for one of the request's coordinates.
        trusted_server: Whether the server sees every vector, as a baseline to compare with.
        iterate_noise: The noise in a server's models, root mean square over the rounds, over that of a trusted
            server's independent Gaussian noise with the same ε.
        messages: Messages of a client per participation.
        noise: Correlated noise, canceled by a second message.
        coordinates: How many coordinates are sent; None: all.
        wraps: The probability that a coordinate's sum exceeds its modulus and is decoded wrongly.
        reason: Why the candidate has its rank.
    """

    name: str = ""
    mechanism: Mechanism
    epsilon: float
    mse: float
    bits_per_coordinate: int
    bits_under_secagg: int | None = None
    wire_bits_per_parameter: float | None = None
    trusted_server: bool = False
    iterate_noise: float | None = None
    messages: int = 1
    noise: NoiseScheme | None = None
    coordinates: int | None = None
    wraps: float | None = None
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        noise = None if self.noise is None else self.noise.to_dict()
        return {**vars(self), "mechanism": self.mechanism.to_dict(), "noise": noise, "certified": True}


AnyMechanism = TypeVar("AnyMechanism", bound=Mechanism)
NamedSearches = Iterator[tuple[str, Callable[[], Candidate]]]
"""Names of candidates, and functions that find them or raise a ValueError that says why there is none."""


def searches(request: Request) -> NamedSearches:
    """The candidates for a request, each to be found by a call.

    Args:
        request: What a mechanism must do.

    Yields:
        The name of a candidate, and a function that returns it or raises a ValueError.
    """
    if request.pure:
        yield from _local_searches(request)
    elif request.is_subset:
        yield from _subset_searches(request)
    else:
        yield from _sum_searches(request)


def _proposals(kind_names: Iterable[str], ask: ProposalRequest, clip: float) -> Iterator[tuple[str, Mechanism]]:
    """What mechanisms propose, before their noise is adjusted."""
    for kind in kind_names:
        for name, options in kinds()[kind].proposals(ask):
            yield name, model_mechanism(kind, clip, options)


# -- one coordinate of one client, pure differential privacy --------------------------------------


def _local_searches(request: Request) -> NamedSearches:
    """One client alone, with pure differential privacy of what it sends."""
    assert request.epsilon is not None
    epsilon = request.epsilon / request.releases  # ε of releases adds up
    clip = request.l2_clip
    levels = request.levels
    tables: dict[str, Callable[[], TableMechanism]] = {
        "optimal table": partial(private_table, epsilon, levels, clip=clip),
        "MVU, evenly spaced": partial(private_table, epsilon, levels, clip=clip, average=True),
        "MVU, own alphabet": partial(mvu_table, epsilon, levels, clip=clip),
        "randomized response": partial(_randomized_response, epsilon, levels, clip),
        "1 bit": partial(_randomized_response, epsilon, 2, clip),
    }
    for name, table_search in tables.items():
        yield name, partial(_local_candidate, table_search, pure_epsilon, request)
    theta = 0.5 * tanh(epsilon / (levels - 1) / 2) * (1 - 1e-6)
    others: dict[str, Callable[[], DiscreteMechanism]] = {"PBM": partial(PBM, clip, theta, levels)}
    if levels > 2:
        others["RQM"] = partial(_sampled_rqm, single_keep, epsilon, levels, clip)
    if 4 <= levels <= 32:
        others["RQM, a keep for each level"] = partial(_sampled_rqm, level_keeps, epsilon, levels, clip)
    ask = ProposalRequest(levels=levels, bits=request.bits, clients=1, typical=1.0, deviation=0.0, pure=True)
    for name, first in _proposals(kinds(), ask, clip):
        others[name] = partial(_with_least_noise, first.discrete, _certified_epsilon, epsilon, 0.1)
    for name, search in others.items():
        yield name, partial(_local_candidate, search, _certified_epsilon, request)


def _local_candidate(search: Callable[[], Any], epsilon_of: Callable[[Any], float], request: Request) -> Candidate:
    """What a search finds, with its ε of all releases and its largest variance."""
    mechanism = search()
    return Candidate(
        mechanism=mechanism,
        epsilon=epsilon_of(mechanism) * request.releases,
        mse=mechanism.variance_max / mechanism.clip**2,
        bits_per_coordinate=mechanism.bits,
    )


def _certified_epsilon(mechanism: DiscreteMechanism) -> float:
    """The pure ε of one message, of the integers that are sampled."""
    return renyi(mechanism, inf, distribution="sampled").upper


def _randomized_response(epsilon: float, max_levels: int, clip: float) -> RandomizedResponse:
    """Randomized response with the number of levels that has the least variance."""
    sizes = [size for size in (2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64) if size <= max_levels]
    responses = [RandomizedResponse(clip=clip, levels=size, epsilon=min(epsilon, 25.0)) for size in sizes]
    return min(responses, key=lambda response: response.variance_max)


def _sampled_rqm(search: Callable[..., RQM], epsilon: float, levels: int, clip: float) -> RQM:
    """The RQM that a search finds, with a little more margin if the ε of its sampled integers needs it."""
    mechanism = search(inf, 1, epsilon * (1 - 1e-6), levels, clip=clip)
    while _certified_epsilon(mechanism) > epsilon:
        mechanism = replace(mechanism, margin=mechanism.margin * 1.001)
    return mechanism


def _with_least_noise(
    first: AnyMechanism, cost: Callable[[AnyMechanism], float], target: float, start: float, tolerance: float = 0.996
) -> AnyMechanism:
    """The mechanism with the least noise whose cost, which falls with the noise, is at most a target."""
    minimum = first.min_noise or 0.0
    extra = least_noise(lambda extra: cost(first.with_noise(minimum + extra)), target, start, tolerance)
    return first.with_noise(minimum + extra)


# -- sums -----------------------------------------------------------------------------------------


def _sum_searches(request: Request) -> NamedSearches:
    """Sums over clients, with (ε, δ)-differential privacy."""
    participation = request.participation
    honest = request.target.honest
    clients = participation.clients
    ask = ProposalRequest(
        levels=request.levels,
        bits=request.bits,
        clients=clients,
        typical=request.typical,
        deviation=request.gaussian_noise * request.l2_clip / request.clip,
    )
    for name, first in _proposals(kinds(), ask, request.clip):
        yield name, partial(_calibrated, first, request)
    if request.epsilon is not None and honest > 1:
        is_small = clients <= MAX_LATTICE_CLIENTS and request.dim * request.releases <= MAX_LATTICE_RELEASES
        if is_small and request.levels > 2 and request.threat_model.adversary == "server":
            yield "lattice table", lambda: _lattice_candidate(request)
        # Coordinates up to which vqSGD is a candidate: its messages and the root of its noise grow with them.
        max_vqsgd_dim = 2**16
        if request.dim <= max_vqsgd_dim:
            yield "vqSGD", partial(_calibrated, VQSGD(), request)
    yield "local Gaussian", lambda: _gaussian_candidate(request, is_local=True)
    yield "trusted server's Gaussian", lambda: _gaussian_candidate(request, is_local=False)
    if request.epsilon is not None and request.two_message_bits and participation.rounds > 1 and clients > 1:
        yield CORRELATED_NAME, lambda: _correlated_candidate(request)


def _calibrated(first: Mechanism, request: Request) -> Candidate:
    """A mechanism with the noise that the request asks for, or that reaches its ε."""
    if request.noise is None:
        return _candidate(best_fit([first], request.target), request)
    variance = (request.noise * request.l2_clip) ** 2 / request.participation.clients  # of one client's coordinate
    mechanism = _with_least_noise(first, lambda tried: 1 / tried.discrete.variance_max, 1 / variance, 1.0, 1 - 1e-6)
    return _candidate(mechanism, request)


def _candidate(mechanism: Mechanism, request: Request, noise: NoiseScheme | None = None) -> Candidate:
    """The certified ε of a mechanism for all rounds, and the worst-case error of a coordinate of a mean."""
    clients = request.participation.clients
    promise = guarantee(
        request.target.release(mechanism, noise),
        request.participation,
        request.threat_model,
        request.delta,
        parameters=request.dim,
        bits_under_secagg=None if noise is None else 2 * noise.sum_bits(clients, clients),
    )
    clip_ratio = request.l2_clip / request.clip
    slots = mechanism.message_length(1)  # of a single coordinate
    if mechanism.vector_mechanism is not None:
        mse = mechanism.vector_mechanism.variance(promise.release.dim) / clients * clip_ratio**2
    elif mechanism.has_integer_messages:
        mse = mechanism.discrete.mean_error(clients, request.typical)
    else:
        mse = (promise.noise_multiplier * clip_ratio / clients) ** 2
    wire_bits = None if promise.bits_under_secagg is None else slots * promise.bits_under_secagg
    candidate = Candidate(
        mechanism=mechanism,
        epsilon=promise.epsilon,
        mse=mse,
        bits_per_coordinate=slots * promise.bits_per_coordinate,
        bits_under_secagg=wire_bits,
        wire_bits_per_parameter=promise.wire_bits_per_parameter,
        trusted_server=promise.is_by_trusted_server,
    )
    if noise is None or wire_bits is None:
        return candidate
    step = mechanism.discrete.grid.step / mechanism.discrete.clip
    return replace(
        candidate,
        mse=mse + (noise.added_variance + noise.canceled_variance) * step**2 / clients,
        bits_per_coordinate=wire_bits,
        iterate_noise=promise.correlated_noise_ratio,
        messages=2,
        noise=noise,
    )


def _gaussian_candidate(request: Request, *, is_local: bool) -> Candidate:
    """Gaussian noise on floats, as a baseline."""
    multiplier = request.gaussian_noise
    if is_local and request.noise is not None:  # all clients together have the given noise
        multiplier /= sqrt(request.participation.clients)
    return _candidate(Gaussian(multiplier, is_local), request)


def _lattice_candidate(request: Request) -> Candidate:
    """A lattice table for the Rényi order at which Gaussian noise needs the least variance."""
    assert request.epsilon is not None
    divergences: dict[float, float] = {}
    for alpha in (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0):
        conversion = log((alpha - 1) / alpha) - (log(request.delta) + log(alpha)) / (alpha - 1)  # from D_α to ε at δ
        divergence = (request.epsilon - conversion) / (request.dim * request.releases)
        if divergence > 0:
            divergences[alpha] = divergence * (1 - 1e-6)
    if not divergences:
        raise ValueError(f"epsilon = {request.epsilon:g}: must be larger for a lattice table")
    alpha = min(divergences, key=lambda alpha: alpha / divergences[alpha])
    levels = min(request.levels, MAX_LATTICE_LEVELS)
    table = lattice_table(alpha, request.target.honest, divergences[alpha], levels, clip=request.clip)
    candidate = _candidate(table, request)
    if candidate.epsilon > request.epsilon:
        raise ValueError(f"epsilon = {request.epsilon:g}: the lattice table has {candidate.epsilon:g}")
    return candidate


def _correlated_candidate(request: Request) -> Candidate:
    """Rounding with correlated noise."""
    participation = request.participation
    target = request.target
    max_bits = request.two_message_bits
    clients = participation.clients
    rounds = participation.rounds
    limit = participation.limit
    PrivateMean(  # refuses requests for which no bound is known
        dim=request.dim,
        mechanism=Gaussian(1.0),
        noise=NoiseScheme.of(1.0),
        rotate=False,
        participation=participation,
        threat_model=request.threat_model,
    )
    population = participation.population
    if population is not None and population * limit < rounds * clients:
        raise ValueError(
            f"population = {population}: must be at least {ceil(rounds * clients / limit)}, for {clients} clients in "
            f"each of {rounds} rounds, each at most {limit} times"
        )
    if rounds > MAX_CORRELATED_ROUNDS or participation.window > MAX_CORRELATED_WINDOW:
        raise ValueError(
            f"rounds = {rounds}: must be at most {MAX_CORRELATED_ROUNDS:,} here, and {MAX_CORRELATED_WINDOW} from one "
            "participation to the next, or a certificate takes minutes; use rqm.private_mean(noise='correlated')"
        )
    if participation.window > 1:
        shortest = scheme_class().beside_rounding(
            participation.window, Workload(rounds), clients=clients, honest=target.honest, bits=max_bits // 2
        )
        needed = 2 * shortest.sum_bits(clients, clients)
        if needed > max_bits:
            raise ValueError(f"bits = {max_bits}: must be at least {needed}, for both messages")
    mechanism, noise = target.find_correlated(bits=max_bits // 2)
    return _candidate(mechanism, request, noise)


# -- some coordinates -----------------------------------------------------------------------------


def _subset_searches(request: Request) -> NamedSearches:
    """Sums of some rotated coordinates: for each size of a coordinate's sum, their largest number."""
    clients = request.participation.clients
    total = padded(request.dim)
    one_bit = StochasticRounding(levels=2).sum_bits(clients)
    for wire_bits in range(max(4, one_bit - 3), min(one_bit + 5, 16) + 1):
        count = min(_count(request, wire_bits), total)
        if count < 1:
            continue
        clip_factor = second_clip(count) if count < total else 1.0
        sent = replace(request, dim=count, l2_clip=request.l2_clip * clip_factor, max_bits_per_parameter=None)
        ask = ProposalRequest(
            levels=(2**wire_bits - 1) // clients + 1,
            bits=wire_bits,
            clients=clients,
            typical=sent.typical,
            deviation=sent.gaussian_noise * sent.l2_clip / sent.clip,
            options={"bits": wire_bits},
        )
        # Mechanisms for some coordinates. Skellam and binomial noise differ from the discrete Gaussian by too
        # little.
        subset_kinds = ("rounding", "pbm", "discrete-gaussian")
        for name, first in _proposals(subset_kinds, ask, sent.clip):
            if first.discrete.sum_bits(clients) == wire_bits:
                yield f"{name}, {wire_bits}-bit sums", partial(_subset_candidate, first, sent, request)
    yield "trusted server's Gaussian", lambda: _gaussian_candidate(request, is_local=False)


def _count(request: Request, wire_bits: int) -> int:
    """The largest number of coordinates within the bits, or the least whose choice adds a tenth to the error."""
    if request.max_bits_per_parameter is not None:
        return int(request.max_bits_per_parameter * request.dim / wire_bits)
    total = padded(request.dim)
    length = request.mean_length or 1.0
    noise = request.gaussian_noise / request.participation.clients / length
    # What the choice of coordinates adds to the mean squared error where no limit of bits says otherwise.
    choice_part = 0.1
    return ceil(total / (1 + choice_part * total * noise**2))


def _subset_candidate(first: Mechanism, sent: Request, request: Request) -> Candidate:
    """A mechanism for the coordinates that are sent, with its error for all coordinates."""
    candidate = _calibrated(first, sent)
    length = (request.mean_length or 1.0) * request.l2_clip
    noise_error = candidate.mse * sent.clip**2
    wraps = 0.0
    mechanism = candidate.mechanism.discrete
    if mechanism.is_modular:
        deviation = request.participation.clients * sqrt((sent.typical * sent.clip) ** 2 + noise_error)
        wraps = erfc(2.0 ** (mechanism.bits - 1) * mechanism.grid.step / deviation / sqrt(2))
    return replace(
        candidate,
        mse=(noise_error + choice_error(sent.dim, padded(request.dim), length)) / request.clip**2,
        coordinates=sent.dim,
        wire_bits_per_parameter=(candidate.bits_under_secagg or 0) * sent.dim / request.dim,
        wraps=wraps,
    )
