"""The identity gates fail when runs differ, and when there is nothing to compare."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluice.config import Config
from sluice.errors import GateFailure, RequestError
from sluice.targets import Run
from sluice.telemetry.evidence import Evidence
from sluice.telemetry.metrics import Metrics, ReadCounter
from sluice_gates.bench import Bench
from sluice_gates.test_identity import test_plain_twice as plain_twice
from sluice_gates.test_identity import test_resident_is_streamed as resident_is_streamed
from sluice_gates.test_identity import test_selective_is_load_all as selective_is_load_all

BenchMaker = Callable[..., Bench]
Make = Callable[..., Evidence]


def test_the_control_really_runs_twice(make_bench: BenchMaker) -> None:
    bench = make_bench()
    plain_twice(bench)
    configs = bench.target.configs  # type: ignore[attr-defined]
    assert len(configs) == 2 * len(bench.memory_modes)
    assert bench.notes[0].startswith(f"{len(configs)} runs, ")


def test_a_second_run_that_differs_fails(make_bench: BenchMaker, make_evidence: Make) -> None:
    runs = iter([make_evidence([5, 6]), make_evidence([5, 7])])
    with pytest.raises(GateFailure, match=r"one and again, resident: step 1: token 6 / 7"):
        plain_twice(make_bench(lambda _config: next(runs)))


def test_streaming_that_reads_nothing_is_no_evidence(
    make_bench: BenchMaker, make_evidence: Make
) -> None:
    bench = make_bench(lambda _config: Run(make_evidence(), Metrics()))
    with pytest.raises(GateFailure, match="no evidence: nothing streamed"):
        resident_is_streamed(bench)


def test_a_control_that_reads_no_more_is_no_evidence(
    make_bench: BenchMaker, make_evidence: Make
) -> None:
    def run(_config: Config) -> Run:
        counter = ReadCounter(read_bytes=1, n_slices=16)
        return Run(make_evidence(), Metrics(decode=counter))

    with pytest.raises(GateFailure, match="no evidence: 16 slices read selectively, 16 by"):
        selective_is_load_all(make_bench(run))


def test_invariant_settings_where_the_build_has_them(
    make_bench: BenchMaker, make_evidence: Make
) -> None:
    assert make_bench().invariant() == {"numerics": "invariant"}

    def without(config: Config) -> Evidence | RequestError:
        return make_evidence() if config.numerics == "default" else RequestError("--numerics: no")

    assert make_bench(without).invariant() is None
