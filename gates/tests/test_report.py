"""Verdicts, their table, and the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice_gates.report import Report, Verdict, Word, counts, table


def verdict(word: Word = "PASS", gate: str = "g") -> Verdict:
    return Verdict(gate, "Q8_0", "logits", word, "3 runs; 2 of 4", ("a", "b"), 0.25)


def test_a_verdict_travels_in_properties() -> None:
    made = verdict()
    properties = dict(made.properties())
    assert properties["sluice.kills"] == "a b"
    assert Verdict.from_properties(properties) == made
    assert Verdict.from_properties({"other": 1}) is None


@pytest.mark.parametrize(
    ("words", "pytest_exit", "code"),
    [
        (["PASS"], 0, 0),
        (["PASS", "NOT APPLICABLE", "NOT RECORDED"], 0, 0),
        (["PASS", "FAIL"], 1, 1),
        (["PASS", "ERROR"], 0, 1),
        (["NOT APPLICABLE"], 0, 1),
        (["NOT APPLICABLE", "NOT RECORDED"], 0, 0),
        (["PASS"], 2, 2),
    ],
)
def test_exit_code(words: list[Word], pytest_exit: int, code: int) -> None:
    assert Report([verdict(w) for w in words], {}).exit_code(pytest_exit) == code


def test_a_model_that_cannot_be_opened_is_3() -> None:
    assert Report([verdict("ERROR")], {}, "no such file").exit_code(1) == 3


def test_the_report_file(tmp_path: Path) -> None:
    prints = {
        "Q8_0": {"llama_cpp_python": "1", "model_sha256": "aa"},
        "F16": {"llama_cpp_python": "1", "model_sha256": "bb"},
    }
    path = tmp_path / "report.json"
    Report([verdict()], prints).write(path, 1)
    raw = json.loads(path.read_text())
    assert raw["schema"] == "sluice-gates/1"
    assert raw["exit"] == 1
    assert raw["fingerprint"] == {
        "llama_cpp_python": "1", "models": {"Q8_0": "aa", "F16": "bb"}
    }  # fmt: skip
    assert raw["verdicts"] == [
        {"gate": "g", "model": "Q8_0", "level": "logits", "verdict": "PASS",
         "evidence": "3 runs; 2 of 4", "kills": ["a", "b"], "seconds": 0.25}
    ]  # fmt: skip


def test_the_table_is_aligned() -> None:
    lines = table([verdict(), verdict("NOT RECORDED", "longer-name")])
    assert len({line.index(cell) for line, cell in zip(lines, ("evidence", "3 ", "3 "),
                                                       strict=True)}) == 1  # fmt: skip
    assert counts([verdict(), verdict(), verdict("FAIL")]) == "2 PASS, 1 FAIL"
