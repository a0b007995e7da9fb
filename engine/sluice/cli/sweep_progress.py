"""Where a sweep is: a bar on a terminal, and a line a visit elsewhere, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from sluice.sweep.schedule import Request


class SweepProgress:
    """Is told by the runner of every request.

    Args:
        repeats: of the sweep.
        shown: whether there is a terminal for a bar; by default, whether stderr is one.
    """

    def __init__(self, repeats: int, shown: bool | None = None) -> None:
        self.on_written: Callable[[int, int], None] = lambda _done, _total: None
        """Called with (rows there are, rows there will be) after each."""
        self._repeats = repeats
        self._shown = sys.stderr is not None and sys.stderr.isatty() if shown is None else shown
        self._visit: tuple[str, int] | None = None
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def begins(self, request: Request, n_done: int, n_total: int, left_s: float | None) -> None:
        """``request`` is about to be made."""
        where = f"repeat {request.repeat + 1}/{self._repeats}  {request.arm.name}"
        if self._shown:
            cold = {True: " (cold)", False: " (warm)", None: ""}[request.is_cold]
            self._show(f"{where}{cold}  {request.workload.name}, {request.prompt.name}",
                       n_done, n_total, left(left_s))  # fmt: skip
        elif self._visit != (request.arm.name, request.repeat):
            self._visit = (request.arm.name, request.repeat)
            click.echo(f"sweep: {where}: {n_done} of {n_total} requests done{left(left_s)}",
                       err=True)  # fmt: skip

    def wrote(self, n_done: int, n_total: int) -> None:
        """One more row is on the disk."""
        self.on_written(n_done, n_total)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=n_done, total=n_total)

    def close(self) -> None:
        """Take the bar off the screen."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()

    def _show(self, where: str, n_done: int, n_total: int, left: str) -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.description}{task.fields[left]}", markup=False),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(where, completed=n_done, total=n_total, left=left)
            self._bar.start()
        elif self._task is not None:
            self._bar.update(
                self._task, description=where, completed=n_done, total=n_total, left=left
            )


def left(seconds: float | None) -> str:
    """``, about 3 min left``; empty where it is not known."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f", about {max(round(seconds), 1)} s left"
    if seconds < 5400:
        return f", about {seconds / 60:.0f} min left"
    return f", about {seconds / 3600:.1f} h left"
