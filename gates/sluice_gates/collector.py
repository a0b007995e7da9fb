"""Collects verdicts where the report is written: the controller under xdist, else this process."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from sluice.errors import SystemFault
from sluice.telemetry.verdicts import (
    NOTHING_APPLIES,
    Report,
    Verdict,
    exit_of,
    nothing_applies,
)
from sluice_gates.report import PREFIX, counts, shared_fingerprint, table, verdict_of

SUMMARY = "sluice-summary"
"""A test property of this name is a table: printed whole at the end, and in the report."""

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
        self._summaries: list[tuple[float, str]] = []

    def report(self, pytest_exit: int) -> Report:
        """What has been collected so far, in the order of the tests."""
        return Report(
            verdicts=self._ordered(),
            fingerprint=shared_fingerprint(self._fingerprints),
            exit_code=self._exit_of(pytest_exit),
            tables=self._tables(),
        )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Read the properties of a finished test."""
        if report.when != "teardown":
            return
        properties = dict(report.user_properties)
        # Under xdist tests finish in any order; those that are no gates come last.
        order = float(str(properties.get(ORDER, math.inf)))
        self._summaries += [(order, str(v)) for name, v in report.user_properties
                            if name == SUMMARY]  # fmt: skip
        verdict = verdict_of(properties)
        if verdict is None:
            return
        self._verdicts[int(order)] = verdict
        if CANNOT_OPEN in properties:
            self._cannot_open = self._cannot_open or str(properties[CANNOT_OPEN])
        if FINGERPRINT in properties:
            self._fingerprints[verdict.model] = json.loads(str(properties[FINGERPRINT]))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Settle the exit code and write the report."""
        if not self._verdicts:
            return
        report = self.report(int(session.exitstatus))
        session.exitstatus = report.exit_code
        if self._file is not None:
            report.write(self._file)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table of verdicts, and what tests asked to have printed."""
        for text in self._tables():
            terminalreporter.section(text.partition("\n")[0])
            terminalreporter.write_line(text.partition("\n")[2])
        verdicts = self._ordered()
        if not verdicts:
            return
        terminalreporter.section("sluice gates")
        for line in table(verdicts):
            terminalreporter.write_line(line)
        terminalreporter.write_line(counts(verdicts))
        if self._cannot_open:
            terminalreporter.write_line(f"ERROR: the model cannot be opened: {self._cannot_open}")
        elif nothing_applies(verdicts):
            terminalreporter.write_line(f"{NOTHING_APPLIES}, so nothing is shown: a failure")

    def _ordered(self) -> tuple[Verdict, ...]:
        return tuple(self._verdicts[index] for index in sorted(self._verdicts))

    def _tables(self) -> tuple[str, ...]:
        return tuple(text for _, text in sorted(self._summaries, key=lambda pair: pair[0]))

    def _exit_of(self, pytest_exit: int) -> int:
        """What verdicts amount to; pytest's own (interrupted, another test failed) beside it."""
        if self._cannot_open is not None:
            return SystemFault.exit_code
        if pytest_exit not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return pytest_exit
        return exit_of(self._ordered()) or pytest_exit
