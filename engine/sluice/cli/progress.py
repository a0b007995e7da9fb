"""Progress bars for what takes long, on a terminal only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

DELAY_S = 0.5


class Progress:
    """Called as ``progress(stage, done, total)``; shows a bar once a stage lasts over 0.5 s.

    A stage lasts from the end of the one before it: its first call may come late.

    Args:
        shown: whether to show anything at all; by default, whether stderr is a terminal.
        clock: seconds, monotonic.
    """

    def __init__(
        self, shown: bool | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._shown = sys.stderr is not None and sys.stderr.isatty() if shown is None else shown
        self._clock = clock
        self._stage = ""
        self._since_s = clock()
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Note that ``done`` of ``total`` units of ``stage`` are through."""
        if not self._shown:
            return
        if stage != self._stage:
            self.close()
            self._stage = stage
        if done >= total:
            self.close()
            self._since_s = self._clock()
        elif self._bar is None and self._clock() - self._since_s >= DELAY_S:
            self._open()
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=total)

    def close(self) -> None:
        """Take the bar off the screen; it comes back with the next slow stage."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()

    @property
    def showing(self) -> bool:
        """Whether a bar is on the screen."""
        return self._bar is not None

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(self._stage)
        self._bar.start()
