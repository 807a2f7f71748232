"""A clip that follows a quantile of the clients' norms, told by one bit of each in the same sum (Andrew et al. 2021).

A client's vector is clipped at C_t and scaled to the part √(1 − s²) of the L2 budget; one more coordinate, of the part
±s, says whether it was short enough. Both together keep to the budget, whatever C_t is: so the guarantee is that of one
vector with one more coordinate, and the clip is made of what was released. That is the published split of the noise, z
for both and z/√(1 − s²) for the vector, where bits have the noise z/2s.
"""

from math import exp, log, sqrt
from typing import final

import torch

from rqm.plan.plan import Adapt

FARTHEST = 40.0
"""The logarithm of a clip, at most: noise on its way must not make it zero or infinite."""


@final
class Quantile:
    """The clip as it is now; ``state`` is its logarithm. ``length`` is the L2 budget of what is sent."""

    def __init__(self, adapt: Adapt, length: float, device: torch.device) -> None:
        self.adapt = adapt
        self.vector, self.bit = sqrt(1 - adapt.share**2) * length, adapt.share * length
        self.state = torch.tensor([log(adapt.start)], device=device)

    @property
    def clip(self) -> float:
        """C_t."""
        return exp(float(self.state))

    def message(self, rows: torch.Tensor) -> torch.Tensor:
        """What clients send for these rows: clipped at C_t, scaled, with the bit."""
        norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
        clip = self.state.double().exp()
        short = torch.where(norms <= clip, self.bit, -self.bit)
        scaled = rows * (self.vector / torch.maximum(norms, clip))[:, None]
        return torch.cat([scaled, short[:, None]], dim=1).to(rows.dtype)

    def take(self, mean: torch.Tensor) -> torch.Tensor:
        """The mean of the clients' clipped vectors; the clip moves by a geometric step towards its quantile."""
        vector, share = mean[:-1] * (self.clip / self.vector), (mean[-1] / self.bit + 1) / 2
        self.state -= self.adapt.rate * (share.to(self.state) - self.adapt.quantile)
        self.state.clamp_(-FARTHEST, FARTHEST)
        return vector
