"""Noise of past rounds that is taken back: who may do so, and what a trusted server that does so remembers."""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, final

from rqm import kernels
from rqm.correlated.factorization import Strategy, Workload, banded
from rqm.correlated.noise import CorrelatedNoise
from rqm.mechanisms.base import Mechanism


class Memory(Protocol):
    """What a trusted server remembers whose noise is correlated."""

    def noise(self, turn: int, like: Any) -> Any:
        """The noise of a round, for a sum like this one."""


def memory(mech: Mechanism, noise: CorrelatedNoise | None, rounds: int, seeds: Callable[[int], int]) -> Memory | None:
    """What a trusted server remembers with this mechanism, by the seed of every round; None: nothing."""
    shape = mech.correlation
    if shape is not None:
        return Banded(banded(Workload(rounds, shape.momentum, shape.schedule), shape.bands), seeds)
    if noise is None:
        return None
    unit = mech.sum_noise_std(1)
    return TakenBack(noise.transient_std / unit, noise.residual_std / unit, noise.gain, seeds)


def white(like: Any, seed: int) -> Any:
    """Standard normal noise for a sum, a torch tensor."""
    torch = kernels.backend(like).torch  # type: ignore[union-attr]
    rng = torch.Generator(like.device).manual_seed(seed)
    return torch.randn(len(like), generator=rng, device=like.device, dtype=like.dtype)


@final
class Banded:
    """The rows of C⁻¹z, one after the other; ``seeds`` gives the seed of each round's z.

    It holds as many of them as C has bands. Whoever asks for a later round than the next has all between made; one who
    goes back, all from the first: so a run that goes on after an interruption has the same noise, bit for bit, and
    saves none of it.
    """

    def __init__(self, strategy: Strategy, seeds: Callable[[int], int]) -> None:
        self.rows, self.seeds = strategy.rows.tolist(), seeds
        self.past: deque[Any] = deque(maxlen=max(strategy.bands - 1, 1))
        self.next = 0

    def noise(self, turn: int, like: Any) -> Any:
        """The noise of a round, for a sum like this one."""
        if turn < self.next - 1:
            self.past.clear()
            self.next = 0
        while self.next <= turn:
            first, *rest = self.rows[self.next]
            found = white(like, self.seeds(self.next))
            for weight, one in zip(rest, self.past, strict=False):
                found.sub_(one, alpha=weight)  # one after the other: the same bits on any number of threads
            self.past.appendleft(found.div_(first))
            self.next += 1
        return self.past[0]


@final
class TakenBack:
    """Noise of which one part stays and another, ``goes`` times as wide, is taken back in the next round.

    Besides, noise ``stays`` times as wide stays that was ``times`` as large at first.
    """

    def __init__(self, goes: float, stays: float, times: int, seeds: Callable[[int], int]) -> None:
        self.goes, self.stays, self.times, self.seeds = goes, stays, times, seeds

    def noise(self, turn: int, like: Any) -> Any:
        """The noise of a round, for a sum like this one."""
        found = self._held(white(like, self.seeds(turn)), turn, 1.0, self.times)
        return self._held(found, turn - 1, -1.0, self.times - 1) if turn else found

    def _held(self, found: Any, turn: int, sign: float, times: int) -> Any:
        """Add a round's transient noise, with the part that stays so many times as large."""
        found.add_(white(found, self.seeds(turn) ^ 1), alpha=sign * self.goes)
        if self.stays:
            found.add_(white(found, self.seeds(turn) ^ 2), alpha=sign * times * self.stays)
        return found
