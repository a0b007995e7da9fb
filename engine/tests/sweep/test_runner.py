from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from sluice.errors import ReadFault, RequestError, SluiceError, SystemFault
from sluice.sweep.arm import Arm, parse
from sluice.sweep.row import Key, Row
from sluice.sweep.rows import RowFile
from sluice.sweep.runner import OpenArm, Runner
from sluice.sweep.schedule import Request, schedule
from sluice.sweep.workload import Prompt, Workload

from .making import IDENTITY

CODE = Workload("code", (Prompt("a", "x"), Prompt("b", "y"), Prompt("c", "z")), n=8)


class Recorder:
    """A target that notes what is done to it, and fails where it is told to."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.ask_errors: dict[tuple[str, str], list[SluiceError]] = {}
        self.open_errors: dict[str, list[SluiceError]] = {}
        self.rules: dict[tuple[str, str], str] = {}
        self.told: list[tuple[Key, int, int]] = []

    def refusal(self, request: Request) -> str:
        return self.rules.get((request.arm.name, request.prompt.name), "")

    def open(self, arm: Arm, first: Request) -> OpenArm:
        self.log.append(f"open {arm.name}")
        if self.open_errors.get(arm.name):
            raise self.open_errors[arm.name].pop(0)
        return self

    def ask(self, request: Request, blank: Row) -> Row:
        self.log.append(request.prompt.name)
        errors = self.ask_errors.get((request.arm.name, request.prompt.name))
        if errors:
            raise errors.pop(0)
        return dataclasses.replace(blank, n_decoded=7, effective_s=1.0)

    def close(self) -> None:
        self.log.append("close")

    def begins(self, request: Request, n_done: int, n_total: int, left_s: float | None) -> None:
        self.told.append((request.key, n_done, n_total))

    def wrote(self, n_done: int, n_total: int) -> None:
        pass


@pytest.fixture
def target() -> Recorder:
    return Recorder()


def run(target: Recorder, folder: Path, *arms: str, repeats: int = 1) -> dict[Key, Row]:
    target.log.clear()
    with RowFile(folder, IDENTITY, [CODE]) as rows:
        Runner(target, rows, target).run(schedule([parse(arm) for arm in arms], [CODE], repeats))
        return {row.key: row for row in rows.rows}


def outcomes(rows: dict[Key, Row]) -> list[tuple[str, str]]:
    return [(row.outcome, row.error) for row in rows.values()]


def test_an_arm_is_opened_once_a_visit_and_what_is_done_is_not_made_again(
    target: Recorder, tmp_path: Path
) -> None:
    rows = run(target, tmp_path, "off", repeats=2)
    assert target.log == ["open off", "a", "b", "c", "close"] * 2
    assert len(rows) == 6
    assert [n for _, n, _ in target.told] == [0, 1, 2, 3, 4, 5]
    assert run(target, tmp_path, "off", repeats=2) == rows
    assert target.log == [], "nothing is opened for nothing"


def test_a_fault_costs_its_row_the_arm_is_opened_anew_and_the_next_sweep_makes_it_again(
    target: Recorder, tmp_path: Path
) -> None:
    target.ask_errors["off", "b"] = [ReadFault("slice 3: cut\nshort")]
    rows = run(target, tmp_path, "off")
    assert target.log == ["open off", "a", "b", "close", "open off", "c", "close"]
    assert outcomes(rows) == [("ok", ""), ("failed", "slice 3: cut short"), ("ok", "")]
    rows = run(target, tmp_path, "off")
    assert target.log == ["open off", "b", "close"]
    assert [row.outcome for row in rows.values()] == ["ok"] * 3


def test_a_reason_holds_nothing_that_a_terminal_obeys(target: Recorder, tmp_path: Path) -> None:
    target.ask_errors["off", "a"] = [SystemFault("its last words: \x1b[31mno\x07 memory")]
    rows = run(target, tmp_path, "off")
    assert outcomes(rows)[0] == ("failed", "its last words: \ufffd[31mno\ufffd memory")


def test_what_is_refused_is_shown_and_never_asked(target: Recorder, tmp_path: Path) -> None:
    target.rules["off", "a"] = "by rule"
    target.ask_errors["off", "b"] = [RequestError("-c 16: does not fit")]
    rows = run(target, tmp_path, "off")
    assert target.log == ["open off", "b", "c", "close"], "a refusal leaves the arm as it was"
    assert outcomes(rows) == [("refused", "by rule"), ("refused", "-c 16: does not fit"),
                              ("ok", "")]  # fmt: skip
    run(target, tmp_path, "off")
    assert target.log == []


def test_an_arm_that_does_not_open_costs_that_visit_and_is_tried_in_the_next(
    target: Recorder, tmp_path: Path
) -> None:
    target.open_errors["n_max=2"] = [SystemFault("llama-server: no memory")]
    target.rules["n_max=2", "c"] = "by rule"
    rows = run(target, tmp_path, "off", "n_max=2", repeats=2)
    of_arm = [rows["n_max=2", "code", p, r, None].outcome for r in (0, 1) for p in "abc"]
    assert of_arm == ["failed", "failed", "refused", "ok", "ok", "refused"]
    assert target.log.count("open n_max=2") == 2
    assert all(row.ok for key, row in rows.items() if key.arm == "off")


def test_cold_is_the_first_after_opening_and_warm_the_same_again(
    target: Recorder, tmp_path: Path
) -> None:
    rows = run(target, tmp_path, "off,moe_stream")
    one = ["open off,moe_stream", "{0}", "{0}", "close"]
    assert target.log == [word.format(p) for p in "abc" for word in one]
    assert [row.is_cold for row in rows.values()] == [True, False] * 3


def test_a_warm_request_alone_is_warmed_by_one_that_is_not_counted(
    target: Recorder, tmp_path: Path
) -> None:
    target.ask_errors["off,moe_stream", "a"] = [SystemFault("gone")]  # the cold one
    rows = run(target, tmp_path, "off,moe_stream")
    assert target.log[:6] == ["open off,moe_stream", "a", "close", "open off,moe_stream", "a", "a"]
    assert rows["off,moe_stream", "code", "a", 0, True].outcome == "failed"
    assert rows["off,moe_stream", "code", "a", 0, False].ok
    assert len(rows) == 6


def test_the_open_arm_is_closed_when_the_disk_is_full(
    target: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: RowFile, row: Row) -> None:
        raise SystemFault("rows.jsonl: cannot be written: disk full")

    monkeypatch.setattr(RowFile, "append", full)
    with pytest.raises(SystemFault, match="disk full"):
        run(target, tmp_path, "off")
    assert target.log[-1] == "close"
