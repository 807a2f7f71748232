"""Local steps of clients: FedAvg and FedPAQ, FedCOMGATE, FedAQ.

What a client sends depends on its data and on what was published in earlier rounds, even if the client has a state of
its own. So a release costs the same as that of any vector within the L2 clip. FedAQ sends two vectors as one, of twice
the length, within that clip.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from math import sqrt
from typing import Protocol, final

import torch
from torch import Tensor

from rqm.config.plan import Plan, Work

MAX_STATE_FLOATS = 2**28
"""Numbers that all clients of a simulation may remember together: a gigabyte."""


Batches = Iterable[Tensor]
"""The batch of each step: for each client the indices of examples."""


class LocalModels(Protocol):
    """The models of some clients, one row each.

    Attributes:
        values: The parameters.
        gradient: What `compute_gradient` computed last.
    """

    values: Tensor
    gradient: Tensor

    def compute_gradient(self, batch: Tensor) -> None:
        """Compute the gradients at these parameters, on a batch: for each client the indices of examples."""


class LocalMethod(ABC):
    """The local steps of clients, and what the server does with the mean of what they send.

    Args:
        plan: The plan.
        users: Number of all users.
        values: Parameters of the initial model.

    Attributes:
        state: What is remembered from round to round; None: nothing.
        is_client_state: Whether clients remember it, one row each. It then never leaves them, and is in no file that
            is published.
        vectors: Number of vectors that a client sends.
    """

    state: Tensor | None = None
    is_client_state: bool = False
    vectors: int = 1

    def __init__(self, plan: Plan, users: int, values: Tensor) -> None:
        self.plan, self.client = plan, plan.client

    def begin_round(self) -> None:  # noqa: B027 (most have nothing to forget)
        """Forget what was sent in a round of which no mean was released."""

    @abstractmethod
    def steps(self, models: LocalModels, client_ids: Sequence[int], batches: Batches) -> list[Tensor]:
        """Take local steps.

        Args:
            models: The models of the clients, which are changed in place.
            client_ids: The clients.
            batches: The batch of each step.

        Returns:
            The vectors that are sent, one row for each client: changes over the learning rate.
        """

    def apply(self, mean: Tensor, round_index: int, clip: float | None) -> Tensor:
        """Update the state, and return what the server's model steps along.

        Args:
            mean: The mean of what was sent.
            round_index: The round, from 0.
            clip: The L2 clip of what each client sent; None: none.
        """
        return mean


@final
class FedAvg(LocalMethod):
    """Local steps of SGD: FedAvg (McMahan et al. 2017), and with few levels FedPAQ (Reisizadeh et al. 2020)."""

    def steps(self, models: LocalModels, client_ids: Sequence[int], batches: Batches) -> list[Tensor]:
        """w ← w − η ∇f_i(w)."""
        start = models.values.clone()
        for batch in batches:
            models.compute_gradient(batch)
            models.values.sub_(models.gradient, alpha=self.client.rate)
        return [(start - models.values).div_(self.client.rate)]


@final
class FedComgate(LocalMethod):
    """FedCOMGATE (Haddadpour et al. 2021): each client corrects its steps by how its gradient differs from the mean.

    w ← w − η (∇f_i(w) − δ_i). When the mean is known, δ_i ← δ_i + (v_i − mean) / τ, where v_i is what the client sent,
    as it was clipped. A client that dropped out keeps its δ_i.
    """

    state: Tensor
    is_client_state = True

    def __init__(self, plan: Plan, users: int, values: Tensor) -> None:
        super().__init__(plan, users, values)
        if users * len(values) > MAX_STATE_FLOATS:
            raise ValueError(
                f"client.work = 'fedcomgate': {users} users remember {len(values)} numbers each; must be at most "
                f"{MAX_STATE_FLOATS} together; use fewer users or a smaller model"
            )
        self.state = values.new_zeros((users, len(values)))
        self.sent: dict[tuple[int, ...], tuple[Tensor, int]] = {}

    def begin_round(self) -> None:
        """Forget what was sent in a round of which no mean was released."""
        self.sent.clear()

    def steps(self, models: LocalModels, client_ids: Sequence[int], batches: Batches) -> list[Tensor]:
        """w ← w − η (∇f_i(w) − δ_i)."""
        start, count = models.values.clone(), 0
        corrections = self.state[torch.as_tensor(client_ids)]
        for batch in batches:
            models.compute_gradient(batch)
            models.values.sub_(models.gradient - corrections, alpha=self.client.rate)
            count += 1
        change = (start - models.values).div_(self.client.rate)
        self.sent[tuple(client_ids)] = change.clone(), count
        return [change]

    def apply(self, mean: Tensor, round_index: int, clip: float | None) -> Tensor:
        """δ_i ← δ_i + (v_i − mean) / τ."""
        for client_ids, (vectors, count) in self.sent.items():
            if clip is not None:
                vectors.mul_((clip / vectors.norm(dim=-1, keepdim=True)).clamp(max=1.0))  # a zero vector stays
            self.state[torch.as_tensor(client_ids)] += (vectors - mean.to(vectors)) / count
        return mean


@final
class FedAq(LocalMethod):
    """FedAQ (Youn et al. 2022): accelerated steps of two sequences w and a, both of which are sent; a is the model.

    γ = max(√(η/(μτ)), η), α = 1/(γμ), β = α + 1; m = w/β + (1 − 1/β) a; g = ∇f_i(m); a ← m − ηg;
    w ← m/α + (1 − 1/α) w − γg. The server averages both, and remembers w.
    """

    state: Tensor
    vectors = 2

    def __init__(self, plan: Plan, users: int, values: Tensor) -> None:
        super().__init__(plan, users, values)
        self.state = values.clone()

    def steps(self, models: LocalModels, client_ids: Sequence[int], batches: Batches) -> list[Tensor]:
        """Returns the change of a, then that of w."""
        all_batches = list(batches)
        rate, mu = self.client.rate, self.client.convexity
        gamma = max(sqrt(rate / (mu * len(all_batches))), rate)
        alpha = 1 / (gamma * mu)
        beta = alpha + 1
        start, a, w = models.values.clone(), models.values.clone(), self.state.clone()
        for batch in all_batches:
            m = w / beta + (1 - 1 / beta) * a
            models.values.copy_(m)
            models.compute_gradient(batch)
            a = m - rate * models.gradient
            w = m / alpha + (1 - 1 / alpha) * w - gamma * models.gradient
        return [(start - a).div_(rate), (self.state - w).div_(rate)]

    def apply(self, mean: Tensor, round_index: int, clip: float | None) -> Tensor:
        """Move w as the server's model moves, by SGD."""
        half = len(mean) // 2
        rate = self.plan.server.rate_at(round_index, self.plan.participation.rounds)
        self.state.sub_(mean[half:].to(self.state), alpha=rate)
        return mean[:half]


METHODS: dict[Work, type[LocalMethod]] = {"local": FedAvg, "fedcomgate": FedComgate, "fedaq": FedAq}
"""Local methods by their name in a plan."""
