"""The plan of a run of which only the model, the number of users and ε are known: by public rules alone.

Nothing here looks at an example: who has how many users and parameters may know all that is decided here.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf, sqrt
from typing import Any, final

from rqm._util.checks import padded, real, whole
from rqm.encoding.private_mean import PrivateMean
from rqm.mechanisms.base import Mechanism
from rqm.mechanisms.noiseless import Noiseless
from rqm.plan.plan import Plan, ServerStep, Transforms
from rqm.plan.sizes import OWN
from rqm.privacy.setting import Setting, checked_epsilon, default_delta

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
    honest: int | None = None
    l2_clip: float = 1.0
    rate: float | None = None
    cancel: bool | None = None

    def __post_init__(self) -> None:
        """Validate what a plan would not name in the same words; an infinite ε is a run without noise."""
        if self.epsilon != inf:
            checked_epsilon(self.epsilon)
        whole("rounds", self.rounds, 1)
        real("l2_clip", self.l2_clip, "a positive finite number", 0, inf)
        if self.cancel not in (None, True, False):
            raise TypeError(f"cancel = {self.cancel!r}: must be True, False, or None for whichever has less noise")


def turns(wanted: Wanted, users: int) -> dict[str, Any]:
    """Who takes part: so many clients a round, in a fixed order, each as seldom as that allows."""
    clients = wanted.clients
    if clients is None:
        clients = min(users, max(FEWEST, min(MOST, users // SHARE)))
    clients = whole("clients", clients, 1)
    if clients > users:
        raise ValueError(f"clients = {clients}: must be at most {users}, the number of users")
    found: dict[str, Any] = {"clients": clients, "rounds": wanted.rounds, "honest": wanted.honest}
    if clients < users:
        found["separation"] = users // clients
        found["participations"] = ceil(wanted.rounds * clients / users)
    return found


@lru_cache(maxsize=32)
def private_mean(wanted: Wanted, users: int, dim: int) -> PrivateMean:
    """What clients send: one bit with noise that cancels where that leaves less in the model, else the best without."""
    from rqm.privacy.calibrate import pays  # noqa: PLC0415 (takes the compiler)

    delta = default_delta(users) if wanted.delta is None else wanted.delta
    who = turns(wanted, users)
    setting = Setting(**who, delta=delta)
    if wanted.cancel and setting.apart == 1:
        raise ValueError(
            f"cancel = True: {who['clients']} of {users} users a round come back in the very next one; must be at most "
            f"{users // 2} clients"
        )
    cancel = wanted.cancel if wanted.cancel is not None else pays(wanted.epsilon, setting, padded(dim))
    return PrivateMean(
        epsilon=wanted.epsilon, cancel=cancel or None, delta=delta, dim=dim, l2_clip=wanted.l2_clip, **who
    )


def rate_of(wanted: Wanted, mean: PrivateMean, noise: float) -> float:
    """The server's rate: smaller where the noise of a mean vector is large, and where there are many rounds."""
    over = noise * sqrt(mean.coordinates) / mean.clients
    return RATE / wanted.l2_clip / (1 + over / NOISE) * min(1.0, LONG / wanted.rounds)


def plan_for(wanted: Wanted, users: int, dim: int, seed: int, **others: Any) -> Plan:
    """The plan that gives every user the wanted ε, on so many users and parameters."""
    mechanism: Mechanism = Noiseless(clip=wanted.l2_clip)
    who, cancel, noise, delta = turns(wanted, users), None, 0.0, wanted.delta
    if wanted.epsilon != inf:
        mean = private_mean(wanted, users, dim)
        promised = mean.guarantee
        noise = promised.noise_multiplier
        if mean.mechanism is not None:
            mechanism, cancel, delta = mean.mechanism, mean.cancel, mean.delta
    else:
        mean = PrivateMean(mechanism=mechanism, dim=dim, l2_clip=wanted.l2_clip, **who)
    rate = rate_of(wanted, mean, noise) if wanted.rate is None else wanted.rate
    return Plan(
        model=OWN,
        dim=dim,
        mechanism=mechanism,
        cancel=cancel,
        delta=delta,
        seed=seed,
        transforms=Transforms(l2_clip=wanted.l2_clip, rotate=True),
        server=ServerStep(rate=rate, schedule="linear"),
        **who,
        **others,
    )
