"""A sweep as a screen of text: what ``table.txt`` holds. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping

from sluice.sweep.report import Report
from sluice.sweep.row import Identity
from sluice.sweep.table import Column, Table
from sluice.sweep.words import counted

_GAP = "  "


def screen(report: Report) -> str:
    """Identity, tables with their notes, conclusions, triage lines; LF line ends."""
    parts = ["\n".join(identity_lines(report.identity)), rows_line(report)]
    for workload in report.workloads:
        parts += ["\n".join(table_lines(one)) for one in report.tables_of(workload)]
        parts += [
            "\n".join([f"What {workload} says", *(f"  {said}" for said in one.sentences)])
            for one in report.conclusions
            if one.workload == workload
        ]
    if report.triage:
        parts.append("\n".join(["Why texts differ (in the folder of the sweep):",
                                *(f"  {line}" for line in report.triage)]))  # fmt: skip
    if headings := _pairs(meanings(report.tables)):
        parts.append("\n".join(headings))
    return "\n\n".join(parts) + "\n"


def identity_lines(identity: Identity) -> list[str]:
    """Whose figures they are: one line a part."""
    return _pairs(identity_of(identity))


def identity_of(identity: Identity) -> dict[str, str]:
    """The parts by name, as words."""
    return {
        "target": identity.target,
        "model": identity.model,
        "build": identity.build,
        "machine": identity.machine or "not told",
        "threads": str(identity.threads) if identity.threads else "not told",
        **identity.settings,
    }


def rows_line(report: Report) -> str:
    """How many requests there are of each outcome."""
    others = [(report.n_refused, "refused by rule"), (report.n_failed, "failed")]
    more = "".join(f", {n} {word}" for n, word in others if n)
    return f"{counted(report.n_ok, 'request')} measured{more}."


def table_lines(table: Table) -> Iterator[str]:
    """Title, heading, rows and notes, in columns."""
    yield table.title
    cells = [tuple(column.heading for column in table.columns), *table.rows]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    lines = [_GAP.join(_padded(cell, width, column)
                       for cell, width, column in zip(row, widths, table.columns, strict=True))
             for row in cells]  # fmt: skip
    yield from (f"  {line}".rstrip() for line in lines)
    yield from (f"  {note}" for note in table.notes)


def meanings(tables: Iterable[Table]) -> dict[str, str]:
    """What each heading means; places in the draft explain themselves."""
    return {
        column.heading: column.meaning
        for table in tables
        for column in table.columns
        if not column.heading.isdecimal()
    }


def _pairs(named: Mapping[str, str]) -> list[str]:
    width = max(map(_width, named), default=0)
    return [f"{name}{' ' * (width - _width(name))}  {value}" for name, value in named.items()]


def _padded(cell: str, width: int, column: Column) -> str:
    space = " " * (width - _width(cell))
    return space + cell if column.is_number else cell + space


def _width(text: str) -> int:
    """Columns of a terminal."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(bool(unicodedata.combining(c)) for c in text)
