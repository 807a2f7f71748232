"""Local steps of the field: FedAvg and FedPAQ, FedCOMGATE, FedAQ. Any mechanism carries what they send.

What a client sends depends on its data and on what was published before, whatever it remembers: so a release costs what
one of any vector within the L2 clip costs. FedAQ sends two vectors, as one of twice the length within that clip.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from math import sqrt
from typing import Protocol, final

import torch

from rqm.plan.plan import Plan
from rqm.plan.plan import Work as Name

Gradient = Callable[[torch.Tensor], None]
"""Write the gradient of some examples at a worker's values into its gradient."""


class Stepping(Protocol):
    """A worker, or many clients at once, as far as local steps look at it."""

    values: torch.Tensor
    gradient: torch.Tensor


Who = int | tuple[int, ...]
"""A client; or several at once, for whom a worker has a row each."""
MOST_STATE = 2**28
"""Numbers that all clients of a simulation may remember together."""


class Method(ABC):
    """Local steps on one client's examples, and what the server makes of the mean.

    ``state`` is what is remembered from round to round, by clients or by the server; None: nothing. What is the
    clients' ``own`` never leaves them, so it is in no file that is published.
    """

    state: torch.Tensor | None = None
    own: bool = False

    def __init__(self, plan: Plan, users: int, values: torch.Tensor) -> None:
        self.plan, self.client = plan, plan.client

    def begin(self) -> None:  # noqa: B027 (most forget nothing)
        """Begin a round: of one that was not finished nothing is remembered."""

    @abstractmethod
    def steps(
        self, worker: Stepping, client: Who, batches: Iterable[torch.Tensor], gradient: Gradient
    ) -> list[torch.Tensor]:
        """Take steps from the worker's values on; return what is sent: changes over the rate."""

    def take(self, mean: torch.Tensor, turn: int, bound: float | None) -> torch.Tensor:
        """What the server's model steps along, from the mean of what was sent; clients and server remember.

        What each sent was clipped in L2 at ``bound``.
        """
        return mean


@final
class Local(Method):
    """Local steps of plain SGD: FedAvg (McMahan et al. 2017), and with few levels FedPAQ (Reisizadeh et al. 2020)."""

    def steps(
        self, worker: Stepping, client: Who, batches: Iterable[torch.Tensor], gradient: Gradient
    ) -> list[torch.Tensor]:
        """w ← w − η ∇f_i(w)."""
        before = worker.values.clone()
        for batch in batches:
            gradient(batch)
            worker.values.sub_(worker.gradient, alpha=self.client.rate)
        return [(before - worker.values).div_(self.client.rate)]


@final
class Gate(Method):
    """FedCOMGATE (Haddadpour et al. 2021): a client corrects its steps by how far its gradient is from everybody's.

    w ← w − η (∇f_i(w) − δ_i), and when the mean is known, δ_i ← δ_i + (own − mean) / τ, both over the rate: the own as
    it was clipped. A client that is lost keeps its δ_i. The corrections never leave their clients.
    """

    state: torch.Tensor
    own = True

    def __init__(self, plan: Plan, users: int, values: torch.Tensor) -> None:
        super().__init__(plan, users, values)
        if users * len(values) > MOST_STATE:
            raise ValueError(
                f"client.work = 'fedcomgate': {users} users remember {len(values)} numbers each, more than fit here"
            )
        self.state = values.new_zeros((users, len(values)))
        self.sent: dict[Who, tuple[torch.Tensor, int]] = {}

    def begin(self) -> None:
        """Forget what was sent in a round of which no mean came."""
        self.sent.clear()

    def steps(
        self, worker: Stepping, client: Who, batches: Iterable[torch.Tensor], gradient: Gradient
    ) -> list[torch.Tensor]:
        """w ← w − η (∇f_i(w) − δ_i)."""
        before, count = worker.values.clone(), 0
        for batch in batches:
            gradient(batch)
            worker.values.sub_(worker.gradient - self.state[torch.as_tensor(client)], alpha=self.client.rate)
            count += 1
        sent = (before - worker.values).div_(self.client.rate)
        self.sent[client] = sent.clone(), count
        return [sent]

    def take(self, mean: torch.Tensor, turn: int, bound: float | None) -> torch.Tensor:
        """δ_i ← δ_i + (own − mean) / τ of those who have sent."""
        for client, (own, count) in self.sent.items():
            if bound is not None:
                own.mul_((bound / own.norm(dim=-1, keepdim=True)).clamp(max=1.0))  # of zero it is infinite, and 1
            self.state[torch.as_tensor(client)] += (own - mean.to(own)) / count
        return mean


@final
class Accelerated(Method):
    """FedAQ (Youn et al. 2022): two sequences, w and a, both of which are sent; a is the model.

    γ = max(√(η/(μτ)), η), α = 1/(γμ), β = α + 1; m = w/β + (1 − 1/β) a; g = ∇f_i(m); a ← m − ηg;
    w ← m/α + (1 − 1/α) w − γg. The server averages both, and remembers w.
    """

    state: torch.Tensor

    def __init__(self, plan: Plan, users: int, values: torch.Tensor) -> None:
        super().__init__(plan, users, values)
        self.state = values.clone()

    def steps(
        self, worker: Stepping, client: Who, batches: Iterable[torch.Tensor], gradient: Gradient
    ) -> list[torch.Tensor]:
        """Steps of both sequences; w comes after a."""
        all_of_them = list(batches)
        rate, mu = self.client.rate, self.client.convexity
        fast = max(sqrt(rate / (mu * len(all_of_them))), rate)
        alpha = 1 / (fast * mu)
        beta = alpha + 1
        first, a, w = worker.values.clone(), worker.values.clone(), self.state.clone()
        for batch in all_of_them:
            middle = w / beta + (1 - 1 / beta) * a
            worker.values.copy_(middle)
            gradient(batch)
            a = middle - rate * worker.gradient
            w = middle / alpha + (1 - 1 / alpha) * w - fast * worker.gradient
        return [(first - a).div_(rate), (self.state - w).div_(rate)]

    def take(self, mean: torch.Tensor, turn: int, bound: float | None) -> torch.Tensor:
        """The server's w steps as its model does, by plain steps."""
        half = len(mean) // 2
        rate = self.plan.server.rate_at(turn, self.plan.participation.rounds)
        self.state.sub_(mean[half:].to(self.state), alpha=rate)
        return mean[:half]


METHODS: dict[Name, type[Method]] = {"local": Local, "fedcomgate": Gate, "fedaq": Accelerated}
"""By their name in a plan."""
