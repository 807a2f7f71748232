"""Adaptive clipping: a clip that follows a quantile of the clients' norms (Andrew et al. 2021, arXiv:1905.03871).

A client's vector is clipped at C_t and scaled to √(1 − s²) of the L2 budget. One more coordinate, ±s of the budget,
says whether the norm was at most C_t. Both together stay within the budget, whatever C_t is. So the guarantee is that
of one vector with one more coordinate, and the clip follows from what was released. This is the published split of the
noise: z for both, z/√(1 − s²) for the vector, and z/2s for bits in {0, 1}.
"""

from math import exp, log, sqrt
from typing import final

import torch
from torch import Tensor

from rqm.config.plan import Adapt


@final
class AdaptiveClip:
    """The clip of the next round.

    Args:
        adapt: The settings.
        length: L2 budget of what a client sends.
        device: The device of the vectors.

    Attributes:
        state: The logarithm of the clip.
    """

    def __init__(self, adapt: Adapt, length: float, device: torch.device) -> None:
        self.adapt = adapt
        self.vector_length, self.bit = sqrt(1 - adapt.share**2) * length, adapt.share * length
        self.state = torch.tensor([log(adapt.start)], device=device)

    @property
    def clip(self) -> float:
        """C_t."""
        return exp(float(self.state))

    def messages(self, rows: Tensor) -> Tensor:
        """What clients send: their vectors, clipped at C_t and scaled, and the bit as the last column."""
        norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
        clip = self.state.double().exp()
        bits = torch.where(norms <= clip, self.bit, -self.bit)
        scaled = rows * (self.vector_length / torch.maximum(norms, clip))[:, None]
        return torch.cat([scaled, bits[:, None]], dim=1).to(rows.dtype)

    def update(self, mean: Tensor) -> Tensor:
        """Move the clip by a geometric step toward its quantile, and return the mean of the clipped vectors."""
        vector, fraction = mean[:-1] * (self.clip / self.vector_length), (mean[-1] / self.bit + 1) / 2
        self.state -= self.adapt.rate * (fraction.to(self.state) - self.adapt.quantile)
        self.state.clamp_(-40.0, 40.0)  # noise must not make the clip zero or infinite
        return vector
