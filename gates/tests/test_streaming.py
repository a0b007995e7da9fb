"""The gates of streaming fail when runs differ, and when a run did not do what it is about."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.bundled import BUNDLED
from sluice.config import Config
from sluice.errors import GateFailure, RequestError
from sluice.targets import Held, Run
from sluice.telemetry.evidence import Evidence
from sluice.telemetry.metrics import CacheReport, Metrics, Predictions, ReadCounter
from sluice_gates.bench import Bench
from sluice_gates.gate import Gate, NotApplicable, all_gates
from sluice_gates.models import MASTER_TYPE, open_model
from sluice_gates.zoo import zoo_model

BenchMaker = Callable[..., Bench]
Make = Callable[..., Evidence]
Change = Callable[[Config, Run], Run]

MIB = 1 << 20
WHOLE = 7
"""MiB that all experts of the bundled model take; 9 with its head's."""

GATES = {
    g.name: g for g in all_gates() if g.family in ("streaming", "overlap", "sessions", "layouts")
}
BenchOf = Callable[..., Bench]


@pytest.fixture
def bench_of(
    make_bench: BenchMaker, make_evidence: Make, make_speculated: Make, tmp_path: Path
) -> BenchOf:
    """Benches over runs that do what is asked, but for a change to some of them."""

    def make(change: Change = lambda _config, run: run, **changes: Any) -> Bench:
        n_hits = itertools.count(1)

        def made(config: Config) -> Run:
            groups = [(1, (6, 9), 1)] if config.mtp else []
            evidence = make_speculated([5, 6, 7], *groups) if config.mtp else make_evidence()
            run = Run(evidence, Metrics())
            if config.moe_stream:
                run = obedient(config, run, next(n_hits))
            return change(config, run)

        model = open_model(BUNDLED, MASTER_TYPE, tmp_path)
        return make_bench(made, model=model, n_layouts=2, **changes)

    return make


def obedient(config: Config, run: Run, n_hits: int) -> Run:
    """The run as ``config`` wants it; every later one hits more."""
    is_cached = bool(config.cache_mb)
    is_ahead = bool(config.prefetch) or config.predict_prefetch
    by_kernel = config.kernel_reads and (is_ahead or config.overlap)
    counter = ReadCounter(
        read_bytes=MIB,
        n_hits=n_hits if is_cached else 0,
        n_misses=0 if config.cache_fill else 8,
        n_ahead=4 if is_ahead else 0,
        n_ahead_used=2 if is_ahead else 0,
        n_ahead_awaited=int(is_ahead and not config.prefetch_sync),
        overlapped_bytes=MIB if config.overlap else 0,
        n_kernel_reads=5 if by_kernel else 0,
        n_late=int(config.overlap and is_cached),
    )
    n_head = int(config.mtp and not config.cache_fill)
    metrics = Metrics(decode=counter, head=ReadCounter(n_misses=n_head))
    budget = int(config.cache_mb) * MIB
    if is_cached:
        n = 3 if budget < WHOLE * MIB else 0
        peak = min(budget, WHOLE * MIB - 4096)
        metrics.cache = CacheReport(budget, peak, dict.fromkeys(range(5), n) if n else {})
    if config.predict_log:
        metrics.predictions = {"control": Predictions(9, 9), "early router": Predictions(9, 5)}
    owned = MIB if config.dense_weights == "anon" else 0
    held = Held(
        dense_bytes=0 if config.dense_weights == "mmap" else MIB,
        dense_owned_bytes=owned,
        cache_bytes=budget // 2,
        is_direct=config.odirect,
        kernel_reads=by_kernel,
        late=config.overlap and is_cached,
    )
    return dataclasses.replace(run, metrics=metrics, held=held)


def counting(**values: int) -> Change:
    """Other counts in every streamed run."""

    def change(config: Config, run: Run) -> Run:
        if not config.moe_stream:
            return run
        decode = dataclasses.replace(run.metrics.decode, **values)
        return dataclasses.replace(run, metrics=dataclasses.replace(run.metrics, decode=decode))

    return change


def caching(**values: Any) -> Change:
    """Another report of every cache."""

    def change(_config: Config, run: Run) -> Run:
        if run.metrics.cache is None:
            return run
        cache = dataclasses.replace(run.metrics.cache, **values)
        return dataclasses.replace(run, metrics=dataclasses.replace(run.metrics, cache=cache))

    return change


def predicting(**counts: Predictions) -> Change:
    """Other predictions."""

    def change(_config: Config, run: Run) -> Run:
        metrics = dataclasses.replace(run.metrics, predictions=counts)
        return dataclasses.replace(run, metrics=metrics)

    return change


def holding(**values: Any) -> Change:
    """Something else in memory."""

    def change(config: Config, run: Run) -> Run:
        held = dataclasses.replace(run.held, **values) if config.moe_stream else run.held
        return dataclasses.replace(run, held=held)

    return change


@pytest.mark.parametrize("gate", GATES.values(), ids=list(GATES))
def test_runs_that_do_what_is_asked_pass(gate: Gate, bench_of: BenchOf) -> None:
    evidence = gate.function(bench_of())
    assert evidence is not None
    assert " steps, logits " in evidence


