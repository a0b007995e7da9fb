"""Verdicts as properties of tests, their table, and the exit code of a run."""

from __future__ import annotations

import pytest

from sluice.telemetry.verdicts import Verdict, Word
from sluice_gates.collector import Collector
from sluice_gates.report import counts, properties_of, shared_fingerprint, table, verdict_of


def verdict(word: Word = "PASS", gate: str = "g", triage: str = "") -> Verdict:
    return Verdict(gate, "Q8_0", "logits", word, "3 runs; 2 of 4", ("a", "b"), 0.25, triage)


@pytest.mark.parametrize("triage", ["", "two\nlines"])
def test_a_verdict_travels_in_properties(triage: str) -> None:
    made = verdict(triage=triage)
    properties = dict(properties_of(made))
    assert properties["sluice.kills"] == "a b"
    assert ("sluice.triage" in properties) == bool(triage)
    assert verdict_of(properties) == made
    assert verdict_of({"other": 1}) is None


@pytest.mark.parametrize(
    ("words", "pytest_exit", "code"),
    [
        (["PASS"], 0, 0),
        (["PASS", "NOT APPLICABLE", "NOT RECORDED"], 0, 0),
        (["PASS", "FAIL"], 1, 1),
        (["FAIL", "ERROR"], 1, 1),
        (["PASS", "ERROR"], 1, 3),
        (["NOT APPLICABLE"], 0, 1),
        (["NOT APPLICABLE", "NOT RECORDED"], 0, 0),
        (["PASS"], 1, 1),
        (["PASS"], 2, 2),
        (["FAIL"], 2, 2),
    ],
)
def test_exit_code(words: list[Word], pytest_exit: int, code: int) -> None:
    assert collected(*words).report(pytest_exit).exit_code == code


def test_a_model_that_cannot_be_opened_is_3() -> None:
    collector = collected("FAIL", "ERROR", cannot_open="no such file")
    assert collector.report(1).exit_code == 3


def collected(*words: Word, **last: str) -> Collector:
    """What a collector has seen after tests that came to these verdicts, the last one first."""
    collector = Collector(None)
    for index, word in reversed(list(enumerate(words))):
        properties: list[tuple[str, object]] = [*properties_of(verdict(word, f"g{index}"))]
        properties.append(("sluice.order", str(index)))
        if index == len(words) - 1:
            properties += [(f"sluice.{name}", value) for name, value in last.items()]
        collector.pytest_runtest_logreport(
            pytest.TestReport(
                "t", ("t", 0, "t"), {}, "passed", None, "teardown", user_properties=properties
            )
        )
    return collector


def test_verdicts_are_in_the_order_of_the_tests() -> None:
    report = collected("PASS", "FAIL", "PASS").report(1)
    assert [v.gate for v in report.verdicts] == ["g0", "g1", "g2"]


def test_the_fingerprint_of_many_models() -> None:
    prints = {
        "Q8_0": {"llama_cpp_python": "1", "model_sha256": "aa"},
        "F16": {"llama_cpp_python": "1", "model_sha256": "bb"},
    }
    assert shared_fingerprint(prints) == {
        "llama_cpp_python": "1", "models": {"Q8_0": "aa", "F16": "bb"}
    }  # fmt: skip


def test_the_table_is_aligned() -> None:
    lines = table([verdict(), verdict("NOT RECORDED", "longer-name")])
    assert len({line.index(cell) for line, cell in zip(lines, ("evidence", "3 ", "3 "),
                                                       strict=True)}) == 1  # fmt: skip
    assert counts([verdict(), verdict(), verdict("FAIL")]) == "2 PASS, 1 FAIL"
