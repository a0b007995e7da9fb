"""What a sweep leaves in its folder besides the rows: table, figures, plots, page, prompts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sluice.errors import SystemFault
from sluice.sweep.document import document, to_json
from sluice.sweep.drawing import plots
from sluice.sweep.page import page
from sluice.sweep.report import Report
from sluice.sweep.screen import screen
from sluice.sweep.triaged import prompt_file
from sluice.sweep.workload import Workload
from sluice.telemetry.files import atomic, write_whole

TABLE, FIGURES, PAGE = "table.txt", "figures.json", "index.html"


def write_report(folder: Path, report: Report) -> None:
    """Write table, figures, plots and page, each whole or not at all.

    Raises:
        SystemFault: one cannot be written, or matplotlib cannot be loaded; what could be
            written before that is there.
    """
    write_whole(folder / TABLE, screen(report))
    write_whole(folder / FIGURES, to_json(document(report)))
    drawn = plots(report)
    for plot in drawn:
        with atomic(folder / plot.file) as part:
            part.write_bytes(plot.png)
    write_whole(folder / PAGE, page(report, drawn))


def write_prompts(folder: Path, workloads: Iterable[Workload]) -> None:
    """Write every prompt where the triage lines of the report look for it.

    Raises:
        SystemFault: one cannot be written.
    """
    for workload in workloads:
        for prompt in workload.prompts:
            path = folder / prompt_file(workload.name, prompt.name)
            try:
                path.parent.mkdir(exist_ok=True)
            except OSError as err:
                raise SystemFault(f"{path.parent}: cannot be made: {err.strerror}") from None
            with atomic(path) as part:
                part.write_bytes(prompt.text.encode())  # line ends as they are
