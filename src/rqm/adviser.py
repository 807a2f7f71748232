"""The adviser: which mechanism, with which parameters, for a budget of privacy and bits.

Every candidate is brought to the same certified ε in the same setting, and ranked by its worst-case error; or to the
same error, and ranked by its ε. Nothing is estimated: ε is what ``rqm.account`` would say, the error is computed from
the mechanism's law.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from math import inf, sqrt
from typing import Any

from rqm._checks import real, whole
from rqm.candidates import Candidate, Request, clip_of, pure, setting_of, sums, tuned
from rqm.mechanisms.gaussian import Gaussian
from rqm.privacy.setting import Neighbours, Observer, checked_delta, checked_epsilon, default_delta

Progress = Callable[[str, int, int], None]
"""Told what is looked at, how many were, and how many there are."""


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
    ``bits`` (or ``levels``, the most outcomes) is what a client may send for a coordinate, before secure aggregation.
    Without ``delta`` one client's one coordinate gets pure differential privacy, everything else the default δ. For the
    others see ``Setting``: ``honest`` may be a fraction only if the population is given.

    >>> advice = advise(clients=1, dim=1, epsilon=5.4699, levels=16)
    >>> advice.best.name, advice.best.mse < 0.048
    ('optimal table', True)
    """
    request = _request(
        clients, dim, epsilon, noise, delta, levels, bits, population, rounds, participations, honest, observer,
        neighbours, l2_clip,
    )  # fmt: skip
    makers = list(pure(request) if request.delta is None else sums(request))
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
        checked_epsilon(epsilon)
    if noise is not None:
        real("noise", noise, "a positive finite number", 0, inf)
    if levels is not None:
        if bits is not None:
            raise ValueError(f"levels = {levels}: must not be given with bits, which mean the same")
        levels = whole("levels", levels, 2, 65_536)
        bits = levels.bit_length() - 1  # never more outcomes than asked for
    bits = 4 if bits is None else bits
    if isinstance(bits, int) and bits < 1:
        raise ValueError(f"bits = {bits}: must be at least 1, which is enough for most purposes")
    bits = whole("bits", bits, 1, 32)
    if delta is None and (clients > 1 or dim > 1):
        delta = default_delta(population)
    if delta is None and noise is not None:
        raise ValueError("noise = …: must come with delta")
    if delta is not None:
        checked_delta(delta)
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
            tuned(wanted, setting_of(wanted), clip_of(wanted), "rounding", {"levels": 2})
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
