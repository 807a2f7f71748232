"""The adviser: which mechanism, with which parameters, for a budget of privacy and bits.

Every candidate is brought to the same certified ε in the same setting, and ranked by its worst-case error; or to the
same error, and ranked by its ε. Nothing is estimated: ε is what ``rqm.account`` would say, the error is computed from
the mechanism's law.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

from rqm._util.checks import whole
from rqm.advice.candidates import Candidate, Request, pure, sums, tuned
from rqm.mechanisms.rounding import Rounding
from rqm.privacy.setting import Neighbours, Observer, Setting

Progress = Callable[[str, int, int], None]
"""Told what is looked at, how many were, and how many there are."""
BETTER = " (of few coordinates a Gaussian is not the best noise)"
"""Why a mechanism may need less noise than a trusted server's Gaussian."""


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
        return {"request": self.request.to_dict(), "candidates": [one.to_dict() for one in self.candidates]}


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
    if levels is not None:
        if bits is not None:
            raise ValueError(f"levels = {levels}: must not be given with bits, which mean the same")
        bits = whole("levels", levels, 2, 65_536).bit_length() - 1  # never more outcomes than asked for
    setting = Setting(
        clients=clients,
        rounds=rounds,
        delta=delta,
        population=population,
        observer=observer,
        participations=whole("participations", participations, 1, rounds) if observer == "server" else None,
        neighbours=neighbours,
        honest=honest,
    )
    request = Request(
        setting=setting,
        dim=dim,
        epsilon=epsilon,
        noise=noise,
        bits=4 if bits is None else bits,
        l2_clip=l2_clip,
        pure=delta is None and clients == 1 and dim == 1,
    )
    return ranked(request, progress)


def ranked(request: Request, progress: Progress | None = None) -> Advice:
    """All mechanisms that can do what is asked, best first."""
    makers = list(pure(request) if request.pure else sums(request))
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
            over = sqrt(one.mse / trusted.mse)
            words.append(f"noise {over:.4f} times a trusted server's Gaussian{BETTER if over < 1 else ''}")
        if one.mechanism.hides_alone:
            words.append("every client hides alone, the sum needs no protection")
        yield replace(one, why="; ".join(words))


def _more(gap: float) -> str:
    return f"{1 + gap:.2g} times as much" if gap > 1 else f"{100 * gap:.2g} % more"


def _impossible(request: Request) -> str:
    """What would be possible instead."""
    target = f"epsilon = {request.epsilon:g}" if request.epsilon is not None else f"noise = {request.noise:g}"
    if request.pure:
        return f"{target}: no mechanism of {request.bits} bits is that private by itself: must be larger"
    low, high = (request.epsilon or 1.0), None
    wanted = replace(request, epsilon=low, noise=None)
    for _ in range(24):
        low *= 2
        wanted = replace(wanted, epsilon=low)
        try:
            tuned([Rounding(clip=wanted.clip, levels=2)], wanted)
        except ValueError:
            continue
        high = low
        break
    possible = "more clients or fewer participations" if high is None else f"about {high:g} or more"
    return (
        f"{target}: no mechanism of {request.bits} bits reaches it with {request.setting.clients} clients "
        f"and {request.setting.releases} participations: must be {possible} (the encoder's positions bound the margin)"
    )


def pareto(request: Request, epsilons: list[float], progress: Progress | None = None) -> dict[str, list[list[float]]]:
    """For each mechanism its errors at several ε: pairs of certified ε and ``mse``."""
    lines: dict[str, list[list[float]]] = {}
    for number, epsilon in enumerate(epsilons):
        if progress is not None:
            progress(f"ε = {epsilon:.3g}", number, len(epsilons))
        try:
            advice = ranked(replace(request, epsilon=epsilon, noise=None))
        except ValueError:
            continue
        for one in advice.candidates:
            lines.setdefault(one.name, []).append([one.epsilon, one.mse])
    return lines
