"""Noise that cancels among the candidates: where it can be used, what it costs, and what is left in the models."""

from dataclasses import asdict
from math import ceil

from rqm._util.words import many
from rqm.advice.candidates import Candidate, Makers, Request
from rqm.encoding.memory import check_cancel
from rqm.encoding.private_mean import PrivateMean
from rqm.mechanisms.base import Mechanism
from rqm.mechanisms.rounding import Rounding
from rqm.mechanisms.transient import Cancel
from rqm.privacy.calibrate import best_cancelled, best_held

NAME = "noise that cancels"
LONGEST, ROUNDS = 300, 3000
"""So many rounds from one participation to the next are followed, and so many in all: more of them take minutes."""


def cancelled(request: Request) -> Makers:
    """Two messages a participation, if there are rounds to take noise back in and it is looked for at all."""
    chain = request.setting.rounds > 1 and request.setting.clients > 1 and not request.pure
    if chain and request.epsilon is not None and request.bits_of_both:
        yield NAME, lambda: _fitted(request)


def _fitted(request: Request) -> Candidate:
    """As much noise as reaches ε, or an error that says why there is none here."""
    setting, epsilon, coins = request.setting, request.epsilon, Rounding(clip=request.clip, levels=2)
    assert epsilon is not None
    check_cancel(1.0, coins, setting)
    turns = setting.rounds * setting.clients
    if setting.population is not None and setting.population * setting.releases < turns:
        raise ValueError(
            f"population = {setting.population}: must be at least {ceil(turns / setting.releases)}, for "
            f"{setting.clients} clients in each of {setting.rounds} rounds who take turns, each at most "
            f"{setting.releases} times"
        )
    if setting.rounds > ROUNDS or setting.apart > LONGEST:
        raise ValueError(
            f"rounds = {setting.rounds}: must be at most {ROUNDS:,} here, and {LONGEST} from one participation to the "
            "next, or a certificate takes minutes; rqm.PrivateMean(cancel=True) waits for it"
        )
    most = request.bits_of_both // 2
    least = _mean(request, coins, best_held(setting, bits=most)).wire_bits or 0
    if least > request.bits_of_both:
        raise ValueError(f"bits = {request.bits_of_both}: must be at least {least}, for both messages")
    channel, held = best_cancelled(epsilon, setting, dim=request.dim, l2_clip=request.l2_clip, bits=most)
    mean = _mean(request, channel, held)
    bits, variance = mean.wire_bits or 0, mean.held.variance + mean.held.back_variance
    came_and_went = variance * (channel.grid.step / channel.clip) ** 2 / setting.clients
    return Candidate(
        name=NAME,
        mechanism=channel,
        epsilon=mean.guarantee.epsilon,
        mse=channel.mean_error(setting.clients, request.typical) + came_and_went,
        bits_per_coordinate=bits,
        bits_under_secagg=bits,
        trusted_server=False,
        certified=True,
        iterate_noise=mean.guarantee.iterate_noise_over_independent,
        messages=2,
        cancel=held,
    )


def _mean(request: Request, mechanism: Mechanism, held: Cancel) -> PrivateMean:
    """What would be deployed, of coordinates that are rotated already."""
    who = asdict(request.setting)
    return PrivateMean(dim=request.dim, mechanism=mechanism, cancel=held, l2_clip=request.l2_clip, rotate=False, **who)


def costs(one: Candidate, request: Request) -> list[str]:
    """What noise that cancels asks for, in words."""
    setting = request.setting
    order = "once" if setting.releases == 1 else f"{many(setting.apart, 'round')} apart at least"
    return [
        "one more message a participation: every client must be there again one round later",
        f"{one.bits_per_coordinate} bits for both messages, which only a secure sum may carry",
        f"users take part in a fixed order, each {order}",
        f"it counts on {many(setting.floor().honest, 'honest client')} in each of the {setting.apart:,} rounds from a "
        "participation on",
    ]
