"""Streaming: how the experts' bytes reach the processor changes no logit.

Every run here is compared with the resident one, and must show that it did what it is about.
"""

from __future__ import annotations

import itertools
from typing import Any

from sluice.errors import GateFailure
from sluice.targets import Run
from sluice_gates.bench import Bench, accepted_and_rejected, measured, streamed_mib
from sluice_gates.gate import NotApplicable, gate
from sluice_gates.streamed import (
    MIB,
    PAGES,
    budgets,
    by_kernel,
    evicted,
    foretold,
    hits,
    need,
    overlapped_mib,
    streamed,
    used_ahead,
)

DRAFTS = (1, 3)
LARGE_BUDGETS = 3
"""Budgets that a large model is run with, evenly spread."""

AHEAD: tuple[dict[str, Any], ...] = ({"prefetch": 1}, {"prefetch": 3})
DENSE = ("anon", "warm", "mmap")
CONTROL = "control"


@gate(
    level="logits",
    claims="no cache budget changes a logit",
    kills=(
        "evicted-slot-read",
        "shared-page-dropped",
        "layer-whole-early",
        "cache-ignored",
        "cache-unbounded",
    ),
    needs=("experts",),
)
def test_cache_budgets(bench: Bench) -> str:
    """Every whole-MiB budget from the smallest legal one to all experts, and never beyond it.

    Below all experts each run must evict and hit; with all of them none may be evicted. Experts
    stand in slots; the smallest, the largest and the whole budget are run with pages, too.

    Kills evicted-slot-read, shared-page-dropped, layer-whole-early, cache-ignored and
    cache-unbounded.
    """
    prompt, found = bench.general[0], budgets(bench)
    whole = [streamed(bench, prompt, cache_mb=found.whole_mb, **way) for way in ({}, PAGES)]
    for run in whole:
        need(hits(run), f"no hit with a cache of {found.whole_mb} MiB")
        if evicted(run):
            raise GateFailure(
                f"{evicted(run)} experts evicted from a cache of {found.whole_mb} MiB, which holds"
                " every expert"
            )
    below = range(found.smallest_mb, -(-min(map(_peak_bytes, whole)) // MIB))
    step = 1 if bench.model.is_small else -(-len(below) // LARGE_BUDGETS)
    ways = [{"cache_mb": size} for size in below[:: max(step, 1)]]
    ways += [{**ways[0], **PAGES}, {**ways[-1], **PAGES}] if ways else []
    runs = []
    for way in ways:
        run, budget = streamed(bench, prompt, **way), way["cache_mb"]
        need(evicted(run), f"nothing evicted from a cache of {budget} MiB")
        need(hits(run), f"no hit with a cache of {budget} MiB")
        if _peak_bytes(run) > budget * MIB:
            raise GateFailure(f"{_peak_bytes(run)} bytes in a cache of {budget} MiB")
        runs.append(run)
    need(len(runs), f"the smallest cache, {found.smallest_mb} MiB, holds all that is routed to")
    total = sum(map(evicted, runs))
    return f"{measured([*runs, *whole])}, {len(runs)} below all, {total} experts evicted"


@gate(
    level="logits",
    claims="everything cached is nothing cached",
    kills=("cache-ignored",),
    needs=("experts",),
)
def test_cache_off_is_all_cached(bench: Bench) -> str:
    """Reading each expert every time gives the logits of reading each one once.

    Kills cache-ignored.
    """
    prompt = bench.general[0]
    off = streamed(bench, prompt)
    whole = streamed(bench, prompt, cache_mb=budgets(bench).whole_mb)
    need(hits(whole), "no hit with every expert cached")
    bench.equal(off, whole, f"{prompt.name}, nothing cached and everything")
    rest = whole.metrics.generated.n_misses
    return f"{measured([off, whole])}, {off.metrics.generated.n_misses} experts read and {rest}"


@gate(
    level="logits",
    claims="a cache that is filled at load streams nothing afterwards, and changes no logit",
    kills=("cache-fill-ignored", "cache-ignored"),
    needs=("experts",),
)
def test_cache_fill(bench: Bench) -> str:
    """Every expert is there before the prompt, in slots and in pages, alone and with MTP.

    Kills cache-fill-ignored and cache-ignored.
    """
    prompt, runs = bench.general[0], []
    heads: tuple[dict[str, Any], ...] = ({}, {"mtp": True}) if bench.model.facts.has_head else ({},)
    for way, head in itertools.product(({}, PAGES), heads):
        whole_mb = budgets(bench, **head).whole_mb
        run = streamed(bench, prompt, cache_mb=whole_mb, cache_fill=True, **way, **head)
        counters = (run.metrics.prefill, run.metrics.decode, run.metrics.head)
        missed = sum(counter.n_misses for counter in counters)
        if missed:
            raise GateFailure(f"{missed} experts read after a cache of {whole_mb} MiB was filled")
        need(hits(run), "no hit in a filled cache")
        runs.append(run)
    return f"{measured(runs)}, {sum(map(hits, runs))} experts found, none read"


@gate(
    level="logits",
    claims="evicting experts of every layer changes no logit",
    kills=("evicted-slot-read", "cache-ignored", "cache-unbounded"),
    needs=("experts",),
)
def test_eviction_in_every_layer(bench: Bench) -> str:
    """A cache of 1 MiB evicts in each layer that streams, in slots, in pages and with overlap.

    The prompt is computed token by token: a pass of many rows may keep a layer whole.

    Kills evicted-slot-read, cache-ignored and cache-unbounded.
    """
    prompt, found = bench.general[0], budgets(bench)
    runs = []
    for changes in ({}, PAGES, {"overlap": True}):
        run = streamed(bench, prompt, cache_mb=1, force_cache=True, ubatch=1, **changes)
        counts = run.metrics.cache.evicted_by_layer if run.metrics.cache is not None else {}
        for layer in found.layers:
            need(counts.get(layer, 0), f"nothing of layer {layer} evicted")
        runs.append(run)
    spread = " ".join(f"{layer}:{counts[layer]}" for layer in found.layers)
    return f"{measured(runs)}, evicted by layer {spread}"


@gate(
    level="logits",
    claims="reading the previous token's experts ahead changes no logit",
    kills=(
        "evicted-slot-read",
        "read-ahead-ready-early",
        "slot-in-flight-dropped",
        "read-handed-over-lost",
        "prefetch-ignored",
        "prefetch-sync-ignored",
        "cache-ignored",
        "cache-unbounded",
    ),
    needs=("experts",),
    once=True,
)
def test_prefetch(bench: Bench) -> str:
    """``--prefetch`` of one layer and of three, waited for at once and not.

    The cache holds half a token's experts: a larger one has what the previous token routed to.

    Kills evicted-slot-read, read-ahead-ready-early, slot-in-flight-dropped,
    read-handed-over-lost, prefetch-ignored, prefetch-sync-ignored, cache-ignored and
    cache-unbounded.
    """
    found = budgets(bench)
    if found.scant_mb * MIB >= found.token_bytes:
        raise NotApplicable(
            f"{bench.model.name}: the smallest cache, {found.scant_mb} MiB, keeps what the previous"
            " token routed to"
        )
    return _ahead(bench, AHEAD, (found.scant_mb,))


@gate(
    level="logits",
    claims="reading ahead what the next layer's router names early changes no logit",
    kills=(
        "evicted-slot-read",
        "read-ahead-ready-early",
        "read-handed-over-lost",
        "predict-prefetch-ignored",
        "prefetch-sync-ignored",
        "cache-ignored",
        "cache-unbounded",
    ),
    needs=("experts",),
)
def test_predict_prefetch(bench: Bench) -> str:
    """``--predict-prefetch`` with a legal cache and a scant one, waited for at once and not.

    Kills evicted-slot-read, read-ahead-ready-early, read-handed-over-lost,
    predict-prefetch-ignored, prefetch-sync-ignored, cache-ignored and cache-unbounded.
    """
    found = budgets(bench)
    return _ahead(bench, ({"predict_prefetch": True},), (found.scant_mb, found.smallest_mb))


@gate(
    level="logits",
    claims="a router run on its own input names what the model chose, every time",
    kills=("routing-flat", "predict-log-ignored", "control-wrong"),
    needs=("experts",),
    once=True,
)
def test_predict_log_control(bench: Bench) -> str:
    """The control of ``--predict-log`` reads 100%, and counting changes no logit.

    Kills routing-flat, predict-log-ignored and control-wrong.
    """
    prompt = bench.general[0]
    settings = [{}, *([{"mtp": True, "draft": 3}] if bench.model.facts.has_head else [])]
    runs, shares = [], []
    for changes in settings:
        run = foretold(bench, prompt, cache_mb=budgets(bench).whole_mb, predict_log=True, **changes)
        control = run.metrics.predictions.get(CONTROL)
        need(control.n_named if control is not None else 0, "nothing predicted")
        for name, counts in run.metrics.predictions.items():
            shares.append(f"{name} {counts.n_right}/{counts.n_named}")
        if control is not None and control.n_right != control.n_named:
            raise GateFailure(
                f"the control named {control.n_named} experts and {control.n_right} were right"
            )
        runs.append(run)
    return f"{measured(runs)}, {', '.join(shares)}"


@gate(
    level="logits",
    claims="where the dense weights lie changes no logit",
    kills=(
        "dense-warm-ignored",
        "dense-mapped-when-buffered",
        "dense-always-owned",
        "no-odirect-ignored",
    ),
    needs=("experts",),
    once=True,
)
def test_dense_weights(bench: Bench) -> str:
    """Mapped, paged in at load and read into our own memory, with O_DIRECT and without.

    Kills dense-warm-ignored, dense-mapped-when-buffered, dense-always-owned and
    no-odirect-ignored.
    """
    prompt, whole_mb = bench.general[0], budgets(bench).whole_mb
    runs, owned = [], 0
    for dense, odirect in itertools.product(DENSE, (True, False)):
        run = streamed(bench, prompt, cache_mb=whole_mb, dense_weights=dense, odirect=odirect)
        held = run.held
        if dense == "mmap" and held.dense_bytes:
            raise GateFailure(f"{held.dense_bytes} dense bytes brought in, left mapped")
        if dense != "mmap":
            need(held.dense_bytes, f"no dense weight brought in by {dense}")
        if dense == "anon":
            need(held.dense_owned_bytes, "no dense weight in memory of our own")
            owned = held.dense_owned_bytes
        elif held.dense_owned_bytes:
            raise GateFailure(f"{held.dense_owned_bytes} dense bytes in our own memory by {dense}")
        if held.is_direct and not odirect:
            raise GateFailure("reads bypass the page cache without O_DIRECT")
        runs.append(run)
    return f"{measured(runs)}, {owned / MIB:.1f} MiB dense weights read into our own memory"


@gate(
    level="logits",
    claims="MTP over each way of streaming changes no logit and no draft",
    kills=(
        "accept-one-more",
        "evicted-slot-read",
        "read-ahead-ready-early",
        "overlap-wait-forgotten",
        "cache-ignored",
        "cache-unbounded",
        "overlap-ignored",
        "prefetch-ignored",
        "predict-prefetch-ignored",
    ),
    needs=("experts", "head"),
    once=True,
)
def test_mtp_over_streaming(bench: Bench) -> str:
    """Drafts 1 and 3 on a cache, overlap, both ways to read ahead, and each dense mode.

    Kills accept-one-more, evicted-slot-read, read-ahead-ready-early, overlap-wait-forgotten,
    cache-ignored, cache-unbounded, overlap-ignored, prefetch-ignored and predict-prefetch-ignored.
    """
    prompt, runs, said = bench.general[0], [], []
    for draft in DRAFTS:
        mtp: dict[str, Any] = {"mtp": True, "draft": draft}
        found = budgets(bench, **mtp)
        small: dict[str, Any] = {"cache_mb": found.smallest_mb}
        scant: dict[str, Any] = {"cache_mb": found.scant_mb, "force_cache": True}
        cached = streamed(bench, prompt, **mtp, **small)
        need(evicted(cached), "nothing evicted")
        need(hits(cached), "no hit")
        overlapped = streamed(bench, prompt, **mtp, overlap=True)
        overlapped_mib([overlapped])
        mine = [cached, overlapped]
        for ahead in ({"prefetch": 1}, {"predict_prefetch": True}):
            mine.append(streamed(bench, prompt, **mtp, **scant, **ahead))
            need(used_ahead(mine[-1]), "nothing that was read ahead was used")
        mine += [
            streamed(bench, prompt, **mtp, cache_mb=found.whole_mb, dense_weights=dense)
            for dense in DENSE
        ]
        for run in mine:
            need(run.metrics.head.n_hits + run.metrics.head.n_misses, "nothing of the head routed")
        said.append(accepted_and_rejected(mine, draft))
        runs += mine
    return f"{measured(runs)}; {'; '.join(said)}; {streamed_mib(runs):.0f} MiB streamed"


def _ahead(bench: Bench, ways: tuple[dict[str, Any], ...], cache_mbs: tuple[int, ...]) -> str:
    """Resident and read ahead; used over all of the gate's runs, for some read little ahead."""
    prompt, runs = bench.general[0], []
    lanes, at_once = {"kernel_reads": False}, {"prefetch_sync": True}
    for way, cache_mb, how in itertools.product(ways, cache_mbs, ({}, lanes, at_once)):
        changes = {**way, "cache_mb": cache_mb, "force_cache": True}
        run = foretold(bench, prompt, **changes, **how)
        awaited = run.metrics.generated.n_ahead_awaited
        if how is at_once and awaited:
            raise GateFailure(f"{awaited} experts still on their way with --prefetch-sync")
        need(evicted(run), f"nothing evicted from a cache of {cache_mb} MiB")
        runs.append(run)
    n_ahead = sum(run.metrics.generated.n_ahead for run in runs)
    need(n_ahead, "nothing read ahead")
    used = sum(map(used_ahead, runs))
    need(used, "nothing that was read ahead was used")
    said = f"{used} of {n_ahead} experts read ahead were used"
    return f"{measured(runs)}, {said}, {by_kernel(runs)}"


def _peak_bytes(run: Run) -> int:
    return run.metrics.cache.peak_bytes if run.metrics.cache is not None else 0
