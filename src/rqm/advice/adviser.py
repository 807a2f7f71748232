"""The adviser: which mechanism, with which parameters, for a budget of privacy and bits.

Every candidate is brought to the same certified ε in the same setting, and ranked by its worst-case error; or to the
same error, and ranked by its ε. Nothing is estimated: ε is what ``rqm.account`` would say, the error is computed from
the mechanism's law. Where noise is taken back the error of one round says little: what decides then is the noise in the
models of a server with momentum 0.9 and a rate that falls to zero over the rounds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, sqrt
from typing import Any

from rqm._util.checks import whole
from rqm._util.text import many
from rqm.accounting.participation import Participation, ThreatModel, default_delta, implied_sampling
from rqm.advice.cancelled import NAME, cancelled, costs
from rqm.advice.candidates import Candidate, Request, pure, sums, tuned
from rqm.advice.few import few
from rqm.bounds import Adversary, Neighboring
from rqm.mechanisms.stochastic_rounding import StochasticRounding

Progress = Callable[[str, int, int], None]
"""Told what is looked at, how many were, and how many there are."""
BITS, FEW_BITS, BITS_OF_BOTH = 4, 16, 32
"""What a client may send for a coordinate where nobody says, or for one of few; with noise that cancels no more than a
float takes."""
BETTER = " (of few coordinates a Gaussian is not the best noise)"
"""Why a mechanism may need less noise than a trusted server's Gaussian."""


