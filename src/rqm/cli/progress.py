"""The progress bar of a command."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from rich.live import Live
    from rich.progress import Progress


class Bar:
    """A progress bar for one task.

    Args:
        live: The display; None: nothing is shown.
        bars: The rich progress bars, which hold one task.
    """

    is_visible: ClassVar[bool] = True
    """Whether to show bars at all; not with `--json`."""

    def __init__(self, live: "Live | None" = None, bars: "Progress | None" = None) -> None:
        self._live = live
        self._bars = bars
        self._steps = 0

    def update(
        self,
        description: str | None,
        completed: int,
        total: int | None = None,
        facts: Iterable[str] = (),
    ) -> None:
        """Show how far the task is.

        Args:
            description: What is done now; None: as before.
            completed: Steps that are completed.
            total: Steps of the whole task; None: as before.
            facts: Short texts for the line below the bar, such as the accuracy.
        """
        if self._live is None or self._bars is None:
            return
        from rich.console import Group
        from rich.text import Text

        task_id = self._bars.task_ids[0]
        self._bars.update(task_id, completed=completed, total=total, description=description)
        if facts:
            self._live.update(Group(self._bars, Text(", ".join(facts))))

    def begin(self, step: str) -> None:
        """Show the name of a step that begins."""
        self.update(step, self._steps)
        self._steps += 1

    def end(self, step: str) -> None:
        """Show the name of a step that is completed."""
        self._steps += 1
        self.update(step, self._steps)


@contextmanager
def progress(description: str, total: int | None = None) -> Iterator[Bar]:
    """Show a progress bar on stderr while the block runs, if stderr is a terminal.

    Args:
        description: What is done.
        total: Steps of the task. None: unknown, so the bar shows the time elapsed but no time left.

    Yields:
        The bar, to be updated.
    """
    if not Bar.is_visible or not sys.stderr.isatty():
        yield Bar()
        return
    from rich.console import Console
    from rich.live import Live
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column

    bars = Progress(
        TextColumn("{task.description}", markup=False, table_column=Column()),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TimeElapsedColumn(),
        speed_estimate_period=3600,  # seconds; a step may take minutes
    )
    bars.add_task(description, total=total)
    with Live(bars, console=Console(stderr=True), transient=True) as live:
        yield Bar(live, bars)
