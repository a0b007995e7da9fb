from __future__ import annotations

from sluice.sweep.figures import figures
from sluice.sweep.ranking import rankings
from sluice.sweep.row import Row
from sluice.sweep.table import Table, tables
from sluice.sweep.texts import texts

from .making import row


def drawn(rows: list[Row]) -> dict[str, Table]:
    found = figures(rows)
    return {table.title: table for table in tables(found, rankings(rows), texts(found))}


def cell(table: Table, arm: str, heading: str) -> str:
    (line,) = [line for line in table.rows if line[0] == arm]
    return line[[column.heading for column in table.columns].index(heading)]


def test_an_arm_a_line() -> None:
    rows = [row(p, arm_prompt, r, rate=rate + r / 100, step_tokens=t)
            for p, rate, t in (("off", 42, 1), ("n_max=2", 62, 2.2))
            for arm_prompt in "ab" for r in range(2)]  # fmt: skip
    found = drawn(rows)["code"]
    assert all(len(line) == len(found.columns) for line in found.rows)
    assert cell(found, "n_max=2", "tok/s") == "62.0"
    assert cell(found, "n_max=2", "rank") == "1"
    assert cell(found, "n_max=2", "tok/step") == "2.20"
    assert cell(found, "n_max=2", "step ms") == "35.5"
    assert cell(found, "n_max=2", "slot ms") == "5.8"
    assert cell(found, "n_max=2", "of token") == "25%"
    assert cell(found, "n_max=2", "text") == "A A"
    assert cell(found, "off", "slot ms") == "–"
    assert "noise of one request" in found.notes[0]
    found = drawn(rows)["code: drafts"]
    assert cell(found, "n_max=2", "by token") == "0.60"
    assert cell(found, "n_max=2", "mean len") == "2.20"
    assert cell(found, "off", "drafted") == "–"


def test_columns_that_say_nothing_are_left_out() -> None:
    headings = [column.heading for column in drawn([row(text_sha256="")])["code"].columns]
    assert headings == ["arm", "tok/s", "tok/step", "step ms", "requests"]
    assert list(drawn([row()])) == ["code"]


def test_streamed_arms_show_what_they_read_cold_and_warm() -> None:
    rows = [row("off,moe_stream", repeat=r, is_cold=r == 0, read_bytes=(2 - r) * 100 << 20)
            for r in range(2)]  # fmt: skip
    found = drawn(rows)["code: drafts"]
    assert cell(found, "off,moe_stream (cold)", "MiB/token") == "2.0"
    assert cell(found, "off,moe_stream (warm)", "MiB/token") == "1.0"


def test_what_was_not_measured_is_counted_and_explained() -> None:
    rows = [row(), row(prompt="b", outcome="failed", error="died"),
            row("n_max=2", outcome="refused", error="a rule"),
            row("n_max=3", outcome="refused", error="a rule")]  # fmt: skip
    found = drawn(rows)["code"]
    assert cell(found, "off", "requests") == "1/2"
    assert cell(found, "n_max=2", "requests") == "0/1"
    assert cell(found, "n_max=2", "tok/s") == "–"
    assert found.notes == (
        "nothing was repeated: no noise floor, and no rank",
        "1 failed (off): died",
        "2 refused (n_max=2 and n_max=3): a rule",
    )
    assert list(drawn(rows)) == ["code"]


def test_acceptance_by_place_has_a_table_of_its_own() -> None:
    rows = [row(), row("n_max=1", step_tokens=1.9, offered_at=(100,), accepted_at=(90,)),
            row("n_max=2", step_tokens=2, offered_at=(100, 100), accepted_at=(75, 25))]  # fmt: skip
    found = drawn(rows)["code: acceptance by place in the draft"]
    assert found.rows == (("n_max=1", "0.90", ""), ("n_max=2", "0.75", "0.25"))
