"""Layouts: a model in shards, and every architecture whose experts are streamed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from sluice.errors import RequestError
from sluice.targets import Run, cache_budgets
from sluice_gates.bench import Bench, measured, streamed_mib
from sluice_gates.gate import NotApplicable, gate
from sluice_gates.prompts import Prompt
from sluice_gates.streamed import (
    budgets,
    check,
    evicted,
    is_unforetold,
    need,
    resident,
    used_ahead,
    words,
)
from sluice_gates.variants import sharded
from sluice_gates.zoo import ZOO, zoo_model

N_SHARDS = 3
ZOO_PROMPT = "def main(args=None):"
WAYS: tuple[dict[str, Any], ...] = ({}, {"overlap": True}, {"predict_prefetch": True})
"""How a layout is streamed: without a cache, and with a small one."""


@gate(
    level="logits",
    claims="a model in shards is the model, whichever shard is named",
    kills=("second-shard-on-first", "cache-ignored"),
    needs=("experts",),
    once=True,
)
def test_shards(bench: Bench) -> str:
    """Three shards, opened from each, with the experts of one layer in two of them.

    Kills second-shard-on-first and cache-ignored.
    """
    if not bench.model.is_small:
        raise NotApplicable(f"{bench.model.name} is too large to be copied into shards")
    folder = bench.scratch / f"shards-{bench.model.label}"
    folder.mkdir(exist_ok=True)
    try:
        try:
            first = sharded(bench.model.path, folder, N_SHARDS)
        except ValueError as err:
            raise NotApplicable(str(err)) from None
        shards = sorted(folder.glob(f"*-of-{N_SHARDS:05d}.gguf"))
        need(len(shards) == N_SHARDS and first == shards[0], f"no {N_SHARDS} shards")
        return _shards(bench, shards)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _shards(bench: Bench, shards: list[Path]) -> str:
    prompt = bench.general[0]
    wanted, runs = resident(bench, prompt), []
    small = {"cache_mb": budgets(bench).smallest_mb, "overlap": True}
    ways: list[dict[str, Any]] = [{}, {"odirect": False}, small]
    for number, (path, changes) in enumerate(zip(reversed(shards), ways, strict=True)):
        of = replace(prompt, name=f"{prompt.name}-of-shard-{N_SHARDS - number}")
        run = bench.run(of, n=bench.n_streamed, moe_stream=True, model=str(path), **changes)
        check(bench, wanted, run, f"{prompt.name}, resident, and streamed from {path.name}")
        runs.append(run)
    need(evicted(runs[-1]), "nothing evicted")
    return f"{measured(runs)}, {streamed_mib(runs):.0f} MiB streamed from {N_SHARDS} shards"


@gate(
    level="logits",
    claims="every layout that is streamed has the resident logits",
    kills=("slice-neighbour", "slice-bit-flip", "overlap-wait-forgotten", "cache-ignored"),
    once=True,
)
def test_layouts(bench: Bench) -> str:
    """One small model of random weights an architecture: no cache, a small one, read ahead.

    Kills slice-neighbour, slice-bit-flip, overlap-wait-forgotten and cache-ignored.
    """
    if not bench.streams:
        raise NotApplicable("no experts are streamed on this platform")
    folder = bench.scratch / "zoo"
    names = list(ZOO)[: bench.n_layouts]
    runs, unpredicted = [], []
    for name in names:
        path = zoo_model(name, folder)
        try:
            mine = _layout(bench, name, path)
        finally:
            path.unlink()
        runs += mine
        unpredicted += [] if len(mine) == len(WAYS) else [name]
    need(sum(run.metrics.generated.overlapped_bytes for run in runs), "nothing overlapped")
    need(len(unpredicted) < len(names), "no layout has an early router")
    without = f", no early router for {', '.join(unpredicted)}" if unpredicted else ""
    return f"{len(names)} layouts, {measured(runs)}, {streamed_mib(runs):.0f} MiB streamed{without}"


def _layout(bench: Bench, name: str, path: Path) -> list[Run]:
    prompt = Prompt(f"zoo-{name}", ZOO_PROMPT)
    settings: dict[str, Any] = {"n": bench.n_streamed, "model": str(path)}
    small = {"cache_mb": cache_budgets(bench.config(**settings)).scant_mb, "force_cache": True}
    wanted = bench.run(prompt, **settings)
    runs = []
    for way in WAYS:
        changes = {**settings, **way, **(small if way else {})}
        try:
            run = bench.run(prompt, moe_stream=True, **changes)
        except RequestError as err:
            if is_unforetold(err):
                continue
            raise
        check(bench, wanted, run, f"{name}, resident and {words(way)}")
        need(not way or evicted(run), f"nothing evicted, {name}")
        if "predict_prefetch" in way:
            need(used_ahead(run), f"nothing that was read ahead was used, {name}")
        runs.append(run)
    return runs
