"""Seconds of the parts of a round."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from time import perf_counter
from typing import final


@final
class Clock:
    """Measures the parts of a round; on a GPU, the time to launch them.

    Attributes:
        parts: Seconds of each part since `start`, by its name in `metrics.jsonl`.
    """

    def __init__(self) -> None:
        self.parts: defaultdict[str, float] = defaultdict(float)
        self._lock, self._start = Lock(), perf_counter()

    def start(self) -> None:
        """Begin a round."""
        self.parts.clear()
        self._start = perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds since the round began."""
        return perf_counter() - self._start

    @contextmanager
    def timed(self, name: str, threads: int = 1) -> Iterator[None]:
        """Add the time of a block to a part.

        Args:
            name: The name of the part.
            threads: Number of threads that work on it at the same time.
        """
        start = perf_counter()
        yield
        with self._lock:
            self.parts[name] += (perf_counter() - start) / threads