@pytest.mark.parametrize("gate", GATES.values(), ids=list(GATES))
def test_a_streamed_run_that_differs_fails(
    gate: Gate, bench_of: BenchOf, make_evidence: Make
) -> None:
    def change(config: Config, run: Run) -> Run:
        if not config.moe_stream:
            return run
        return dataclasses.replace(run, evidence=make_evidence([5, 6, 8]))

    with pytest.raises(GateFailure, match=r"resident,? and ") as caught:
        gate.function(bench_of(change))
    assert "step 2: token 7 / 8" in str(caught.value)


@pytest.mark.parametrize("gate", GATES.values(), ids=list(GATES))
def test_runs_are_as_long_as_the_bench_says(gate: Gate, bench_of: BenchOf) -> None:
    bench = bench_of(n_streamed=256)
    gate.function(bench)
    configs = bench.target.configs  # type: ignore[attr-defined]
    assert {config.n for config in configs} == {256}
    assert any(not config.moe_stream for config in configs)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("cache-budgets", counting(n_hits=0), "no evidence: no hit with a cache of 7 MiB"),
        ("cache-budgets", caching(evicted_by_layer={}), "no evidence: nothing evicted from a ca"),
        ("cache-budgets", caching(evicted_by_layer={1: 1}), "1 experts evicted from a cache of 7"),
        ("cache-budgets", caching(peak_bytes=3 * MIB), "3145728 bytes in a cache of 2"),
        ("cache-budgets", caching(peak_bytes=MIB), "no evidence: the smallest cache, 2 MiB, holds"),
        ("cache-off-is-all-cached", counting(n_hits=0), "no evidence: no hit with every expert"),
        ("cache-fill", counting(n_misses=3), "3 experts read after a cache of 7 MiB was filled"),
        ("cache-fill", counting(n_hits=0), "no evidence: no hit in a filled cache"),
        ("eviction-in-every-layer", caching(evicted_by_layer={0: 1, 1: 1, 3: 1}),
         "no evidence: nothing of layer 2 evicted"),
        ("overlap-lanes", counting(overlapped_bytes=0), "no evidence: nothing overlapped"),
        ("late-experts", counting(n_late=0), "no evidence: no expert was computed late"),
        ("overlap-lanes", counting(n_kernel_reads=1), "the kernel was given 1 reads of lanes"),
        ("overlap-lanes", counting(n_kernel_reads=0), "no evidence: no read was handed over"),
        ("overlap-lanes", caching(evicted_by_layer={}), "no evidence: nothing evicted from a ca"),
        ("prefetch", counting(n_ahead=0), "no evidence: nothing read ahead"),
        ("prefetch", counting(n_ahead_used=0), "no evidence: nothing that was read ahead was used"),
        ("prefetch", counting(n_ahead_awaited=1), "1 experts still on their way with --prefetch-s"),
        ("prefetch", counting(n_kernel_reads=0), "no evidence: no read was handed over"),
        ("predict-prefetch", counting(n_kernel_reads=0), "no evidence: no read was handed over"),
        ("predict-prefetch", counting(n_ahead=0), "no evidence: nothing read ahead"),
        ("predict-prefetch", caching(evicted_by_layer={}), "no evidence: nothing evicted from a"),
        ("predict-log-control", predicting(), "no evidence: nothing predicted"),
        ("predict-log-control", predicting(control=Predictions(9, 8)),
         "the control named 9 experts and 8 were right"),
        ("dense-weights", holding(dense_bytes=0), "no evidence: no dense weight brought in by an"),
        ("dense-weights", holding(dense_bytes=1), "1 dense bytes brought in, left mapped"),
        ("dense-weights", holding(dense_owned_bytes=0), "no evidence: no dense weight in memory o"),
        ("dense-weights", holding(dense_owned_bytes=1), "1 dense bytes in our own memory by warm"),
        ("dense-weights", holding(is_direct=True), "reads bypass the page cache without O_DIRECT"),
        ("mtp-over-streaming", counting(n_hits=0), "no evidence: no hit"),
        ("mtp-over-streaming", counting(overlapped_bytes=0), "no evidence: nothing overlapped"),
        ("mtp-over-streaming", counting(n_ahead_used=0), "no evidence: nothing that was read ahea"),
        ("mtp-over-streaming", caching(evicted_by_layer={}), "no evidence: nothing evicted"),
        ("two-sessions", counting(read_bytes=0), "no evidence: nothing streamed"),
        ("two-sessions", counting(n_hits=0), "no evidence: no hit"),
        ("two-sessions", counting(overlapped_bytes=0), "no evidence: nothing overlapped"),
        ("two-sessions", caching(evicted_by_layer={}), "no evidence: nothing evicted"),
        ("warm-generation", counting(n_hits=5), "no evidence: 5 hits in the first generation and"),
        ("warm-generation", holding(cache_bytes=0), "no evidence: the second generation began wit"),
        ("budget-resized", counting(n_hits=0), "no evidence: no hit with 7 MiB"),
        ("budget-resized", holding(cache_bytes=5 * MIB), "5242880 bytes held after shrinking to 4"),
        ("budget-resized", holding(cache_bytes=0), "no evidence: nothing kept when shrinking"),
        ("budget-resized", caching(evicted_by_layer={}), "no evidence: nothing evicted from 4 MiB"),
        ("budget-resized", caching(peak_bytes=2 * MIB), "no evidence: 2097152 bytes at most after"),
        ("shards", counting(read_bytes=0), "no evidence: nothing streamed"),
        ("shards", caching(evicted_by_layer={}), "no evidence: nothing evicted"),
        ("layouts", caching(evicted_by_layer={}), "no evidence: nothing evicted, qwen2moe"),
        ("layouts", counting(overlapped_bytes=0), "no evidence: nothing overlapped"),
        ("layouts", counting(n_ahead_used=0), "no evidence: nothing that was read ahead was used"),
    ],
)  # fmt: skip
def test_what_was_not_done_is_a_failure_in_words(
    bench_of: BenchOf, name: str, change: Change, words: str
) -> None:
    with pytest.raises(GateFailure) as caught:
        GATES[name].function(bench_of(change))
    assert str(caught.value).startswith(words)


