"""Overlap: reads that run on under matmuls change no logit, whenever they are waited for."""

from __future__ import annotations

from typing import Any

from sluice.errors import GateFailure
from sluice_gates.bench import Bench, measured
from sluice_gates.gate import NotApplicable, gate
from sluice_gates.streamed import (
    budgets,
    by_kernel,
    evicted,
    handed_over,
    need,
    overlapped_mib,
    streamed,
)

LANES = (1, 2, 4, 8)


@gate(
    level="logits",
    claims="overlap changes no logit, on any number of lanes",
    kills=(
        "overlap-wait-forgotten",
        "read-handed-over-lost",
        "overlap-ignored",
        "kernel-reads-ignored",
        "cache-ignored",
    ),
    needs=("experts",),
    once=True,
)
def test_overlap_lanes(bench: Bench) -> str:
    """Reads that run on under the matmuls: 1, 2, 4 and 8 lanes, with a cache and without.

    And with a cache whose reads the kernel is given, where this system lets it have them.

    Kills overlap-wait-forgotten, read-handed-over-lost, overlap-ignored, kernel-reads-ignored and
    cache-ignored.
    """
    prompt, found = bench.general[0], budgets(bench)
    cached: dict[str, Any] = {"cache_mb": found.smallest_mb}
    ways = [{**cache, "io_threads": n} for cache in ({}, cached) for n in LANES]
    ways = [{**way, "kernel_reads": False} for way in ways] + [cached]
    runs = []
    for way in ways:
        run = streamed(bench, prompt, overlap=True, **way)
        if "cache_mb" in way:
            need(evicted(run), f"nothing evicted from a cache of {found.smallest_mb} MiB")
        if not way.get("kernel_reads", True) and handed_over(run):
            raise GateFailure(f"the kernel was given {handed_over(run)} reads of lanes")
        runs.append(run)
    return f"{measured(runs)}, {overlapped_mib(runs):.0f} MiB overlapped, {by_kernel(runs[-1:])}"


@gate(
    level="logits",
    claims="computing experts after the others, once they are read, changes no logit",
    kills=("late-rows-forgotten", "overlap-wait-forgotten"),
    needs=("experts",),
    once=True,
)
def test_late_experts(bench: Bench) -> str:
    """Caches with some of a token's experts but not all: what is missing is computed late.

    Kills late-rows-forgotten and overlap-wait-forgotten.
    """
    prompt, found = bench.general[0], budgets(bench)
    sizes = sorted({found.smallest_mb, (found.smallest_mb + found.whole_mb) // 2})
    runs = [streamed(bench, prompt, overlap=True, cache_mb=size) for size in sizes]
    if not any(run.held.late for run in runs):
        raise NotApplicable(f"{bench.model.name}: its experts are not of a kind to be late")
    n_late = [run.metrics.generated.n_late for run in runs]
    need(sum(n_late), "no expert was computed late")
    return f"{measured(runs)}, {sum(n_late)} experts late"
