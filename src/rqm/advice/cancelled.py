"""Correlated noise among the candidates: where it can be used, what it costs, and what is left in the models."""

from dataclasses import replace
from math import ceil

from rqm._util.text import many
from rqm.accounting.calibration import best_noise
from rqm.advice.candidates import Candidate, Makers, Request
from rqm.core.private_mean import PrivateMean
from rqm.correlated.factorization import Workload
from rqm.correlated.noise import CorrelatedNoise
from rqm.mechanisms.gaussian import Gaussian

NAME = "correlated noise"
MAX_WINDOW, MAX_ROUNDS = 300, 3000
"""Rounds from one participation to the next, and in all, up to which a certificate takes seconds."""


def cancelled(request: Request) -> Makers:
    """Rounding with correlated noise, where there are rounds to cancel it in and it is asked for at all."""
    who = request.participation
    is_possible = who.rounds > 1 and who.clients > 1 and not request.pure
    if is_possible and request.epsilon is not None and request.bits_of_both:
        yield NAME, lambda: _fitted(request)


def _fitted(request: Request) -> Candidate:
    """As much noise as reaches ε, or an error that says why there is none here."""
    who, turns = request.participation, request.participation.rounds * request.participation.clients
    blank = PrivateMean(  # which checks everything but the mechanism and its noise
        dim=request.dim,
        mechanism=Gaussian(1.0),
        noise=CorrelatedNoise(1.0),
        l2_clip=request.l2_clip,
        rotate=False,
        participation=who,
        threat_model=request.threat_model,
        delta=request.delta,
    )
    if who.population is not None and who.population * who.limit < turns:
        raise ValueError(
            f"population = {who.population}: must be at least {ceil(turns / who.limit)}, for {who.clients} clients in "
            f"each of {who.rounds} rounds who take turns, each at most {who.limit} times"
        )
    if who.rounds > MAX_ROUNDS or who.window > MAX_WINDOW:
        raise ValueError(
            f"rounds = {who.rounds}: must be at most {MAX_ROUNDS:,} here, and {MAX_WINDOW} from one participation to "
            "the next, or a certificate takes minutes; rqm.private_mean(noise='correlated') waits for it"
        )
    bits_per_sum = request.bits_of_both // 2
    least = 2 * best_noise(who, request.target.honest, Workload(who.rounds), bits=bits_per_sum).sum_bits(
        who.clients, who.clients
    )
    if least > request.bits_of_both and who.window > 1:
        raise ValueError(f"bits = {request.bits_of_both}: must be at least {least}, for both messages")
    mechanism, noise = request.target.find_correlated(bits=bits_per_sum)
    mean = replace(blank, mechanism=mechanism, noise=noise)
    channel, bits, found = mechanism.discrete, mean.wire_bits or 0, mean.guarantee()
    added = (noise.added_variance + noise.canceled_variance) * (channel.grid.step / channel.clip) ** 2 / who.clients
    return Candidate(
        name=NAME,
        mechanism=mechanism,
        epsilon=found.epsilon,
        mse=channel.mean_error(who.clients, request.typical) + added,
        bits_per_coordinate=bits,
        bits_under_secagg=bits,
        trusted_server=False,
        certified=True,
        iterate_noise=found.correlated_noise_ratio,
        messages=2,
        wire_bits_per_parameter=bits,
        noise=noise,
    )


def costs(one: Candidate, request: Request) -> list[str]:
    """What correlated noise asks for, in words."""
    who = request.participation
    order = "once" if who.limit == 1 else f"{many(who.window, 'round')} apart at least"
    return [
        "one more message a participation: every client must be there again one round later",
        f"{one.bits_per_coordinate} bits for both messages, which only a secure sum may carry",
        f"users take part in a fixed order, each {order}",
        f"it counts on {many(request.target.honest, 'honest client')} in each of the {who.window:,} rounds from a "
        "participation on",
    ]
