"""What is shown while somebody waits: one line that says what is done, how far it is, and how long it will take.

A wait whose steps are counted tells the time left from those that are done. One that cannot be counted is compared with
how long the same took the last time on this machine, which is noted in the cache.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

from rqm._util import cache

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

NOTES = "waits.json"
"""In the cache: seconds that each kind of wait took the last time."""
MOST_NOTES = 200
SHORT = 2.0
"""Seconds; what is over sooner is not worth a note."""
WIDEST, NARROWEST = 24, 6
"""Characters of a bar."""


def duration(seconds: float) -> str:
    """A length of time in words, as exactly as anybody wants to know.

    >>> [duration(t) for t in (0.2, 49, 100, 4000, 1e5)]
    ['1 s', '49 s', '2 min', '67 min', '28 h']
    """
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


@dataclass
class Wait:
    """A wait, and the line about it.

    ``total`` steps, of which ``done`` are over; 0 where nobody can count them. ``last`` is how long it took the last
    time; ``facts`` are told where there is room, the first ones first.
    """

    what: str
    total: int = 0
    last: float | None = None
    facts: tuple[str, ...] = ()
    done: int = 0
    began: float = field(default_factory=monotonic)
    _first: tuple[float, int] | None = None
    _latest: float = 0.0

    def begin(self, what: str) -> None:
        """Begin the next step, which has a name."""
        self.at(self.done if self._first is None else self.done + 1, what=what)

    def end(self, what: str) -> None:
        """A step is over, which had a name."""
        self.at(self.done + 1, what=what)

    def at(self, done: int, total: int | None = None, what: str | None = None, facts: tuple[str, ...] = ()) -> None:
        """So many steps are over."""
        self._latest = monotonic()
        self._first = self._first or (self.began, 0 if done <= 1 else done)
        self.done, self.total = done, self.total if total is None else total
        self.what, self.facts = self.what if what is None else what, facts or self.facts

    def left(self, now: float) -> float | None:
        """Seconds that are left, if there is anything to tell them from."""
        start, first = self._first or (self.began, 0)
        if self.total and self.done > first:
            pace = (self._latest - start) / (self.done - first)
            return max(0.0, pace * (self.total - self.done) - (now - self._latest))
        if self.last is not None:
            return max(0.0, self.last - (now - self.began))
        return None

    def line(self, width: int, now: float) -> str:
        """What is shown in so many columns; what does not fit is left out, the bar first but for the facts."""
        seconds = self.left(now)
        spent = duration(now - self.began)  # longer than the last time, or never noted
        known = seconds is not None and (seconds > 0 or self.total > 0)
        time = f"{duration(seconds or 0.0)} left" if known else f"{spent} so far"
        count = f"{self.done:,}/{self.total:,}" if self.total else ""
        room = width - len("  ".join(filter(None, (count, time)))) - 2
        parts = [self.what if len(self.what) <= room else self.what[: max(1, room - 1)] + "…", count, time]
        facts: list[str] = []
        for fact in self.facts:
            if len("  ".join(filter(None, [*parts, ", ".join([*facts, fact])]))) + NARROWEST + 2 > width:
                break
            facts.append(fact)
        parts.append(", ".join(facts))
        free = width - len("  ".join(filter(None, parts))) - 2
        if self.total and free >= NARROWEST:
            parts.insert(1, bar(self.done / self.total, min(WIDEST, free)))
        return "  ".join(filter(None, parts))

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> Iterator[Any]:
        """As rich draws it, again and again."""
        from rich.text import Text

        yield Text(self.line(options.max_width, monotonic()), no_wrap=True, overflow="crop")


def bar(share: float, width: int) -> str:
    """A bar of which a share is full.

    >>> bar(0.5, 8)
    '━━━━────'
    """
    full = round(min(1.0, share) * width)
    return "━" * full + "─" * (width - full)


@contextmanager
def waiting(what: str, total: int = 0, *, quiet: bool = False, key: str | None = None) -> Iterator[Wait]:
    """Show a wait on a terminal; elsewhere, or ``quiet``, only count. With a ``key`` note how long it took."""
    from rich.console import Console
    from rich.live import Live

    console, noted = Console(stderr=True), _noted() if key else {}
    wait = Wait(what, total, last=noted.get(key or ""))
    if quiet or not console.is_terminal:
        yield wait
    else:
        with Live(wait, console=console, transient=True, refresh_per_second=4):
            yield wait
    spent = monotonic() - wait.began
    if key and spent > SHORT:
        _note({**noted, key: round(spent, 1)})


def _noted() -> dict[str, float]:
    """How long waits took; nothing if that cannot be read."""
    place = cache.folder()
    try:
        held = json.loads((place / NOTES).read_bytes()) if place else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return {str(k): float(v) for k, v in held.items() if isinstance(v, (int, float))} if isinstance(held, dict) else {}


def _note(waits: dict[str, float]) -> None:
    from rqm._util.files import write_atomically

    place = cache.folder()
    if place is None:
        return
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = dict(list(waits.items())[-MOST_NOTES:])
        write_atomically(place / NOTES, json.dumps(kept).encode(), private=True)
    except OSError:  # nobody minds
        return
