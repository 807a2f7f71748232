"""The plan of a run of which only the model, the number of users and ε are known: by public rules alone.

Nothing here looks at an example: who has how many users and parameters may know all that is decided here.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf, sqrt
from typing import Any, Literal, final

from rqm._util.checks import padded, real, whole
from rqm.accounting.participation import Participation, ThreatModel, default_delta
from rqm.core.private_mean import PrivateMean
from rqm.mechanisms.noiseless import Noiseless
from rqm.plan.plan import Plan, ServerStep, Transforms
from rqm.plan.sizes import OWN

FEWEST, MOST, SHARE = 100, 1000, 10
"""Clients of a round: one of so many users, between these numbers if there are so many users."""
RATE, NOISE = 0.5, 4.0
"""The rate of a model that moves by one L2 clip a round, and the noise, in clips, at which it is half of that."""
LONG = 100
"""Rounds beyond which the rate falls as the number of rounds grows."""


@final
@dataclass(frozen=True)
class Wanted:
    """What somebody asks for who trains a model; None leaves it to the rules."""

    epsilon: float
    delta: float | None = None
    rounds: int = 100
    clients: int | None = None
    honest_clients: int | None = None
    l2_clip: float = 1.0
    rate: float | None = None
    noise: Literal["independent", "correlated"] | None = None

    def __post_init__(self) -> None:
        """Validate what a plan would not name in the same words; an infinite ε is a run without noise."""
        if self.epsilon != inf:
            real("epsilon", self.epsilon, "a positive finite number, or infinity", 0, inf)
        whole("rounds", self.rounds, 1)
        real("l2_clip", self.l2_clip, "a positive finite number", 0, inf)
        if self.noise not in (None, "independent", "correlated"):
            raise TypeError(
                f"noise = {self.noise!r}: must be 'independent', 'correlated', or None for the better of the two"
            )


def participation(wanted: Wanted, users: int) -> Participation:
    """Who takes part: so many clients a round, in a fixed order, each as seldom as that allows."""
    clients = wanted.clients
    if clients is None:
        clients = min(users, max(FEWEST, min(MOST, users // SHARE)))
    clients = whole("clients", clients, 1)
    if clients > users:
        raise ValueError(f"clients = {clients}: must be at most {users}, the number of users")
    if clients == users:
        return Participation(clients, wanted.rounds)
    limit = ceil(wanted.rounds * clients / users)
    return Participation(clients, wanted.rounds, None, "fixed-order", limit, users // clients)


@lru_cache(maxsize=32)
def found_mean(wanted: Wanted, users: int, dim: int) -> PrivateMean:
    """What clients send: one bit with correlated noise where that leaves less in the model, else the best without."""
    from rqm.accounting.calibration import Target, correlated_pays  # noqa: PLC0415 (takes the compiler)
    from rqm.core.search import private_mean  # noqa: PLC0415

    delta = default_delta(users) if wanted.delta is None else wanted.delta
    who = participation(wanted, users)
    if wanted.noise == "correlated" and who.window == 1:
        raise ValueError(
            f"noise = 'correlated': {who.clients} of {users} users a round return in the next one; must be at most "
            f"{users // 2} clients"
        )
    threat_model = ThreatModel(honest_clients=wanted.honest_clients)
    target = Target(wanted.epsilon, delta, who, threat_model, padded(dim), wanted.l2_clip)
    noise = wanted.noise or ("correlated" if correlated_pays(target) else "independent")
    return private_mean(
        epsilon=wanted.epsilon,
        delta=delta,
        dim=dim,
        l2_clip=wanted.l2_clip,
        noise=noise,
        clients=who.clients,
        rounds=who.rounds,
        max_participations=who.max_participations,
        min_separation=who.min_separation,
        honest_clients=wanted.honest_clients,
    )


def rate_of(wanted: Wanted, mean: PrivateMean, noise: float) -> float:
    """The server's rate: smaller where the noise of a mean vector is large, and where there are many rounds."""
    over = noise * sqrt(mean.coordinates) / mean.participation.clients
    return RATE / wanted.l2_clip / (1 + over / NOISE) * min(1.0, LONG / wanted.rounds)


def plan_for(wanted: Wanted, users: int, dim: int, seed: int, **others: Any) -> Plan:
    """The plan that gives every user the wanted ε, on so many users and parameters."""
    if wanted.epsilon != inf:
        mean = found_mean(wanted, users, dim)
        noise = mean.guarantee().noise_multiplier
    else:
        who = participation(wanted, users)
        mechanism = Noiseless(clip=wanted.l2_clip)
        mean = PrivateMean(mechanism=mechanism, dim=dim, l2_clip=wanted.l2_clip, participation=who, delta=wanted.delta)
        noise = 0.0
    rate = rate_of(wanted, mean, noise) if wanted.rate is None else wanted.rate
    return Plan(
        model=OWN,
        dim=dim,
        mechanism=mean.mechanism,
        noise=mean.noise,
        participation=participation(wanted, users),
        threat_model=mean.threat_model,
        delta=mean.delta,
        seed=seed,
        transforms=Transforms(l2_clip=wanted.l2_clip, rotate=True),
        server=ServerStep(rate=rate, schedule="linear"),
        **others,
    )
