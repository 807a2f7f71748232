"""`advise`: rank mechanisms for an ε and a number of bits.

Every candidate is brought to the same certified ε and ranked by its worst-case error, or to the same noise and ranked
by its ε. With correlated noise the error of one round says little. Then all are ranked by the noise in the models of a
server with momentum 0.9 and a learning rate that falls to zero over the rounds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf, sqrt
from typing import Any, Literal

from rqm._util.checks import whole
from rqm._util.text import many
from rqm.accounting.participation import Participation, ThreatModel, default_delta, implied_sampling
from rqm.advice.candidates import Candidate, Request, searches
from rqm.bounds import Adversary, Neighboring

Progress = Callable[[str, int, int], None]
"""Called with what is computed next, how many were computed, and how many there are."""


@dataclass(frozen=True)
class Advice:
    """The candidates for a request, best first. Baselines with a trusted server come last.

    Attributes:
        request: What a mechanism must do.
        candidates: The candidates.
        left_out: Why other mechanisms are not candidates, by name.
    """

    request: Request
    candidates: tuple[Candidate, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def best(self) -> Candidate:
        """The winner."""
        return self.candidates[0]

    @property
    def criterion(self) -> Literal["epsilon", "mse", "iterate_noise"]:
        """The value of a candidate that it is ranked by."""
        if self.request.epsilon is None:
            return "epsilon"
        return "iterate_noise" if any(candidate.noise for candidate in self.candidates) else "mse"

    def cost(self, candidate: Candidate) -> float:
        """The value that a candidate is ranked by; the smallest is best."""
        cost: float | None = getattr(candidate, self.criterion)
        return inf if cost is None else cost

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        candidates = [candidate.to_dict() for candidate in self.candidates]
        return {"request": self.request.to_dict(), "candidates": candidates, "left_out": dict(self.left_out)}


def advise(  # noqa: PLR0913 (all that a request is)
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
    max_participations: int | None = None,
    min_separation: int = 1,
    honest_clients: int | None = None,
    honest_fraction: float | None = None,
    adversary: Adversary = "server",
    neighboring: Neighboring = "replace-one",
    l2_clip: float = 1.0,
    max_bits_per_parameter: float | None = None,
    mean_length: float | None = None,
    progress: Progress | None = None,
) -> Advice:
    """Rank the mechanisms that reach ε, or a given noise, within a number of bits.

    Args:
        clients: Clients in a round's sum; 1 is local privacy.
        dim: Coordinates of a client's vector (padded, if rotated).
        epsilon: The target ε of all rounds.
        noise: Instead of ε, the standard deviation of the noise of the sum, in L2 clips.
        delta: δ; None: pure differential privacy for one coordinate of one client, else 10⁻⁵, or one
            over the population if that is less.
        levels: Instead of bits, the largest number of outcomes of a coordinate.
        bits: The largest number of bits of a coordinate before secure aggregation; None: 4, and 32
            for both messages of correlated noise.
        population: Users that a round's clients are drawn from.
        rounds: Number of rounds.
        max_participations: The most rounds that a user takes part in; None: 1, or what
            `min_separation` allows.
        min_separation: The least number of rounds from one participation of a user to the next.
        honest_clients: See `rqm.private_mean`.
        honest_fraction: See `rqm.private_mean`.
        adversary: See `rqm.private_mean`.
        neighboring: See `rqm.private_mean`.
        l2_clip: L2 bound of a vector.
        max_bits_per_parameter: The largest size of a masked vector, in bits per coordinate of the whole
            vector; some of the rotated coordinates are sent.
        mean_length: Length of the clients' mean, in L2 clips; None: 1. Given alone, the number of sent
            coordinates is the least whose choice adds at most a tenth to the error of the noise.
        progress: Called before each candidate is computed.

    Returns:
        The candidates, best first.

    Raises:
        ValueError: If no mechanism meets the request.

    >>> advice = advise(clients=1, dim=1, epsilon=5.4699, levels=16)
    >>> advice.best.name, advice.best.mse < 0.048
    ('optimal table', True)
    """
    if levels is not None:
        if bits is not None:
            raise ValueError(f"levels = {levels}: must not be given with bits, which mean the same")
        bits = whole("levels", levels, 2, 65_536).bit_length() - 1
    limit = max_participations
    if limit is not None or min_separation == 1:
        limit = whole("max_participations", 1 if limit is None else limit, 1, whole("rounds", rounds, 1))
    participation = Participation(
        clients=clients,
        rounds=rounds,
        population=population,
        sampling=implied_sampling(adversary, honest_fraction, min_separation),
        max_participations=limit if adversary == "server" else None,
        min_separation=min_separation,
    )
    threat_model = ThreatModel(
        adversary=adversary, neighboring=neighboring, honest_clients=honest_clients, honest_fraction=honest_fraction
    )
    is_subset = max_bits_per_parameter is not None or mean_length is not None
    default_bits, two_message_bits = (16, 0) if is_subset else (4, 32 if bits is None else bits)
    request = Request(
        participation=participation,
        threat_model=threat_model,
        delta=default_delta(population) if delta is None else delta,
        dim=dim,
        epsilon=epsilon,
        noise=noise,
        bits=default_bits if bits is None else bits,
        l2_clip=l2_clip,
        pure=delta is None and clients == 1 and dim == 1,
        two_message_bits=two_message_bits,
        max_bits_per_parameter=max_bits_per_parameter,
        mean_length=mean_length,
    )
    return rank(request, progress)


def rank(request: Request, progress: Progress | None = None) -> Advice:
    """Rank all mechanisms that meet a request.

    Args:
        request: What a mechanism must do.
        progress: Called before each candidate is computed.

    Returns:
        The candidates, best first.

    Raises:
        ValueError: If no mechanism meets the request.
    """
    candidates: list[Candidate] = []
    left_out: dict[str, str] = {}
    pending = list(searches(request))
    for number, (name, search) in enumerate(pending):
        if progress is not None:
            progress(name, number, len(pending))
        try:
            candidate = search()
        except ValueError as error:
            left_out[name] = str(error)
            continue
        max_bits = request.bits if candidate.noise is None else request.two_message_bits
        if candidate.trusted_server or candidate.bits_per_coordinate <= max_bits:
            candidates.append(replace(candidate, name=name))
        else:
            left_out[name] = f"bits = {max_bits}: must be at least {candidate.bits_per_coordinate}"
    if all(candidate.trusted_server for candidate in candidates):
        raise ValueError(_none_found(request, left_out))
    if request.epsilon is not None and not request.pure:
        baseline = next(candidate.mse for candidate in candidates if candidate.trusted_server)
        for index, candidate in enumerate(candidates):
            if candidate.noise is None:
                candidates[index] = replace(candidate, iterate_noise=sqrt(candidate.mse / baseline))
    advice = Advice(request, tuple(candidates), left_out)
    ordered = sorted(candidates, key=lambda candidate: (candidate.trusted_server, advice.cost(candidate)))
    advice = replace(advice, candidates=tuple(ordered))
    return replace(advice, candidates=tuple(replace(entry, reason=_reason(entry, advice)) for entry in ordered))


def sweep(requests: Sequence[Request], progress: Progress | None = None) -> list[Candidate]:
    """The candidates of several requests, for plots, without correlated noise.

    Args:
        requests: What mechanisms must do. A request that no mechanism meets has no candidates.
        progress: Called before each request.

    Returns:
        The candidates.
    """
    candidates: list[Candidate] = []
    for number, request in enumerate(requests):
        if progress is not None:
            progress("requests", number, len(requests))
        with suppress(ValueError):
            candidates += rank(replace(request, two_message_bits=0)).candidates
    return candidates


# -- texts ----------------------------------------------------------------------------------------


def _reason(candidate: Candidate, advice: Advice) -> str:
    """Why a candidate has its rank, and what it assumes."""
    criterion_names = {"epsilon": "ε", "mse": "error", "iterate_noise": "noise in the models"}
    criterion = criterion_names[advice.criterion]
    best = advice.best
    request = advice.request
    parts = [f"{_more(advice.cost(candidate) / advice.cost(best))} {criterion}"]
    if candidate is best:
        parts = [f"least {criterion} at this {'noise' if request.epsilon is None else 'ε'} and number of bits"]
        cheaper = next(
            (entry for entry in advice.candidates if entry.bits_per_coordinate < best.bits_per_coordinate), None
        )
        if cheaper is not None and best.coordinates is None:
            bits = f"{cheaper.bits_per_coordinate} instead of {many(best.bits_per_coordinate, 'bit')}"
            parts.append(f"{cheaper.name} needs {bits} for {_more(advice.cost(cheaper) / advice.cost(best))}")
    elif candidate.trusted_server:
        parts = ["a baseline with independent noise, where the server sees every vector"]
    if candidate.noise is not None:
        parts += _correlated_conditions(candidate, request)
    elif candidate.iterate_noise is not None and not candidate.trusted_server:
        parts.append(f"noise {candidate.iterate_noise:.4f} times a trusted server's Gaussian")
    if candidate.mechanism.is_local:
        parts.append("each client's message is private alone, without a secure sum")
    return "; ".join(parts)


def _correlated_conditions(candidate: Candidate, request: Request) -> Iterator[str]:
    """What correlated noise needs."""
    participation = request.participation
    honest = request.target.honest
    spacing = "once" if participation.limit == 1 else f"at least {many(participation.window, 'round')} apart"
    yield (
        f"noise in the models {candidate.iterate_noise:.4f} times that of a trusted server's independent noise "
        f"(momentum 0.9, a learning rate that falls to zero over {many(participation.rounds, 'round')})"
    )
    yield "every client sends a second message one round later"
    yield f"{candidate.bits_per_coordinate} bits for both messages, which need a secure sum"
    yield f"users take part in a fixed order, each {spacing}"
    yield f"assumes {many(honest, 'honest client')} in each of {many(participation.window, 'consecutive round')}"


def _more(ratio: float) -> str:
    """A ratio of at least one in words."""
    return f"{ratio:.2g} times as much" if ratio > 2 else f"{100 * (ratio - 1):.2g} % more"


def _none_found(request: Request, left_out: Mapping[str, str]) -> str:
    """Why there is no candidate, and what would help."""
    target = f"noise = {request.noise}" if request.epsilon is None else f"epsilon = {request.epsilon:g}"
    clients = many(request.participation.clients, "client")
    releases = many(request.releases, "participation")
    cause = next((f" ({name}: {error})" for name, error in left_out.items()), "")
    return (
        f"{target}: no mechanism of {many(request.bits, 'bit')} reaches it with {clients} and {releases}; allow a "
        f"larger ε, more bits, more clients or fewer participations{cause}"
    )
