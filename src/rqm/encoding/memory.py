"""What a trusted server remembers whose noise is correlated: the noise of its last rounds."""

from collections import deque
from collections.abc import Callable
from typing import Any, final

from rqm import kernels
from rqm.privacy.factorization import Strategy


def white(like: Any, seed: int) -> Any:
    """Standard normal noise for a sum, a torch tensor."""
    torch = kernels.backend(like).torch  # type: ignore[union-attr]
    rng = torch.Generator(like.device).manual_seed(seed)
    return torch.randn(len(like), generator=rng, device=like.device, dtype=like.dtype)


@final
class Memory:
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
