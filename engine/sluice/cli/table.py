"""The verdict table of ``sluice gate``."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sluice.telemetry.verdicts import ERROR, FAIL, NOT_RECORDED, PASS, Report

WIDTH_IN_A_LOG = 140
_STYLES = {PASS: "green", FAIL: "bold red", ERROR: "bold red", NOT_RECORDED: "yellow"}


def print_table(report: Report, console: Console | None = None) -> None:
    """Print one row a verdict to stdout; off a terminal, wide enough for a log."""
    console = console or _console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("gate", "model"):
        table.add_column(heading, overflow="fold", min_width=12)
    for heading in ("level", "verdict"):
        table.add_column(heading, no_wrap=True)
    table.add_column("evidence", overflow="fold", min_width=20)
    for v in report.verdicts:
        table.add_row(
            v.gate,
            v.model,
            v.level,
            Text(v.verdict, style=_STYLES.get(v.verdict, "")),
            Text(" ".join(v.evidence.split())),
        )
    console.print(table)


def _console() -> Console:
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = WIDTH_IN_A_LOG
    return console
