"""Local steps of clients: FedAvg and FedPAQ, FedCOMGATE, FedAQ.

What a client sends depends on its data and on what was published in earlier rounds, even if the client has a state of
its own. So a release costs the same as that of any vector within the L2 clip. FedAQ sends two vectors as one, of twice
the length, within that clip.
"""

from collections.abc import Iterable, Sequence
from math import sqrt
from typing import Protocol, final

import torch
from torch import Tensor

from rqm.config.plan import Plan, Work

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


class LocalMethod:
    """The local steps of clients, and what the server does with the mean of what they send.

    This class takes steps of SGD: FedAvg (McMahan et al. 2017), and with few levels FedPAQ (Reisizadeh et al. 2020).
    Other methods override what they need.

    Args:
        plan: The plan.
        users: Number of all users.
        values: Parameters of the initial model.

    Attributes:
        server_state: What the server remembers from round to round; None: nothing.
        client_state: What clients remember, one row each. It never leaves them, and is in no file that is published.
        vectors: Number of vectors that a client sends.
    """

    server_state: Tensor | None = None
    client_state: Tensor | None = None
    vectors: int = 1

    def __init__(self, plan: Plan, users: int, values: Tensor) -> None:
        self.plan, self.client = plan, plan.client

    def begin_round(self) -> None:
        """Forget what was sent in a round of which no mean was released."""

    def steps(self, models: LocalModels, client_ids: Sequence[int], batches: Batches) -> list[Tensor]:
        """Take local steps.

        Args:
            models: The models of the clients, which are changed in place.
            client_ids: The clients.
            batches: The batch of each step.

        Returns:
            The vectors that are sent, one row for each client: changes over the learning rate.
        """
        return [self._descend(models, batches)]

    def _descend(self, models: LocalModels, batches: Batches, corrections: Tensor | None = None) -> Tensor:
        """Take steps of SGD, w ← w − η (∇f_i(w) − δ_i), and return the change over η."""
        start = models.values.clone()
        for batch in batches:
            models.compute_gradient(batch)
            if corrections is not None:
                models.gradient.sub_(corrections)
            models.values.sub_(models.gradient, alpha=self.client.rate)
        return (start - models.values).div_(self.client.rate)

    def apply(self, mean: Tensor, round_index: int, clip: float | None) -> Tensor:
        """Update the states, and return what the server's model steps along.

        Args:
            mean: The mean of what was sent.
            round_index: The round, from 0.
            clip: The L2 clip of what each client sent; None: none.
        """
        return mean


@final
class FedComgate(LocalMethod):
    """FedCOMGATE (Haddadpour et al. 2021): each client corrects its steps by how its gradient differs from the mean.

    w ← w − η (∇f_i(w) − δ_i). When the mean is known, δ_i ← δ_i + (v_i − mean) / τ, where v_i is what the client sent,
    as it was clipped. A client that dropped out keeps its δ_i.
    """

    client_state: Tensor

    def __init__(self, plan: Plan, users: int, values: Tensor) -> None:
        super().__init__(plan, users, values)
        limit = 2**28  # a gigabyte
        if users * len(values) > limit:
            raise ValueError(
                f"client.work = 'fedcomgate': {users} users remember {len(values)} numbers each; must be at most "
                f"{limit} together; use fewer users or a smaller model"
            )
        self.client_state = values.new_zeros((users, len(values)))
        self.sent: dict[tuple[int, ...], tuple[Tensor, int]] = {}

    def begin_round(self) -> None:
        """Forget what was sent in a round of which no mean was released."""
        self.sent.clear()

    def steps(self, models: LocalModels, client_ids: Sequence[int], batches: Batches) -> list[Tensor]:
        """w ← w − η (∇f_i(w) − δ_i)."""
        batches = list(batches)
        change = self._descend(models, batches, self.client_state[torch.as_tensor(client_ids)])
        self.sent[tuple(client_ids)] = change.clone(), len(batches)
        return [change]

    def apply(self, mean: Tensor, round_index: int, clip: float | None) -> Tensor:
        """δ_i ← δ_i + (v_i − mean) / τ."""
        for client_ids, (vectors, count) in self.sent.items():
            if clip is not None:
                vectors.mul_((clip / vectors.norm(dim=-1, keepdim=True)).clamp(max=1.0))  # a zero vector stays
            self.client_state[torch.as_tensor(client_ids)] += (vectors - mean.to(vectors)) / count
        return mean


@final
class FedAq(LocalMethod):
    """FedAQ (Youn et al. 2022): accelerated steps of two sequences w and a, both of which are sent; a is the model.

    γ = max(√(η/(μτ)), η), α = 1/(γμ), β = α + 1; m = w/β + (1 − 1/β) a; g = ∇f_i(m); a ← m − ηg;
    w ← m/α + (1 − 1/α) w − γg. The server averages both, and remembers w.
    """

    server_state: Tensor
    vectors = 2

    def __init__(self, plan: Plan, users: int, values: Tensor) -> None:
        super().__init__(plan, users, values)
        self.server_state = values.clone()

    def steps(self, models: LocalModels, client_ids: Sequence[int], batches: Batches) -> list[Tensor]:
        """Returns the change of a, then that of w."""
        batches = list(batches)
        rate, mu = self.client.rate, self.client.convexity
        gamma = max(sqrt(rate / (mu * len(batches))), rate)
        alpha = 1 / (gamma * mu)
        beta = alpha + 1
        start, a, w = models.values.clone(), models.values.clone(), self.server_state.clone()
        for batch in batches:
            m = w / beta + (1 - 1 / beta) * a
            models.values.copy_(m)
            models.compute_gradient(batch)
            a = m - rate * models.gradient
            w = m / alpha + (1 - 1 / alpha) * w - gamma * models.gradient
        return [(start - a).div_(rate), (self.server_state - w).div_(rate)]

    def apply(self, mean: Tensor, round_index: int, clip: float | None) -> Tensor:
        """Move w as the server's model moves, by SGD."""
        half = len(mean) // 2
        rate = self.plan.server.rate_at(round_index, self.plan.participation.rounds)
        self.server_state.sub_(mean[half:].to(self.server_state), alpha=rate)
        return mean[:half]


METHODS: dict[Work, type[LocalMethod]] = {"local": LocalMethod, "fedcomgate": FedComgate, "fedaq": FedAq}
"""Local methods by their name in a plan."""
