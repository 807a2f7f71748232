"""Noise of past rounds that is taken back: who may do so, and what a trusted server that does so remembers."""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any, Protocol, final

from rqm import kernels
from rqm._util.checks import real
from rqm.mechanisms.base import Mechanism
from rqm.mechanisms.transient import Transient
from rqm.privacy.factorization import Strategy, Workload, banded
from rqm.privacy.setting import Setting


def check_cancel(cancel: float, mech: Mechanism, setting: Setting) -> None:
    """Refuse to take back noise where the proof does not cover it."""
    if setting.observer != "server":
        raise ValueError("cancel: must come with the observer server; an outsider sees no more than he does")
    if isinstance(setting.honest, float):
        raise ValueError(
            f"honest = {setting.honest}: must be a number of clients, of every round, where noise cancels (cancel)"
        )
    if isinstance(cancel, bool):
        raise ValueError("cancel = True: must be a number of steps where a mechanism is given")
    if mech.integers and setting.unit == "record":
        Transient(cancel)
    elif mech.integers:
        if mech.channel.levels != 2 or not mech.channel.affine:
            raise ValueError("cancel: must come with two levels outside the clip (mechanism rounding, levels = 2)")
        Transient(cancel)
    elif mech.gaussian_multiplier is None or not mech.trusted_server or mech.correlation is not None:
        raise ValueError(f"cancel: must come with two levels, or a trusted server's Gaussian; not with {mech.kind}")
    else:
        real("cancel", cancel, "a positive finite number of L2 clips", 0, inf)


class Memory(Protocol):
    """What a trusted server remembers whose noise is correlated."""

    def noise(self, turn: int, like: Any) -> Any:
        """The noise of a round, for a sum like this one."""


def memory(mech: Mechanism, cancel: float | None, rounds: int, seeds: Callable[[int], int]) -> Memory | None:
    """What a trusted server remembers with this mechanism, by the seed of every round; None: nothing."""
    shape = mech.correlation
    if shape is not None:
        return Banded(banded(Workload(rounds, shape.momentum, shape.schedule), shape.bands), seeds)
    return None if cancel is None else TakenBack(cancel / mech.on_sum(1), seeds)


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
    """Noise of which one part stays and another, ``share`` times as wide, is taken back in the next round."""

    def __init__(self, share: float, seeds: Callable[[int], int]) -> None:
        self.share, self.seeds = share, seeds

    def noise(self, turn: int, like: Any) -> Any:
        """The noise of a round, for a sum like this one."""
        found = white(like, self.seeds(turn)).add_(white(like, self.seeds(turn) ^ 1), alpha=self.share)
        return found.sub_(white(like, self.seeds(turn - 1) ^ 1), alpha=self.share) if turn else found
