"""Everything that is shown of a sweep, from its rows alone. Pure.

What is drawn while a sweep runs and what is redrawn later are the same, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sluice.sweep.arm import Arm, parse
from sluice.sweep.conclusions import Conclusion, conclude
from sluice.sweep.figures import ArmFigures, figures
from sluice.sweep.ranking import Ranking, rankings
from sluice.sweep.row import Identity, Row
from sluice.sweep.rows import Recorded
from sluice.sweep.table import Table, tables
from sluice.sweep.texts import Texts, texts
from sluice.sweep.triaged import commands


@dataclass(frozen=True, slots=True)
class Report:
    """A sweep as it is shown.

    ``n_ok``, ``n_refused`` and ``n_failed`` count its rows; ``triage`` are command lines that
    look into texts that differ, to be given in the folder of the sweep.
    """

    identity: Identity
    n_ok: int
    n_refused: int
    n_failed: int
    figures: tuple[ArmFigures, ...]
    rankings: tuple[Ranking, ...]
    texts: tuple[Texts, ...]
    tables_by_workload: tuple[tuple[str, tuple[Table, ...]], ...]
    conclusions: tuple[Conclusion, ...]
    triage: tuple[str, ...]

    def figures_of(self, workload: str) -> tuple[ArmFigures, ...]:
        """Those of one workload."""
        return tuple(one for one in self.figures if one.workload == workload)

    def tables_of(self, workload: str) -> tuple[Table, ...]:
        """Those of one workload."""
        return dict(self.tables_by_workload)[workload]

    @property
    def tables(self) -> tuple[Table, ...]:
        """All of them."""
        return tuple(table for _, mine in self.tables_by_workload for table in mine)

    @property
    def workloads(self) -> tuple[str, ...]:
        """Their names, in order."""
        return tuple(dict.fromkeys(one.workload for one in self.figures))


def report(recorded: Recorded) -> Report:
    """The report of a sweep's rows.

    Raises:
        RequestError: a row names an arm that is none.
    """
    rows = ordered(recorded.rows)
    found = figures(rows)
    ranked, about = rankings(rows), texts(found)
    return Report(
        identity=recorded.identity,
        n_ok=sum(row.ok for row in rows),
        n_refused=sum(row.outcome == "refused" for row in rows),
        n_failed=sum(row.outcome == "failed" for row in rows),
        figures=found,
        rankings=ranked,
        texts=about,
        tables_by_workload=tuple(
            (name, tables([one for one in found if one.workload == name], ranked, about))
            for name in dict.fromkeys(one.workload for one in found)
        ),
        conclusions=conclude(found, ranked, about),
        triage=commands(recorded.identity, rows, about),
    )


def ordered(rows: Iterable[Row]) -> list[Row]:
    """Rows by workload, then by arm: resident ones first, MTP off first, then by length.

    They were made in a random order, which is no order to read them in.
    """
    rows = list(rows)
    workloads = list(dict.fromkeys(row.workload for row in rows))
    arms = {row.arm: _place(parse(row.arm)) for row in rows}
    return sorted(rows, key=lambda row: (workloads.index(row.workload), arms[row.arm]))


def _place(arm: Arm) -> tuple[bool, str, int, float, int]:
    return (arm.is_streamed, arm.baseline, arm.n_max, arm.p_min, arm.n_min)
