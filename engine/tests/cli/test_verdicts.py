from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.cli.verdicts import Report
from sluice.errors import SystemFault

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
        ([A, A], 3, 3),
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
    assert report(P, P, N).closing(0, 2.04) == ("sluice gate: PASS (2 pass, 1 not recorded; 2.0 s)")
    assert report(P, F).closing(1, 2).startswith("sluice gate: FAIL (1 pass, 1 fail; ")
    assert report(E).closing(3, 2).startswith("sluice gate: ERROR (1 error; ")
    assert report(N).closing(0, 2).startswith("sluice gate: NOT RECORDED (1 not recorded; ")
    assert report("MAYBE").closing(1, 2).startswith("sluice gate: FAIL (1 maybe; ")
