from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from sluice.cli.table import print_table
from sluice.telemetry.verdicts import Report

from .conftest import verdict


def test_a_row_a_verdict_and_nothing_of_the_evidence_is_lost() -> None:
    long = "equal on 128 of 128 steps, [markup] kept\nas it is " + "x" * 200
    rows = [verdict("plain-twice", "PASS", "short"), verdict("streamed", "FAIL", long)]
    report = Report.parse(json.dumps({"schema": "sluice-gates/1", "verdicts": rows}))
    out = io.StringIO()
    print_table(report, Console(file=out, width=120))
    lines = out.getvalue().strip().splitlines()
    assert lines[0].split() == ["gate", "model", "level", "verdict", "evidence"]
    assert any("plain-twice" in x and "PASS" in x and x.rstrip().endswith("short") for x in lines)
    assert any("streamed" in x and "FAIL" in x for x in lines)
    assert "[markup] kept as it is" in out.getvalue()
    assert out.getvalue().count("x" * 10) >= 2
    assert max(map(len, lines)) <= 120


def test_a_log_gets_a_wide_table(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [verdict("a-gate", "PASS", "w" * 80)]
    print_table(Report.parse(json.dumps({"schema": "sluice-gates/1", "verdicts": rows})))
    assert "w" * 80 in capsys.readouterr().out
