"""Noise of past rounds that is taken back: who may do so, and what a trusted server that does so remembers."""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any, Protocol, final

from rqm import kernels
from rqm._util.checks import real, shown, whole
from rqm.mechanisms.base import Mechanism
from rqm.mechanisms.transient import MOST_TIMES, Cancel, Transient
from rqm.privacy.factorization import Strategy, Workload, banded
from rqm.privacy.setting import Setting


def check_cancel(cancel: Cancel, mech: Mechanism, setting: Setting) -> None:
    """Refuse to take back noise where the proof does not cover it."""
    if setting.observer != "server":
        raise ValueError("cancel: must come with the observer server; an outsider sees no more than he does")
    if isinstance(setting.honest, float):
        raise ValueError(
            f"honest = {setting.honest}: must be a number of clients, of every round, where noise cancels (cancel)"
        )
    if isinstance(cancel, bool):
        raise ValueError("cancel = True: must be a number of steps where a mechanism is given")
    if setting.unit == "record" and isinstance(cancel, tuple):
        raise ValueError(f"cancel = {shown(cancel)}: must be one number for records: all of a silo's noise goes")
    if mech.integers:
        if setting.unit == "user" and (mech.channel.levels != 2 or not mech.channel.affine):
            raise ValueError("cancel: must come with two levels outside the clip (mechanism rounding, levels = 2)")
        Transient.of(cancel)
    elif mech.gaussian_multiplier is None or not mech.trusted_server or mech.correlation is not None:
        raise ValueError(f"cancel: must come with two levels, or a trusted server's Gaussian; not with {mech.kind}")
    else:
        *parts, times = cancel if isinstance(cancel, tuple) else (cancel, 1)
        for one in parts:
            real("cancel", one, "a positive finite number of L2 clips", 0, inf)
        whole("cancel", times, 1, MOST_TIMES)


class Memory(Protocol):
    """What a trusted server remembers whose noise is correlated."""

    def noise(self, turn: int, like: Any) -> Any:
        """The noise of a round, for a sum like this one."""


def memory(mech: Mechanism, cancel: Cancel | None, rounds: int, seeds: Callable[[int], int]) -> Memory | None:
    """What a trusted server remembers with this mechanism, by the seed of every round; None: nothing."""
    shape = mech.correlation
    if shape is not None:
        return Banded(banded(Workload(rounds, shape.momentum, shape.schedule), shape.bands), seeds)
    if cancel is None:
        return None
    goes, stays, times = cancel if isinstance(cancel, tuple) else (cancel, 0.0, 1)
    return TakenBack(goes / mech.on_sum(1), stays / mech.on_sum(1), times, seeds)


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
