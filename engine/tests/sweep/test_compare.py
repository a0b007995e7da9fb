from __future__ import annotations

import dataclasses
from typing import Any

from sluice.sweep.compare import Comparison, Pair, compare, compared_screen
from sluice.sweep.row import Identity, Row
from sluice.sweep.rows import Recorded

from .making import IDENTITY, row

OTHER = dataclasses.replace(IDENTITY, build="0.3.37 AVX512", threads=4)


def swept(identity: Identity, rates: dict[str, float], **changes: Any) -> Recorded:
    """Two prompts, two repeats that lie 2 percent apart."""
    rows = [
        row(arm, prompt, repeat, rate=rate * (1 + 0.02 * repeat), identity=identity.key,
            step_tokens=2.0 if arm != "off" else 1.0, **changes)
        for arm, rate in rates.items()
        for prompt in ("a", "b")
        for repeat in (0, 1)
    ]  # fmt: skip
    return Recorded(identity, tuple(rows))


def pairs(comparison: Comparison) -> dict[str, Pair]:
    return {pair.arm: pair for pair in comparison.pairs}


def test_rates_side_by_side_and_differences_inside_the_noise_are_none() -> None:
    a = swept(IDENTITY, {"off": 10.0, "n_max=2": 15.0, "n_max=4": 12.0})
    b = swept(OTHER, {"off": 10.1, "n_max=2": 18.0, "n_max=4": 9.0})
    found = compare(a, b)
    by_arm = pairs(found)
    assert {arm: pair.verdict for arm, pair in by_arm.items()} == {
        "off": "within noise", "n_max=2": "faster", "n_max=4": "slower",
    }  # fmt: skip
    assert by_arm["n_max=2"].ratio == 18.0 / 15.0
    assert by_arm["n_max=2"].acceptance_a == 0.5
    assert by_arm["off"].acceptance_a is None
    assert by_arm["off"].same_text is True
    assert found.fastest == (("code", ("n_max=2",), ("n_max=2",)),)
    assert found.differences == (
        "build: 0.3.36 AVX2 in A, 0.3.37 AVX512 in B", "threads: 2 in A, 4 in B",
    )  # fmt: skip
    text = compared_screen(found, "old", "new")
    assert text.startswith("A  old\nB  new\n")
    assert "fastest in A: n_max=2; in B: n_max=2." in text


def test_only_what_both_measured_alike_is_compared() -> None:
    a = swept(IDENTITY, {"off": 10.0, "n_max=2": 15.0})
    b = swept(OTHER, {"off": 10.0, "n_max=3": 15.0})
    extra = row("off", "c", rate=99.0, identity=OTHER.key)
    prose = row("off", workload="prose", identity=OTHER.key)
    found = compare(a, Recorded(OTHER, (*b.rows, extra, prose)))
    assert [pair.arm for pair in found.pairs] == ["off"]
    assert pairs(found)["off"].ratio == 1.0, "over the prompts of both"
    assert found.unpaired == (
        "prose: in B only", "code, n_max=2: in A only", "code, n_max=3: in B only",
    )  # fmt: skip


def test_a_workload_of_other_prompts_is_another_one() -> None:
    a, b = swept(IDENTITY, {"off": 10.0}), swept(OTHER, {"off": 20.0}, workload_key="other")
    found = compare(a, b)
    assert found.pairs == ()
    assert found.unpaired == ("code: of other prompts or sampling in A and B, not compared",)


def test_without_repeats_nothing_is_faster() -> None:
    def once(identity: Identity, rate: float) -> Recorded:
        rows: tuple[Row, ...] = (row("off", rate=rate, identity=identity.key),)
        return Recorded(identity, rows)

    (pair,) = compare(once(IDENTITY, 1.0), once(OTHER, 50.0)).pairs
    assert (pair.verdict, pair.floor) == ("no noise floor", None)
    assert "–" in compared_screen(compare(once(IDENTITY, 1.0), once(OTHER, 50.0)), "a", "b")


def test_other_texts_and_failed_rows_are_named() -> None:
    a = swept(IDENTITY, {"off": 10.0})
    b = swept(OTHER, {"off": 10.0}, text_sha256="other")
    failed = row("n_max=2", outcome="failed", error="x", identity=OTHER.key)
    found = compare(a, Recorded(OTHER, (*b.rows, failed)))
    assert [(pair.arm, pair.same_text) for pair in found.pairs] == [("off", False)]
    assert compare(a, a).differences == ()
    assert "nothing but the time" in compared_screen(compare(a, a), "a", "a")
