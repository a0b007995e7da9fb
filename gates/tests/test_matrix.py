"""The kill matrix's two engines: what is run again under a fault, and what need not be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sluice.bundled import BUNDLED, model_path
from sluice.config import Config
from sluice.errors import GateFailure
from sluice.targets import Run
from sluice_gates.bench import Bench
from sluice_gates.fault import Fault, FaultyTarget
from sluice_gates.faults import FAULTS
from sluice_gates.gate import Gate
from sluice_gates.matrix import Healthy, Sick, kill_matrix

BenchMaker = Callable[..., Bench]
PROMPT = "import os\n"


@pytest.fixture
def config() -> Config:
    model = str(model_path(BUNDLED))
    return Config(
        model=model,
        n=3,
        ctx=256,
        threads=1,
        moe_stream=True,
        cache_mb=1,
        force_cache=True,
        cache_memory="pages",
    )


@pytest.fixture
def healthy(config: Config) -> Healthy:
    made = Healthy()
    made.run(config, PROMPT)
    made.run_all(config, PROMPT, [{}, {"n": 2}])
    made.run_together([config, config.replace(moe_stream=False, cache_mb=0)], PROMPT)
    return made


def runs(target: Healthy | Sick | FaultyTarget, config: Config) -> list[Run]:
    """Of every kind."""
    together = [config, config.replace(moe_stream=False, cache_mb=0)]
    return [
        target.run(config, PROMPT),
        *target.run_all(config, PROMPT, [{}, {"n": 2}]),
        *target.run_together(together, PROMPT),
    ]


def known(healthy: Healthy) -> list[Run]:
    return [run for run, _ in healthy.runs.values()] + [
        run for runs, _ in healthy.sessions.values() for run in runs
    ]


@pytest.mark.parametrize(
    "name",
    [
        "accept-one-more",  # drafts: none here
        "second-shard-on-first",  # of one shard
        "overlap-ignored",  # asked of no run
        "overlap-wait-forgotten",  # acts in runs with overlap
        "read-ahead-ready-early",
    ],
)
def test_a_fault_that_does_not_bear_on_a_run_leaves_it(
    config: Config, healthy: Healthy, name: str
) -> None:
    left = runs(Sick(FAULTS[name](), healthy), config)
    assert all(run is other for run, other in zip(left, known(healthy), strict=True))


@pytest.mark.parametrize(
    "name", ["slice-bit-flip", "evicted-slot-read", "shared-page-dropped", "cache-unbounded"]
)
def test_a_fault_that_bears_on_a_run_is_run(config: Config, healthy: Healthy, name: str) -> None:
    left = runs(Sick(FAULTS[name](), healthy), config)
    old = {id(run) for run in known(healthy)}
    assert not any(id(run) in old for run in left)


def test_sessions_are_spread_as_the_fault_says(config: Config) -> None:
    calls: list[dict[str, Any]] = [{"cache_mb": 7}, {"cache_mb": 2, "n": 2}]
    wide = config.replace(cache_mb=7, force_cache=False)

    def budgets(fault: Fault) -> list[tuple[int, int]]:
        found = FaultyTarget(fault).run_all(wide, PROMPT, calls)
        assert [len(run.evidence.ids) for run in found] == [3, 2]
        return [
            (run.metrics.cache.budget_bytes >> 20, run.metrics.prefill.n_misses)
            for run in found
            if run.metrics.cache is not None
        ]

    (_, cold), (_, warm) = budgets(FAULTS["budget-change-ignored"]())
    assert cold > 0
    assert warm == 0
    assert budgets(FAULTS["session-reopened"]()) == [(7, cold), (2, cold)]
    assert budgets(FAULTS["cache-ignored"]()) == []


def test_a_cell_that_is_not_run_is_blank(make_bench: BenchMaker) -> None:
    def catches(bench: Bench) -> str | None:
        if isinstance(bench.target, Sick):
            raise GateFailure("caught")
        return None

    gates = [
        Gate(name, "ids", "nothing", kills, (), False, catches)
        for name, kills in (("one", ("slice-stale",)), ("two", ()))
    ]

    def bench_of(target: Any) -> Bench:
        bench = make_bench()
        bench.target = target
        return bench

    faults = [FAULTS["slice-stale"], FAULTS["slice-raced"]]
    matrix = kill_matrix(
        gates, faults, bench_of, lambda gate, fault: gate.name == "one" or fault is faults[0]
    )
    assert matrix.kills(gates[0]) == {"slice-stale", "slice-raced"}
    assert matrix.kills(gates[1]) == {"slice-stale"}
    assert matrix.text().splitlines()[:4] == [
        "kill matrix: 2 faults by 2 gates",
        "              1  2",
        "slice-stale   x  +",
        "slice-raced   +",
    ]
