"""All ways in which others stand at the two ends of the clip, each law made from what it shares with its neighbours.

A stretch of neighbouring ways has some others at one end in all of them, and some at the other end. Their sum is what
all ways of the stretch have in common: it is handed down when the stretch is halved, and it bounds them all, because
more others never leak more. So a stretch that cannot matter is left out as a whole.
"""

from collections.abc import Callable, Iterator
from math import inf

from rqm.privacy.divergence import Sum


class Splits:
    """``others`` between two ends, in blocks: way k has ``block``·k of them high, or up to ``block`` − 1 more.

    Those in whom the ways of one block differ are left out. Tails are trimmed by ``log_tail`` on the way.
    """

    def __init__(self, low: Sum, high: Sum, others: int, block: int = 1, log_tail: float = -inf) -> None:
        self.ends, self.others, self.block, self.log_tail = (low, high), others, block, log_tail
        self.made: dict[tuple[int, int], Sum] = {}

    def __len__(self) -> int:
        """How many ways there are."""
        return self.others // self.block + 1

    def law(self, way: int) -> Sum:
        """The law of one way's sum."""
        high = self.block * way
        return self._plus(self._some(1, high), 0, max(0, self.others - high - self.block + 1))

    def laws(self, first: int, last: int, skip: Callable[[Sum], bool] | None = None) -> Iterator[tuple[int, Sum]]:
        """Each way from ``first`` up to ``last``, with its law; stretches whose common law may be skipped are not."""
        if last == len(self) and self.others % self.block < self.block - 1:
            last -= 1  # of the last block nobody is sure to be low
            yield last, self.law(last)
        if first >= last:
            return
        lows = self.others - self.block * last + 1
        yield from self._halved(self._plus(self._some(1, self.block * first), 0, lows), first, last, skip, 0)

    def _halved(
        self, common: Sum, first: int, last: int, skip: Callable[[Sum], bool] | None, depth: int
    ) -> Iterator[tuple[int, Sum]]:
        if last - first == 1:
            yield first, common
            return
        if skip is not None and depth % 2 and skip(common):
            return
        middle = (first + last) // 2
        yield from self._halved(self._plus(common, 0, self.block * (last - middle)), first, middle, skip, depth + 1)
        yield from self._halved(self._plus(common, 1, self.block * (middle - first)), middle, last, skip, depth + 1)

    def _plus(self, law: Sum, end: int, count: int) -> Sum:
        return (law + self._some(end, count)).trimmed(self.log_tail) if count else law

    def _some(self, end: int, count: int) -> Sum:
        if (end, count) not in self.made:
            self.made[end, count] = self.ends[end].times(count, self.log_tail)
        return self.made[end, count]