@dataclass(frozen=True)
class Advice:
    """The candidates, best first; those that need a trusted server stand behind those that do not.

    ``left_out`` says why noise that cancels is not among them, where there are rounds to take it back in.
    """

    request: Request
    candidates: tuple[Candidate, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def best(self) -> Candidate:
        """The winner."""
        return self.candidates[0]

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return {
            "request": self.request.to_dict(),
            "candidates": [one.to_dict() for one in self.candidates],
            "left_out": dict(self.left_out),
        }


def advise(  # noqa: PLR0913 (a request is all of them)
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
    """Rank the mechanisms that reach ε (or a noise on the sum, in units of the L2 clip) within a budget of bits.

    ``clients`` of ``population`` users take part in each of ``rounds`` rounds, a user in at most
    ``max_participations``: 1, or as many as a ``min_separation`` allows, the least number of rounds from one to the
    next. ``bits`` (or ``levels``, the most outcomes) is what a client may send for a coordinate, before secure
    aggregation: 4, and 32 for both messages of correlated noise (``docs/cancel.md``), which takes seconds to look for.
    Without ``delta`` one client's one coordinate gets pure differential privacy, everything else the default δ. The
    others: see ``rqm.private_mean``. With ``max_bits_per_parameter`` (of a masked vector) only so many rotated
    coordinates are sent as keep to it; with a ``mean_length`` alone (in L2 clips) so many that their choice adds a
    tenth to the error.

    >>> advice = advise(clients=1, dim=1, epsilon=5.4699, levels=16)
    >>> advice.best.name, advice.best.mse < 0.048
    ('optimal table', True)
    """
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
    request = Request(
        participation=participation,
        threat_model=threat_model,
        delta=default_delta(population) if delta is None else delta,
        dim=dim,
        epsilon=epsilon,
        noise=noise,
        l2_clip=l2_clip,
        max_bits_per_parameter=max_bits_per_parameter,
        mean_length=mean_length,
        pure=delta is None and clients == 1 and dim == 1,
    )
    return ranked(replace(request, **_bits(_asked(bits, levels), request.few)), progress)


def _asked(bits: int | None, levels: int | None) -> int | None:
    """Bits as asked for, or as many as never give more outcomes than asked for."""
    if levels is None:
        return bits
    if bits is not None:
        raise ValueError(f"levels = {levels}: must not be given with bits, which mean the same")
    return whole("levels", levels, 2, 65_536).bit_length() - 1


def _bits(asked: int | None, few: bool) -> dict[str, Any]:
    """What one message, and what both, may take."""
    both = 0 if few else BITS_OF_BOTH if asked is None else asked
    return {"bits": asked if asked is not None else FEW_BITS if few else BITS, "bits_of_both": both}


def ranked(request: Request, progress: Progress | None = None) -> Advice:
    """All mechanisms that can do what is asked, best first."""
    makers = list(pure(request) if request.pure else few(request) if request.few else sums(request))
    makers += list(cancelled(request))
    found: list[Candidate] = []
    left_out = {}
    for number, (name, make) in enumerate(makers):
        if progress is not None:
            progress(name, number, len(makers))
        try:
            candidate = make()
        except ValueError as error:  # this one cannot do it: some other can, or the error below says what can be done
            if name == NAME:
                left_out[name] = str(error)
            continue
        if candidate is not None and _fits(candidate, request):
            found.append(replace(candidate, name=name))
    if not any(not one.trusted_server for one in found):
        raise ValueError(_impossible(request))
    if request.epsilon is not None and not request.pure:
        found = _in_the_models(found)
    value = measure(found, request)
    found.sort(key=lambda one: (one.trusted_server, value(one)))
    return Advice(request, tuple(_explained(found, request)), left_out)


def _fits(one: Candidate, request: Request) -> bool:
    most = request.bits_of_both if one.noise else request.bits
    return one.trusted_server or one.bits_per_coordinate <= most


def measure(found: Sequence[Candidate], request: Request) -> Callable[[Candidate], float]:
    """What these are ranked by: at the same ε the error, or the noise in the models if one of them cancels; else ε."""
    if request.epsilon is None:
        return lambda one: one.epsilon
    if any(one.noise for one in found):
        return lambda one: one.iterate_noise or inf
    return lambda one: one.mse


def _in_the_models(found: list[Candidate]) -> list[Candidate]:
    """With independent noise all models have the noise of a mean times the same number."""
    trusted = next(one for one in found if one.trusted_server)
    return [one if one.noise else replace(one, iterate_noise=sqrt(one.mse / trusted.mse)) for one in found]


# -- words ----------------------------------------------------------------------------------------


def _explained(found: list[Candidate], request: Request) -> Iterator[Candidate]:
    by_error, value = request.epsilon is not None, measure(found, request)
    untrusted = [one for one in found if not one.trusted_server]
    best, cancels = untrusted[0], any(one.noise for one in found)
    what = "ε" if not by_error else "noise in the models" if cancels else "error"
    for one in found:
        words = []
        if one is best:
            words.append(f"least {what} of all at this {'ε and these bits' if by_error else 'noise'}")
            words += _rivals(best, untrusted[1:], value)
        elif one.trusted_server:
            words.append("the server sees every vector: what trust would buy")
            words += ["with independent noise"] if cancels else []
        else:
            words.append(f"{_more(value(one) / value(best) - 1)} {what}")
        if one.iterate_noise is not None and not one.trusted_server:
            words.append(_noise(one, request))
        if one.mechanism.is_local:
            words.append("every client hides alone, the sum needs no protection")
        if one.noise:
            words += costs(one, request)
        yield replace(one, reason="; ".join(words))


def _rivals(best: Candidate, others: list[Candidate], value: Callable[[Candidate], float]) -> Iterator[str]:
    """How far behind the second is, and the best of those that need fewer bits."""
    cheaper = (one for one in others if one.bits_per_coordinate < best.bits_per_coordinate)
    cheap = next(cheaper, None) if best.coordinates is None else None
    if others and others[0] is not cheap:
        gap = value(others[0]) / value(best) - 1
        yield f"{others[0].name} has {_more(gap)}" if gap > 1e-4 else f"{others[0].name} ties"
    if cheap is not None:
        bits = f"{cheap.bits_per_coordinate} instead of {many(best.bits_per_coordinate, 'bit')}"
        yield f"{cheap.name} needs {bits} for {_more(value(cheap) / value(best) - 1)}"


def _noise(one: Candidate, request: Request) -> str:
    if not one.noise:
        better = BETTER if one.iterate_noise is not None and one.iterate_noise < 1 else ""
        return f"noise {one.iterate_noise:.4f} times a trusted server's Gaussian{better}"
    return (
        f"noise in the models {one.iterate_noise:.4f} times a trusted server's independent noise's (momentum 0.9, "
        f"a rate that falls to zero over {many(request.participation.rounds, 'round')})"
    )


def _more(gap: float) -> str:
    return f"{1 + gap:.2g} times as much" if gap > 1 else f"{100 * gap:.2g} % more"


def _impossible(request: Request) -> str:
    """What would be possible instead."""
    target = f"epsilon = {request.epsilon:g}" if request.epsilon is not None else f"noise = {request.noise:g}"
    if request.pure:
        return f"{target}: no mechanism of {many(request.bits, 'bit')} is that private by itself: must be larger"
    low, high = (request.epsilon or 1.0), None
    wanted = replace(request, epsilon=low, noise=None)
    for _ in range(24):
        low *= 2
        wanted = replace(wanted, epsilon=low)
        try:
            tuned([StochasticRounding(clip=wanted.clip, levels=2)], wanted)
        except ValueError:
            continue
        high = low
        break
    possible = "more clients or fewer participations" if high is None else f"about {high:g} or more"
    return (
        f"{target}: no mechanism of {many(request.bits, 'bit')} reaches it with "
        f"{many(request.participation.clients, 'client')} and {many(request.releases, 'participation')}: must be "
        f"{possible} (the encoder's positions bound the margin)"
    )


def pareto(request: Request, epsilons: list[float], progress: Progress | None = None) -> dict[str, list[list[float]]]:
    """For each mechanism its errors at several ε: pairs of certified ε and ``mse``.

    Of single rounds: noise that cancels, of which they say little, is not among them.
    """
    lines: dict[str, list[list[float]]] = {}
    for number, epsilon in enumerate(epsilons):
        if progress is not None:
            progress(f"ε = {epsilon:.3g}", number, len(epsilons))
        try:
            advice = ranked(replace(request, epsilon=epsilon, noise=None, bits_of_both=0))
        except ValueError:
            continue
        for one in advice.candidates:
            lines.setdefault(one.name, []).append([one.epsilon, one.mse])
    return lines
