from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sluice.cli.verdicts import closing
from sluice.errors import SystemFault
from sluice.telemetry.verdicts import ORDER, Report, Verdict

from .conftest import verdict


def report(*words: str, exit_code: int = 0) -> Report:
    rows = [verdict(f"gate-{i}", word) for i, word in enumerate(words)]
    return Report.parse(document(verdicts=rows, exit=exit_code))


def document(**changes: Any) -> str:
    whole = {"schema": "sluice-gates/1", "fingerprint": {"numerics": "default"}, "exit": 0}
    return json.dumps(whole | {"verdicts": []} | changes)


def test_parse() -> None:
    read = report("PASS")
    (v,) = read.verdicts
    assert (v.gate, v.model, v.level, v.verdict) == ("gate-0", "tiny Q8_0", "logits", "PASS")
    assert (v.kills, v.seconds) == (("stale slice",), 0.5)
    assert read.fingerprint == {"numerics": "default"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        document(schema="sluice-gates/9"),
        document(verdicts=[{"gate": "g"}]),
        document(verdicts=3),
        document(exit="x"),
    ],
)
def test_foreign_reports(text: str) -> None:
    with pytest.raises(SystemFault):
        Report.parse(text)


P, F, N, A, E = "PASS", "FAIL", "NOT RECORDED", "NOT APPLICABLE", "ERROR"


@pytest.mark.parametrize(
    ("words", "loose", "strict"),
    [
        ([P, P], 0, 0),
        ([P, F], 1, 1),
        ([P, N], 0, 1),
        ([P, A], 0, 0),
        ([P, E], 3, 3),
        ([F, E], 1, 1),
        ([E, N], 3, 1),
        ([A, A], 1, 1),
        ([A, E], 3, 3),
        ([N, N], 0, 1),
        ([P, "MAYBE"], 1, 1),
    ],
)
def test_exit_codes(words: list[str], loose: int, strict: int) -> None:
    assert report(*words).exit_of(strict=False) == loose
    assert report(*words).exit_of(strict=True) == strict


def test_the_plugin_may_know_worse() -> None:
    assert report(P, exit_code=1).exit_of(strict=False) == 1
    assert report(F, E, exit_code=3).exit_of(strict=False) == 3


def test_closing_lines() -> None:
    def said(exit_code: int, *words: str) -> str:
        return closing(report(*words), exit_code, 2.04)

    assert said(0, P, P, N) == "sluice gate: PASS (2 pass, 1 not recorded; 2.0 s)"
    assert said(1, P, F).startswith("sluice gate: FAIL (1 pass, 1 fail; ")
    assert said(3, E).startswith("sluice gate: ERROR (1 error; ")
    assert said(0, N).startswith("sluice gate: NOT RECORDED (1 not recorded; ")
    assert said(1, "MAYBE").startswith("sluice gate: FAIL (1 maybe; ")
    assert said(1, A, A).startswith(
        "sluice gate: FAIL: no gate applies to this model (2 not applicable; "
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    verdicts = tuple(
        Verdict(f"g{i}", "m é", "ids", word, "3 / 4", ("a", "b"), 0.25, "two\nlines" * (word == F))
        for i, word in enumerate(ORDER)
    )
    made = Report(verdicts, {"models": {"m": "00"}}, 1, ("title\nrow",))
    file = tmp_path / "report.json"
    made.write(file)
    assert Report.parse(file.read_text()) == made
    raw = json.loads(file.read_text())
    assert (raw["schema"], raw["exit"], raw["tables"]) == ("sluice-gates/1", 1, ["title\nrow"])
    assert ["triage" in v for v in raw["verdicts"]] == [word == F for word in ORDER]
