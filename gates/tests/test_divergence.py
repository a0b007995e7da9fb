"""The divergence gates fail on another divergence, on none, and never record an MTP output."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.config import Config
from sluice.errors import GateFailure
from sluice.telemetry.evidence import Evidence
from sluice_gates.bench import Bench
from sluice_gates.goldens import SECTIONS, load
from sluice_gates.test_divergence import test_comparison_table as comparison_table
from sluice_gates.test_divergence import test_mtp_divergence as mtp_divergence
from sluice_gates.test_divergence import test_ubatch_1_divergence as ubatch_1_divergence

BenchMaker = Callable[..., Bench]
Make = Callable[..., Evidence]
Gate = Callable[[Bench], None]


@pytest.fixture
def make(make_bench: BenchMaker, make_evidence: Make, make_speculated: Make) -> BenchMaker:
    """Benches whose runs are plain, of another text at ubatch 1, of another yet under MTP."""

    def made(narrow: list[int], wide: list[int], draft_1: list[int] | None = None) -> Bench:
        def run(config: Config) -> Evidence:
            if config.mtp:
                return make_speculated(draft_1 if draft_1 and config.draft == 1 else wide)
            return make_evidence(narrow if config.ubatch == 1 else [5, 6, 7])

        return make_bench(run)

    return made


def record(bench: Bench) -> None:
    """Record every section, the divergence ones from the bench's own runs."""

    def write(data: dict[str, Any], path: Path) -> None:
        path.write_text(yaml.safe_dump(data), encoding="utf-8", newline="\n")

    goldens = dataclasses.replace(bench.goldens, recording=True, check=write)
    goldens.compare(SECTIONS[0], {})
    recorder = dataclasses.replace(bench, goldens=goldens, notes=[])
    for gate in (ubatch_1_divergence, mtp_divergence):
        with contextlib.suppress(pytest.skip.Exception):  # nothing diverges: recorded, too
            gate(recorder)


@pytest.mark.parametrize("gate", [ubatch_1_divergence, mtp_divergence])
def test_without_a_golden_a_divergence_is_not_recorded(gate: Gate, make: BenchMaker) -> None:
    with pytest.raises(pytest.skip.Exception, match="no golden"):
        gate(make([5, 8, 7], [5, 6, 9]))


def test_the_recorded_divergence_passes(make: BenchMaker) -> None:
    bench = make([5, 8, 7], [5, 6, 9])
    record(bench)
    ubatch_1_divergence(bench)
    mtp_divergence(bench)
    assert bench.notes == [
        "1/1 prompts diverge: one char 1 of 3/3, token 6/8, margin 0.5",
        "1/1 prompts diverge: one char 2 of 3/3, token 7/9, margin 0.5",
    ]


def test_no_hash_and_no_text_of_a_speculated_run_is_recorded(make: BenchMaker) -> None:
    bench = make([5, 8, 7], [5, 6, 9])
    record(bench)
    sections = load(bench.goldens.path)["sections"]
    assert set(sections["mtp-divergence"]["one"]) == {
        "diverges", "step", "character", "tokens", "margin"
    }  # fmt: skip
    assert "text_sha256" in sections["ubatch-1-divergence"]["one"]


def test_another_divergence_fails(make: BenchMaker) -> None:
    record(make([5, 8, 7], [5, 6, 9]))
    with pytest.raises(GateFailure, match=r"ubatch-1-divergence: one\.character 1 / 2"):
        ubatch_1_divergence(make([5, 6, 9], [5, 6, 9]))
    with pytest.raises(GateFailure, match=r"mtp-divergence: one\.tokens \[7, 9\] / \[7, 10\]"):
        mtp_divergence(make([5, 8, 7], [5, 6, 10]))


@pytest.mark.parametrize("gate", [ubatch_1_divergence, mtp_divergence])
def test_a_recorded_divergence_that_is_gone_fails(gate: Gate, make: BenchMaker) -> None:
    record(make([5, 8, 7], [5, 6, 9]))
    with pytest.raises(GateFailure, match=r"one\.character is only recorded"):
        gate(make([5, 6, 7], [5, 6, 7]))


@pytest.mark.parametrize("gate", [ubatch_1_divergence, mtp_divergence])
def test_a_recorded_absence_is_not_applicable(gate: Gate, make: BenchMaker) -> None:
    """So that the golden of such a model is whole, and a divergence that comes up fails."""
    never = make([5, 6, 7], [5, 6, 7])
    record(never)
    with pytest.raises(pytest.skip.Exception, match="none of 1 prompts"):
        gate(never)


@pytest.mark.parametrize("gate", [ubatch_1_divergence, mtp_divergence])
def test_a_model_that_never_diverges_is_not_judged(gate: Gate, make: BenchMaker) -> None:
    with pytest.raises(pytest.skip.Exception, match="none of 1 prompts diverges"):
        gate(make([5, 6, 7], [5, 6, 7]))


def test_drafts_that_differ_from_each_other_fail(make: BenchMaker) -> None:
    with pytest.raises(GateFailure, match="one, draft 1 and draft 3: step 2: token 11 / 9"):
        mtp_divergence(make([5, 8, 7], [5, 6, 9], [5, 6, 11]))


def test_the_table_has_five_rows(make: BenchMaker) -> None:
    bench = make([5, 8, 7, 7], [5, 6, 9])
    comparison_table(bench)
    assert bench.table == [
        ("plain vs plain (control)", "identical, 3/3 chars"),
        ("plain vs plain at --ubatch 1, no MTP at all",
         "diverges at char 1, token 6 → 8, 3/4 chars"),
        ("plain vs --mtp --draft 1", "diverges at char 2, token 7 → 9, 3/3 chars"),
        ("plain vs --mtp --draft 3", "diverges at char 2, token 7 → 9, 3/3 chars"),
        ("--draft 1 vs --draft 3", "identical, 3/3 chars"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("narrow", "wide", "draft_1"),
    [
        ([5, 6, 7], [5, 6, 9], None),  # batch width would not be what moves the text
        ([5, 8, 7], [5, 6, 7], None),  # speculation inherits nothing
        ([5, 8, 7], [5, 6, 9], [5, 6, 11]),  # the rollback moves it
    ],
)
def test_a_table_that_shows_something_else_fails(
    narrow: list[int], wide: list[int], draft_1: list[int] | None, make: BenchMaker
) -> None:
    with pytest.raises(GateFailure, match="one: plain vs plain"):
        comparison_table(make(narrow, wide, draft_1))


def test_a_table_without_any_divergence_is_not_recorded(make: BenchMaker) -> None:
    with pytest.raises(pytest.skip.Exception, match="does not diverge on this build"):
        comparison_table(make([5, 6, 7], [5, 6, 7]))
