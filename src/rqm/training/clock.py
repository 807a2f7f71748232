"""Seconds of the parts of a round."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from time import perf_counter
from typing import final


@final
class Clock:
    """Seconds of each part since ``start``; on a GPU, those of launching it."""

    def __init__(self) -> None:
        self.parts: defaultdict[str, float] = defaultdict(float)
        self._lock, self._began = Lock(), perf_counter()

    def start(self) -> None:
        """Begin a round."""
        self.parts.clear()
        self._began = perf_counter()

    @property
    def seconds(self) -> float:
        """Since the round began."""
        return perf_counter() - self._began

    @contextmanager
    def timed(self, part: str, among: int = 1) -> Iterator[None]:
        """Count the seconds of a part, of which ``among`` workers do something at once."""
        start = perf_counter()
        yield
        with self._lock:
            self.parts[part] += (perf_counter() - start) / among
