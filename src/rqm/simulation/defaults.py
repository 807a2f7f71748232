"""The plan of a run for a given ε, by public rules.

The rules use the number of users, the number of parameters and ε. They never look at an example.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, inf, sqrt
from typing import Any, Literal, final

from rqm._util.checks import padded, real, whole
from rqm.accounting.participation import Participation, ThreatModel, default_delta
from rqm.config.model_sizes import OWN
from rqm.config.plan import Plan, ServerStep, Transforms
from rqm.correlated.scheme import NoiseScheme
from rqm.mechanisms.base import Mechanism
from rqm.mechanisms.gaussian import Gaussian
from rqm.mechanisms.noiseless import Noiseless


@final
@dataclass(frozen=True)
class TrainingRequest:
    """What a caller of `rqm.train` asks for. None leaves a value to the rules.

    Attributes:
        epsilon: ε of the whole run; infinity for a run without noise.
        delta: δ; None: 10⁻⁵, or one over the number of users if that is less.
        rounds: Number of rounds.
        clients: Clients in a round; None: a tenth of the users, but from 100 to 1000 if there are enough.
        honest_clients: Clients of every round that follow the protocol; None: all.
        l2_clip: L2 clip of a client's vector.
        rate: The server's learning rate; None: smaller with more noise and with more than 100 rounds.
        noise: "independent", "correlated", or None for the one that leaves less noise in the model.
    """

    epsilon: float
    delta: float | None = None
    rounds: int = 100
    clients: int | None = None
    honest_clients: int | None = None
    l2_clip: float = 1.0
    rate: float | None = None
    noise: Literal["independent", "correlated"] | None = None

    def __post_init__(self) -> None:
        """Validate the values that a plan does not call by the same names."""
        if self.epsilon != inf:
            real("epsilon", self.epsilon, "a positive finite number, or infinity", 0, inf)
        whole("rounds", self.rounds, 1)
        real("l2_clip", self.l2_clip, "a positive finite number", 0, inf)
        if self.noise not in (None, "independent", "correlated"):
            raise TypeError(
                f"noise = {self.noise!r}: must be 'independent', 'correlated', or None for the better of the two"
            )


def participation_for(request: TrainingRequest, users: int) -> Participation:
    """Who takes part: users take turns, each as rarely as the number of clients in a round allows.

    Args:
        request: What the caller asks for.
        users: Number of users.

    Returns:
        The participation.
    """
    clients = min(users, max(100, min(1000, users // 10))) if request.clients is None else request.clients
    clients = whole("clients", clients, 1)
    if clients > users:
        raise ValueError(f"clients = {clients}: must be at most {users}, the number of users")
    if clients == users:
        return Participation(clients, request.rounds)
    limit = ceil(request.rounds * clients / users)
    return Participation(clients, request.rounds, None, "fixed-order", limit, users // clients)


@lru_cache(maxsize=32)
def find_mechanism_for(
    request: TrainingRequest, users: int, delta: float, dim: int
) -> tuple[Mechanism, NoiseScheme | None]:
    """The mechanism, and the correlated noise if it leaves less noise in the model.

    Args:
        request: What the caller asks for.
        users: Number of users.
        delta: δ.
        dim: Parameters of the model.

    Returns:
        Both; the correlated noise is None where noise is independent.

    Raises:
        ValueError: If nothing reaches ε.
    """
    if request.epsilon == inf:
        return Noiseless(clip=request.l2_clip), None
    from rqm.accounting.calibration import Target, correlated_pays  # noqa: PLC0415 (takes the compiler)
    from rqm.accounting.release import Release  # noqa: PLC0415

    participation = participation_for(request, users)
    if request.noise == "correlated" and participation.window == 1:
        raise ValueError(
            f"noise = 'correlated': {participation.clients} of {users} users a round return in the next one; must be "
            f"at most {users // 2} clients"
        )
    threat_model = ThreatModel(honest_clients=request.honest_clients)
    baseline = Release(Gaussian(1.0), padded(dim), request.l2_clip)
    target = Target(request.epsilon, delta, participation, threat_model, baseline)
    try:
        if request.noise == "correlated" or (request.noise is None and correlated_pays(target)):
            return target.find_correlated()
        return target.find_mechanism(), None
    except ValueError as error:
        raise ValueError(f"epsilon = {request.epsilon:g}: no mechanism reaches it here ({error})") from None


def plan_for(request: TrainingRequest, users: int, dim: int, seed: int, **options: Any) -> Plan:
    """The plan with which a run has the ε that was asked for.

    Args:
        request: What the caller asks for.
        users: Number of users.
        dim: Parameters of the model.
        seed: Seed of all that is public, such as the order of the users.
        **options: Other values of the plan.

    Returns:
        The plan.
    """
    delta = default_delta(users) if request.delta is None else request.delta
    mechanism, noise = find_mechanism_for(request, users, delta, dim)
    plan = Plan(
        model=OWN,
        dim=dim,
        mechanism=mechanism,
        noise=noise,
        participation=participation_for(request, users),
        threat_model=ThreatModel(honest_clients=request.honest_clients),
        delta=delta,
        seed=seed,
        transforms=Transforms(l2_clip=request.l2_clip, rotate=True),
        **options,
    )
    rate = request.rate
    if rate is None:
        # Without noise the model moves by half an L2 clip a round; by half of that where the noise is four clips long.
        mean, clients, noise_length = plan.private_mean(), plan.participation.clients, 0.0
        if mean.is_private:
            noise_length = mean.release.noise_multiplier(clients) * sqrt(mean.coordinates) / clients
        rate = 0.5 / request.l2_clip / (1 + noise_length / 4.0) * min(1.0, 100 / request.rounds)
    return replace(plan, server=ServerStep(rate=rate, schedule="linear"))
