"""The noise that a trusted server adds to the sum of each round, for baselines in simulations."""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, final

from rqm import kernels
from rqm.correlated.factorization import Strategy, Workload, banded
from rqm.correlated.scheme import NoiseScheme
from rqm.mechanisms.base import Mechanism

Seeds = Callable[[int], int]
"""The seed of each round's noise, pseudorandom, as its two lowest bits name the parts of the noise."""


class ServerNoise(Protocol):
    """Noise of unit scale for the sum of each round."""

    def sample(self, round_index: int, template: Any) -> Any:
        """The noise of a round.

        Args:
            round_index: The round.
            template: A torch tensor of the shape of the sum.

        Returns:
            The noise, a tensor.
        """


def server_noise(mechanism: Mechanism, noise: NoiseScheme | None, rounds: int, seeds: Seeds) -> ServerNoise:
    """The noise of a mechanism whose noise a trusted server adds.

    Args:
        mechanism: The mechanism.
        noise: Correlated noise, or None.
        rounds: Number of rounds.
        seeds: The seed of each round's noise.

    Returns:
        The noise.
    """
    correlation = mechanism.correlation
    if correlation is not None:
        workload = Workload(rounds, correlation.momentum, correlation.schedule)
        return BandedNoise(banded(workload, correlation.bands), seeds)
    if noise is not None:
        return noise.server_noise(mechanism.sum_noise_std(1), seeds)
    return IndependentNoise(seeds)


def _normal(template: Any, seed: int) -> Any:
    """Standard normal noise, a torch tensor."""
    torch = kernels.backend(template).torch  # type: ignore[union-attr]
    generator = torch.Generator(template.device).manual_seed(seed)
    return torch.randn(len(template), generator=generator, device=template.device, dtype=template.dtype)


@final
class IndependentNoise:
    """Independent Gaussian noise."""

    def __init__(self, seeds: Seeds) -> None:
        self.seeds = seeds

    def sample(self, round_index: int, template: Any) -> Any:
        """See `ServerNoise`."""
        return _normal(template, self.seeds(round_index))


@final
class BandedNoise:
    """Noise of banded matrix factorization: the rows of C⁻¹z.

    It stores one past row for each band of C but the first. An earlier round is computed again from the first
    one, so a resumed run has the same noise bit for bit, and nothing is saved.
    """

    def __init__(self, strategy: Strategy, seeds: Seeds) -> None:
        self.coefficients, self.seeds = strategy.rows.tolist(), seeds
        self.past: deque[Any] = deque(maxlen=max(strategy.bands - 1, 1))
        self.next_round = 0

    def sample(self, round_index: int, template: Any) -> Any:
        """See `ServerNoise`."""
        if round_index < self.next_round - 1:
            self.past.clear()
            self.next_round = 0
        while self.next_round <= round_index:
            diagonal, *weights = self.coefficients[self.next_round]
            noise = _normal(template, self.seeds(self.next_round))
            for weight, earlier in zip(weights, self.past, strict=False):
                noise.sub_(earlier, alpha=weight)  # one at a time: the same bits on any number of threads
            self.past.appendleft(noise.div_(diagonal))
            self.next_round += 1
        return self.past[0]


@final
class TransientNoise:
    """Independent noise, plus transient and residual noise that the next round cancels in part.

    Attributes:
        transient_std: Standard deviation of the noise that the next round cancels.
        residual_std: Standard deviation of the noise that is added `gain` times.
        gain: How many times residual noise is added. The next round cancels all but one of them.
        seeds: The seed of each round's noise.
    """

    def __init__(self, transient_std: float, residual_std: float, gain: int, seeds: Seeds) -> None:
        self.transient_std, self.residual_std, self.gain, self.seeds = transient_std, residual_std, gain, seeds

    def sample(self, round_index: int, template: Any) -> Any:
        """See `ServerNoise`."""
        noise = _normal(template, self.seeds(round_index))
        self._add(noise, round_index, 1.0, self.gain)
        if round_index:
            self._add(noise, round_index - 1, -1.0, self.gain - 1)
        return noise

    def _add(self, noise: Any, round_index: int, sign: float, gain: int) -> None:
        """Add the correlated noise of a round."""
        seed = self.seeds(round_index)
        noise.add_(_normal(noise, seed ^ 1), alpha=sign * self.transient_std)
        if self.residual_std:
            noise.add_(_normal(noise, seed ^ 2), alpha=sign * gain * self.residual_std)
