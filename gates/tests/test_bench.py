"""What a gate gets: runs that are shared, and evidence that must be there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluice.errors import GateFailure
from sluice.targets import Run
from sluice.telemetry.evidence import Evidence
from sluice.telemetry.metrics import Metrics
from sluice_gates.bench import Bench, accepted_and_rejected, measured, streamed_mib
from sluice_gates.drafters import Oracle

BenchMaker = Callable[..., Bench]
Make = Callable[..., Evidence]


def runs_of(bench: Bench) -> int:
    """How often the target really ran."""
    return len(bench.target.configs)  # type: ignore[attr-defined]


def test_equal_runs_are_run_once(make_bench: BenchMaker) -> None:
    bench = make_bench()
    prompt = bench.general[0]
    assert bench.run(prompt) is bench.run(prompt)
    assert runs_of(bench) == 1


def test_a_fresh_run_is_really_run(make_bench: BenchMaker) -> None:
    bench = make_bench()
    prompt = bench.general[0]
    first = bench.run(prompt)
    assert bench.run(prompt, fresh=True) is not first
    assert bench.run(prompt) is first
    assert runs_of(bench) == 2


def test_what_differs_is_another_run(make_bench: BenchMaker) -> None:
    bench = make_bench()
    prompt = bench.general[0]
    bench.run(prompt)
    bench.run(prompt, mtp=True)
    bench.run(prompt, mtp=True, draft=1)
    bench.run(prompt, mtp=True, drafter=Oracle((1, 2)))
    bench.run(prompt, mtp=True, drafter=Oracle((1, 3)))
    bench.run(prompt, overrides={"n": 2})
    bench.run_ids("ids", [1, 2])
    assert runs_of(bench) == 7


def test_a_difference_is_a_failure_in_words(make_bench: BenchMaker, make_evidence: Make) -> None:
    bench = make_bench()
    left, right = (Run(make_evidence(ids), Metrics()) for ids in ([5, 6], [5, 7]))
    with pytest.raises(GateFailure, match=r"this and that: step 1: token 6 / 7, logits"):
        bench.equal(left, right, "this and that")


def test_every_run_is_recorded_under_a_telling_name(make_bench: BenchMaker) -> None:
    seen: list[str] = []
    bench = make_bench(recorder=lambda name, _evidence: seen.append(name))
    prompt = bench.general[0]
    bench.run(prompt)
    bench.run(prompt, mtp=True, draft=1, moe_stream=True)
    bench.run(prompt, fresh=True)
    assert seen == [
        "Q8_0-one-plain-n=96-t=1",
        "Q8_0-one-moe_stream-mtp-draft=1-n=96-t=1",
        "Q8_0-one-plain-n=96-t=1-again",
    ]


def test_sessions_are_recorded_by_their_generations(make_bench: BenchMaker) -> None:
    seen: list[str] = []
    bench = make_bench(recorder=lambda name, _evidence: seen.append(name))
    prompt = bench.general[0]
    runs = bench.run_all(prompt, [{}, {"cache_mb": 2}], moe_stream=True, cache_mb=3)
    runs += bench.run_together(prompt, {"n": 5}, {"n": 5, "moe_stream": True})
    assert len(runs) == runs_of(bench) == 4
    assert seen == [
        "Q8_0-one-moe_stream-cache_mb=3-n=96-t=1-generation-1",
        "Q8_0-one-moe_stream-cache_mb=3-cache_mb=2-n=96-t=1-generation-2",
        "Q8_0-one-plain-n=5-t=1-session-1-of-2",
        "Q8_0-one-moe_stream-n=5-t=1-session-2-of-2",
    ]


def test_no_evidence_is_a_failure(make_evidence: Make, make_speculated: Make) -> None:
    empty = Run(make_evidence([]), Metrics())
    with pytest.raises(GateFailure, match="no evidence: nothing was generated"):
        measured([empty])
    with pytest.raises(GateFailure, match="no evidence: nothing streamed"):
        streamed_mib([empty])
    for groups, words in [
        ((), "no evidence: nothing drafted at draft 2"),
        (((1, (8, 8), 0),), "no evidence: no draft accepted at draft 2"),
        (((1, (6, 7), 2),), "no evidence: no draft rejected at draft 2"),
    ]:
        run = Run(make_speculated([5, 6, 7], *groups), Metrics())
        with pytest.raises(GateFailure, match=words):
            accepted_and_rejected([run], 2)


def test_evidence_is_counted(make_evidence: Make, make_speculated: Make) -> None:
    plain = Run(make_evidence(), Metrics())
    assert measured([plain, plain]).startswith("2 runs, 6 steps, logits ")
    run = Run(make_speculated([5, 6, 7], (1, (6, 9), 1)), Metrics())
    assert accepted_and_rejected([run], 2) == "draft 2: 1/2 accepted"
