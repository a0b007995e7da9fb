"""What the command says of a report of the gates. Pure."""

from __future__ import annotations

from sluice.errors import GateFailure
from sluice.telemetry.verdicts import (
    ERROR,
    FAIL,
    NOT_RECORDED,
    NOTHING_APPLIES,
    PASS,
    Report,
    counted,
    nothing_applies,
)


def closing(report: Report, exit_code: int, wall_s: float) -> str:
    """The last line of the command: one word, the counts, and the wall time in seconds."""
    listed = ", ".join(f"{n} {word.lower()}" for word, n in counted(report.verdicts))
    why = f": {NOTHING_APPLIES}" if nothing_applies(report.verdicts) else ""
    return f"sluice gate: {_word(report, exit_code)}{why} ({listed}; {wall_s:.1f} s)"


def _word(report: Report, exit_code: int) -> str:
    if exit_code == GateFailure.exit_code:
        return FAIL
    if exit_code:
        return ERROR
    return PASS if any(v.verdict == PASS for v in report.verdicts) else NOT_RECORDED
