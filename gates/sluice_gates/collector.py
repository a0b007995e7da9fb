"""Collects verdicts where the report is written: the controller under xdist, else this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice_gates.report import PREFIX, Report, Verdict, counts, table

SUMMARY = "sluice-summary"
"""A test property of this name is printed whole at the end of the run."""

ORDER = f"{PREFIX}order"
FINGERPRINT = f"{PREFIX}fingerprint"
CANNOT_OPEN = f"{PREFIX}cannot_open"


class Collector:
    """A pytest plugin object; nothing happens where no gate was run."""

    def __init__(self, report_file: str | None) -> None:
        self._file = Path(report_file) if report_file else None
        self._verdicts: dict[int, Verdict] = {}
        self._fingerprints: dict[str, dict[str, str]] = {}
        self._cannot_open: str | None = None
        self._summaries: list[str] = []

    def report(self) -> Report:
        """What has been collected so far, in the order of the tests."""
        ordered = [self._verdicts[index] for index in sorted(self._verdicts)]
        return Report(ordered, self._fingerprints, self._cannot_open)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Read the properties of a finished test."""
        if report.when != "teardown":
            return
        self._summaries += [str(v) for name, v in report.user_properties if name == SUMMARY]
        properties = dict(report.user_properties)
        verdict = Verdict.from_properties(properties)
        if verdict is None:
            return
        self._verdicts[int(str(properties[ORDER]))] = verdict
        if CANNOT_OPEN in properties:
            self._cannot_open = self._cannot_open or str(properties[CANNOT_OPEN])
        if FINGERPRINT in properties:
            self._fingerprints[verdict.model] = json.loads(str(properties[FINGERPRINT]))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Settle the exit code and write the report."""
        if not self._verdicts:
            return
        report = self.report()
        session.exitstatus = report.exit_code(int(session.exitstatus))
        if self._file is not None:
            report.write(self._file, int(session.exitstatus))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table of verdicts, and what tests asked to have printed."""
        for text in self._summaries:
            terminalreporter.section(text.partition("\n")[0])
            terminalreporter.write_line(text.partition("\n")[2])
        if not self._verdicts:
            return
        report = self.report()
        terminalreporter.section("sluice gates")
        for line in table(report.verdicts):
            terminalreporter.write_line(line)
        terminalreporter.write_line(counts(report.verdicts))
        if report.cannot_open:
            terminalreporter.write_line(f"ERROR: the model cannot be opened: {report.cannot_open}")
        elif {v.verdict for v in report.verdicts} == {"NOT APPLICABLE"}:
            terminalreporter.write_line("no gate was applicable, so nothing is shown: a failure")