def test_drafts_that_differ_fail_though_no_logit_does(
    bench_of: BenchOf, make_speculated: Make
) -> None:
    def change(config: Config, run: Run) -> Run:
        if not (config.mtp and config.overlap):
            return run
        return dataclasses.replace(run, evidence=make_speculated([5, 6, 7], (1, (6, 8), 1)))

    with pytest.raises(GateFailure, match=r"overlap: group 0 at step 1 / 1: drafted"):
        GATES["mtp-over-streaming"].function(bench_of(change))


def test_a_layout_without_an_early_router_is_named(bench_of: BenchOf) -> None:
    bench = bench_of()
    plain = bench.target.run

    def run(config: Config, *given: Any, **rest: Any) -> Run:
        if config.predict_prefetch and "qwen2moe" in config.model:
            raise RequestError("--predict-prefetch, --predict-log: no router of the usual kind")
        return plain(config, *given, **rest)

    bench.target.run = run  # type: ignore[method-assign]
    evidence = GATES["layouts"].function(bench)
    assert evidence is not None
    assert evidence.endswith(", no early router for qwen2moe")


def test_a_model_that_is_too_large_is_not_copied_into_shards(bench_of: BenchOf) -> None:
    bench = bench_of()
    large = dataclasses.replace(bench.model.facts, file_bytes=1 << 40)
    bench.model = dataclasses.replace(bench.model, facts=large)
    with pytest.raises(NotApplicable, match="too large to be copied into shards"):
        GATES["shards"].function(bench)


def budgets_asked(bench: Bench) -> list[int]:
    GATES["cache-budgets"].function(bench)
    configs = bench.target.configs  # type: ignore[attr-defined]
    assert {c.cache_mb for c in configs if c.cache_memory == "pages"} > {2, 7}
    return [c.cache_mb for c in configs if c.cache_mb and c.cache_memory != "pages"]


def test_every_budget_of_a_small_model_is_run(bench_of: BenchOf) -> None:
    assert budgets_asked(bench_of()) == [7, 2, 3, 4, 5, 6]


def test_budgets_of_a_large_model_are_spread(bench_of: BenchOf) -> None:
    bench = bench_of()
    large = dataclasses.replace(bench.model.facts, file_bytes=1 << 40)
    bench.model = dataclasses.replace(bench.model, facts=large)
    assert budgets_asked(bench) == [7, 2, 4, 6]


def test_where_the_smallest_cache_keeps_a_token_nothing_is_left_to_prefetch(
    bench_of: BenchOf, tmp_path: Path
) -> None:
    bench = bench_of()
    path = zoo_model("jamba", tmp_path)
    bench.model = dataclasses.replace(bench.model, path=path)
    with pytest.raises(NotApplicable, match="the smallest cache, 1 MiB, keeps what the previous"):
        GATES["prefetch"].function(bench)


@pytest.mark.parametrize("name", ["predict-prefetch", "predict-log-control"])
def test_a_model_without_an_early_router_is_not_judged_by_it(bench_of: BenchOf, name: str) -> None:
    bench = bench_of()
    plain = bench.target.run

    def run(config: Config, *given: Any, **rest: Any) -> Run:
        if config.predict_prefetch or config.predict_log:
            raise RequestError("--predict-prefetch, --predict-log: no router of the usual kind")
        return plain(config, *given, **rest)

    bench.target.run = run  # type: ignore[method-assign]
    with pytest.raises(NotApplicable, match="no router of the usual kind"):
        GATES[name].function(bench)


def test_shards_leave_nothing_behind(bench_of: BenchOf, tmp_path: Path) -> None:
    bench = bench_of(scratch=tmp_path)
    GATES["shards"].function(bench)
    configs = [c for c in bench.target.configs if c.moe_stream]  # type: ignore[attr-defined]
    assert len({c.model for c in configs}) == 3
    assert [Path(c.model).name[-19:-14] for c in configs] == ["00003", "00002", "00001"]
    assert not list(tmp_path.rglob("*-of-00003.gguf"))
