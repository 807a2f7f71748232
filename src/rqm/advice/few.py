"""Few coordinates of many: who keeps to so many bits a parameter under secure aggregation, and with which error.

For every number of bits of a coordinate's sum there is a number of coordinates that the limit pays for, and on few
coordinates there is less noise: one bit, several trials (PBM) or integer noise modulo that many bits are brought to ε
there. The error of the choice is added to that of the noise, in units of the clip that all coordinates would have.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import ceil, erfc, sqrt

from rqm._util.checks import padded
from rqm.advice.candidates import Candidate, Makers, Request, candidate, gaussian_of, tuned
from rqm.core.base import choice_error
from rqm.core.transform import second_clip
from rqm.mechanisms.additive import DiscreteGaussian
from rqm.mechanisms.base import Mechanism
from rqm.mechanisms.pbm import PBM
from rqm.mechanisms.stochastic_rounding import StochasticRounding

TENTH = 0.1
"""Of the noise's mean square: what the choice may add where no limit of bits says otherwise."""
STEPS = (15, 9, 7, 5, 3, 1)
"""Between -c and c, before integer noise is added: the most that the bits leave room for."""
TAILS = 6
"""Standard deviations of noise for which sums have room: beyond, they wrap around."""
MORE = 5
"""Bits of a sum that are tried beyond those of one bit's sum."""


def few(request: Request, *, quick: bool = False) -> Makers:
    """Mechanisms for as many coordinates as the limit allows; ``quick`` leaves out those that take longest."""
    clients, of = request.participation.clients, padded(request.dim)
    least = StochasticRounding(levels=2).sum_bits(clients)

    def make(inner: Request, first: Mechanism) -> Callable[[], Candidate]:
        return partial(_made, first, inner, request)

    for wire in range(max(4, least - 3), min(least + MORE, 16) + 1):
        count = min(_count(request, wire), of)
        if count < 1:
            continue
        longer = second_clip(count) if count < of else 1.0
        inner = replace(request, dim=count, l2_clip=request.l2_clip * longer, max_bits_per_parameter=None, bits=16)
        for name, first in _proposed(wire, least, inner, quick):
            yield name, make(inner, first)
    yield "trusted server's Gaussian", lambda: gaussian_of(request, local=False)


def _count(request: Request, wire: int) -> int:
    """As many coordinates as the bits pay for, or as make the error of the choice a tenth of the noise's."""
    if request.max_bits_per_parameter is not None:
        return int(request.max_bits_per_parameter * request.dim / wire)
    return enough(request.gaussian_noise, request.participation.clients, request.dim, request.length)


def enough(noise: float, clients: int, dim: int, length: float) -> int:
    """The coordinates with which the choice adds a tenth to the mean squared error of noise that is so many L2 clips.

    ``length`` is that of the mean, in L2 clips.

    >>> enough(5.8, 100, 1_018_174, 0.3)
    268
    """
    of = padded(dim)
    return ceil(of / (1 + TENTH * of * (noise / clients / length) ** 2))


def _proposed(wire: int, least: int, inner: Request, quick: bool) -> Iterator[tuple[str, Mechanism]]:
    """What fits so many bits of a sum."""
    clients, clip = inner.participation.clients, inner.clip
    if wire == least:
        yield "1 bit", StochasticRounding(clip=clip, levels=2)
    trials = (2**wire - 1) // clients
    if least < wire <= least + 2 and trials > 1 and not quick:
        yield f"PBM, {trials} trials", PBM(clip=clip, levels=trials + 1)
    reach = clients * min(1.0, inner.length) + TAILS * inner.gaussian_noise * inner.l2_clip / clip  # in clips
    steps = next((steps for steps in STEPS if reach * steps <= 2**wire), None)
    if steps is not None and wire <= inner.bits:
        yield f"discrete Gaussian, {wire} bits", DiscreteGaussian(clip=clip, steps=steps, bits=wire)


def _made(first: Mechanism, inner: Request, request: Request) -> Candidate:
    """A mechanism of the inner request, with the error that all of it has for the outer one."""
    found = candidate(tuned([first], inner), inner)
    error = found.mse * inner.clip**2 + choice_error(inner.dim, padded(request.dim), request.length * request.l2_clip)
    wire = (found.bits_under_secagg or 0) * inner.dim / request.dim
    return replace(
        found,
        mse=error / request.clip**2,
        coordinates=inner.dim,
        wire_bits_per_parameter=wire,
        wraps=_wraps(found, inner),
    )


def _wraps(found: Candidate, inner: Request) -> float:
    """The chance that a coordinate's sum wraps around its modulus and is decoded wrongly, if all is Gaussian.

    That is a matter of error alone: sums modulo something tell no more than sums.
    """
    channel, clients = found.mechanism.discrete, inner.participation.clients
    if not channel.is_modular:
        return 0.0
    deviation = clients * sqrt((inner.length * inner.l2_clip) ** 2 / inner.dim + found.mse * inner.clip**2)
    return erfc(2.0 ** (channel.bits - 1) * channel.grid.step / deviation / sqrt(2))


def front(
    request: Request, limits: list[float], progress: Callable[[str, int, int], None] | None = None
) -> list[Candidate]:
    """For each limit of bits a parameter the least error that keeps to it; what needs fewer bits keeps to more, too."""
    found: list[Candidate] = []
    for number, limit in enumerate(limits):
        if progress is not None:
            progress(f"{limit:.3g} bits", number, len(limits))
        for name, make in few(replace(request, max_bits_per_parameter=limit), quick=True):
            try:
                made = make()
            except ValueError:
                continue
            if made is None:
                continue
            one = replace(made, name=name)
            if not one.trusted_server and not any(_better(other, one) for other in found):
                found = [other for other in found if not _better(one, other)] + [one]
    return sorted(found, key=lambda one: one.wire_bits_per_parameter or 0.0)


def _better(one: Candidate, other: Candidate) -> bool:
    """Whether the first has no more bits and no more error."""
    return one.mse <= other.mse and (one.wire_bits_per_parameter or 0) <= (other.wire_bits_per_parameter or 0)
