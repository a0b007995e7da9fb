"""A sweep as one HTML page that needs nothing beside it."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from sluice.sweep.conclusions import Conclusion
from sluice.sweep.drawing import Plot
from sluice.sweep.report import Report
from sluice.sweep.screen import identity_of, meanings, rows_line
from sluice.sweep.words import listed
from sluice.webpage import render

_DIGITS = 12


def page(report: Report, plots: Sequence[Plot]) -> str:
    """The page, with LF line ends."""
    return render(
        "sluice.sweep",
        rows=rows_line(report),
        conclusions=[
            {
                "workload": one.workload,
                "headline": _headline(one),
                "fastest": _shown_names(one),
                "sentences": one.sentences,
                "tables": report.tables_of(one.workload),
            }
            for one in report.conclusions
        ],
        plots=[
            {"title": plot.title, "data": base64.b64encode(plot.png).decode("ascii")}
            for plot in plots
        ],
        groups=[
            {
                "prompt": f"{text.workload}, {text.prompt}",
                "letter": group.letter,
                "sha256": group.sha256[:_DIGITS],
                "arms": listed(group.arms),
            }
            for text in report.texts
            if text.differ
            for group in text.groups
        ],
        triage=report.triage,
        identity=list(identity_of(report.identity).items()),
        headings=list(meanings(report.tables).items()),
    )


def _headline(one: Conclusion) -> str:
    if len(one.fastest) < 2:
        return "".join(one.fastest)
    return f"{one.fastest[0]}, or one of {len(one.fastest) - 1} within the noise of it"


def _shown_names(one: Conclusion) -> list[str]:
    """As the first column of a table has them."""
    return [name + more for name in one.fastest for more in ("", " (warm)")]
