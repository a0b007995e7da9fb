"""Sessions: what one generation leaves behind changes no logit of another."""

from __future__ import annotations

from typing import Any

from sluice.errors import GateFailure
from sluice_gates.bench import Bench, measured
from sluice_gates.gate import gate
from sluice_gates.streamed import MIB, PAGES, budgets, check, evicted, hits, need, resident


@gate(
    level="logits",
    claims="two sessions that are open at once change none of each other's logits",
    kills=("evicted-slot-read", "cache-ignored", "cache-unbounded", "overlap-ignored"),
    needs=("experts",),
    once=True,
)
def test_two_sessions(bench: Bench) -> str:
    """Two generations in one process, a token of each in turns: one streamed, and both.

    Kills evicted-slot-read, cache-ignored, cache-unbounded and overlap-ignored.
    """
    prompt, found, n = bench.general[0], budgets(bench), bench.n_streamed
    small: dict[str, Any] = {"n": n, "moe_stream": True, "cache_mb": found.smallest_mb}
    wanted = resident(bench, prompt)
    beside, lone = bench.run_together(prompt, {"n": n}, {"n": n, "moe_stream": True})
    check(bench, wanted, beside, f"{prompt.name}, resident, and again beside a streamed session")
    check(bench, wanted, lone, f"{prompt.name}, resident, and streamed beside it")
    need(lone.metrics.read_bytes, "nothing streamed")
    both = bench.run_together(prompt, small, {**small, "overlap": True, "io_threads": 2})
    for run in both:
        check(bench, wanted, run, f"{prompt.name}, resident, and two sessions streamed")
        need(evicted(run), "nothing evicted")
        need(hits(run), "no hit")
    need(both[1].metrics.generated.overlapped_bytes, "nothing overlapped")
    return f"{measured([beside, lone, *both])}, two at a time"


@gate(
    level="logits",
    claims="a second generation finds a warm cache and gives the same logits",
    kills=("evicted-slot-read", "shared-page-dropped", "cache-ignored", "session-reopened"),
    needs=("experts",),
    once=True,
)
def test_warm_generation(bench: Bench) -> str:
    """The same prompt twice in one session: the second generation hits more, with equal logits.

    Kills evicted-slot-read, shared-page-dropped, cache-ignored and session-reopened.
    """
    prompt, found, runs = bench.general[0], budgets(bench), []
    wanted = resident(bench, prompt)
    ways: tuple[tuple[int, dict[str, Any]], ...]
    ways = ((found.smallest_mb, {}), (found.smallest_mb, PAGES), (found.whole_mb, {}))
    for cache_mb, way in ways:
        first, second = bench.run_all(
            prompt, [{}, {}], n=bench.n_streamed, moe_stream=True, cache_mb=cache_mb, **way
        )
        for run, which in ((first, "first"), (second, "second")):
            check(bench, wanted, run, f"{prompt.name}, resident, and {which} of a session")
        need(second.held.cache_bytes, "the second generation began with an empty cache")
        runs += [first, second]
    cold, warm = (run.metrics.prefill.n_hits + hits(run) for run in (first, second))
    if warm <= cold:
        raise GateFailure(
            f"no evidence: {cold} hits in the first generation and {warm} in the second, with"
            f" a cache of {cache_mb} MiB"
        )
    return f"{measured(runs)}, {cold} hits and then {warm} with {cache_mb} MiB"


@gate(
    level="logits",
    claims="another cache budget between two generations changes no logit",
    kills=(
        "evicted-slot-read",
        "cache-ignored",
        "cache-unbounded",
        "budget-change-ignored",
        "session-reopened",
    ),
    needs=("experts",),
    once=True,
)
def test_budget_resized(bench: Bench) -> str:
    """A budget is shrunk, which evicts at once, shrunk again, and grown to hold all.

    Kills evicted-slot-read, cache-ignored, cache-unbounded, budget-change-ignored and
    session-reopened.
    """
    prompt, found = bench.general[0], budgets(bench)
    whole, least = found.whole_mb, found.smallest_mb
    sizes = (whole, (whole + least) // 2, least, whole)
    wanted = resident(bench, prompt)
    calls = [{"cache_mb": size} for size in sizes]
    runs = bench.run_all(prompt, calls, n=bench.n_streamed, moe_stream=True, cache_mb=whole)
    for run, size in zip(runs, sizes, strict=True):
        check(bench, wanted, run, f"{prompt.name}, resident, and resized to {size} MiB")
        need(hits(run), f"no hit with {size} MiB")
        if run.held.cache_bytes > size * MIB:
            raise GateFailure(f"{run.held.cache_bytes} bytes held after shrinking to {size} MiB")
        if size == whole and evicted(run):
            raise GateFailure(f"{evicted(run)} experts evicted from {size} MiB, which hold all")
        need(size == whole or evicted(run), f"nothing evicted from {size} MiB")
    held = runs[2].held.cache_bytes
    need(held, f"nothing kept when shrinking to {least} MiB")
    peak = runs[3].metrics.cache.peak_bytes if runs[3].metrics.cache is not None else 0
    need(peak > least * MIB, f"{peak} bytes at most after growing")
    return f"{measured(runs)}, held {held / MIB:.1f} MiB once shrunk to {least} MiB"
