"""Identity, to the logits: runs that must be the same, byte for byte."""

from __future__ import annotations

import itertools
from typing import Any

from sluice.errors import GateFailure
from sluice_gates.bench import DRAFTS, Bench, accepted_and_rejected, measured, streamed_mib
from sluice_gates.gate import gate


@gate(
    level="logits",
    claims="the same run twice is the same run",
    kills=("slice-missing", "slice-stale", "slice-raced", "routing-first-row"),
)
def test_plain_twice(bench: Bench) -> str:
    """Two real runs of one configuration agree in every logits row, resident and streamed.

    The control of every other comparison.

    Kills slice-missing, slice-stale, slice-raced and routing-first-row.
    """
    runs = []
    for streamed in bench.memory_modes:
        for prompt in bench.general:
            first = bench.run(prompt, moe_stream=streamed)
            again = bench.run(prompt, moe_stream=streamed, fresh=True)
            bench.equal(first, again, f"{prompt.name} and again, {_memory(streamed)}")
            runs += [first, again]
    return measured(runs)


@gate(
    level="logits",
    claims="streaming the experts changes no logit",
    kills=(
        "slice-neighbour",
        "slice-missing",
        "slice-stale",
        "slice-raced",
        "slice-bit-flip",
        "routing-first-row",
        "stream-ignored",
    ),
    needs=("experts",),
)
def test_resident_is_streamed(bench: Bench) -> str:
    """A streamed run has the resident run's logits, through O_DIRECT and through the page cache.

    Kills slice-neighbour, slice-missing, slice-stale, slice-raced, slice-bit-flip,
    routing-first-row and stream-ignored.
    """
    runs, streamed = [], []
    for prompt in bench.general:
        resident = bench.run(prompt)
        direct = bench.run(prompt, moe_stream=True)
        cached = bench.run(prompt, moe_stream=True, odirect=False)
        bench.equal(resident, direct, f"{prompt.name}, resident and streamed")
        bench.equal(resident, cached, f"{prompt.name}, resident and streamed without O_DIRECT")
        runs += [resident, direct, cached]
        streamed += [direct, cached]
    return f"{measured(runs)}, {streamed_mib(streamed):.0f} MiB streamed"


@gate(
    level="logits",
    claims="reading the routed experts only changes no logit",
    kills=(
        "slice-neighbour",
        "slice-missing",
        "slice-stale",
        "slice-raced",
        "routing-first-row",
        "stream-ignored",
        "load-all-ignored",
    ),
    needs=("experts",),
)
def test_selective_is_load_all(bench: Bench) -> str:
    """A run that reads the routed experts has the logits of one that reads every expert.

    Kills slice-neighbour, slice-missing, slice-stale, slice-raced, routing-first-row,
    stream-ignored and load-all-ignored.
    """
    runs = []
    for prompt in bench.general:
        selective = bench.run(prompt, moe_stream=True)
        load_all = bench.run(prompt, moe_stream=True, load_all=True)
        streamed_mib([selective, load_all])
        few, every = (run.metrics.decode.n_slices for run in (selective, load_all))
        if few >= every:
            raise GateFailure(f"no evidence: {few} slices read selectively, {every} by --load-all")
        bench.equal(selective, load_all, f"{prompt.name}, selective and --load-all")
        runs += [selective, load_all]
    return f"{measured(runs)}, {few} of {every} slices in the last"


@gate(
    level="logits",
    claims="no expert is read that was not routed",
    kills=("slice-missing", "slice-stale", "slice-raced", "routing-first-row", "stream-ignored"),
    needs=("experts",),
)
def test_poisoned_buffers(bench: Bench) -> str:
    """Filling every buffer with NaN before its slices are read changes no logit.

    Kills slice-missing, slice-stale, slice-raced, routing-first-row and stream-ignored.
    """
    runs, streamed = [], []
    for prompt in bench.general:
        clean = bench.run(prompt, moe_stream=True)
        poisoned = bench.run(prompt, moe_stream=True, poison=True)
        bench.equal(clean, poisoned, f"{prompt.name}, streamed and streamed with poison")
        runs += [clean, poisoned]
        streamed.append(poisoned)
    return f"{measured(runs)}, {streamed_mib(streamed):.0f} MiB over poison"


@gate(
    level="logits",
    claims="the number of threads changes no logit",
    kills=("slice-missing", "slice-stale", "slice-raced", "routing-first-row"),
)
def test_threads_1_is_2(bench: Bench) -> str:
    """One thread and two give the same logits, resident and streamed.

    Kills slice-missing, slice-stale, slice-raced and routing-first-row.
    """
    runs = []
    for streamed in bench.memory_modes:
        for prompt in bench.general:
            one = bench.run(prompt, moe_stream=streamed, threads=1)
            two = bench.run(prompt, moe_stream=streamed, threads=2)
            bench.equal(one, two, f"{prompt.name}, threads 1 and 2, {_memory(streamed)}")
            runs += [one, two]
    return measured(runs)


@gate(
    level="logits",
    claims="streaming changes no logit and no draft under MTP",
    kills=(
        "slice-neighbour",
        "slice-missing",
        "slice-stale",
        "slice-raced",
        "slice-bit-flip",
        "routing-flat",
        "routing-first-row",
        "accept-one-more",
        "accept-one-less",
        "rollback-skipped",
        "catch-up-tail-kept",
        "stream-ignored",
    ),
    needs=("experts", "head"),
)
def test_mtp_streamed_is_resident(bench: Bench) -> str:
    """Speculated runs are the same resident and streamed, head included, at drafts 1, 2 and 3.

    Kills slice-neighbour, slice-missing, slice-stale, slice-raced, slice-bit-flip, routing-flat,
    routing-first-row, accept-one-more, accept-one-less, rollback-skipped, catch-up-tail-kept and
    stream-ignored.
    """
    runs, streamed_runs, words = [], [], []
    for draft in DRAFTS:
        pairs = []
        for prompt in bench.general:
            resident = bench.run(prompt, mtp=True, draft=draft)
            streamed = bench.run(prompt, mtp=True, draft=draft, moe_stream=True)
            what = f"{prompt.name}, draft {draft}, resident and streamed"
            bench.equal(resident, streamed, what)
            bench.equal(resident, streamed, what, "drafts")
            if streamed.metrics.head.n_slices == 0:
                raise GateFailure("no evidence: nothing of the head streamed")
            pairs.append((resident, streamed))
        words.append(accepted_and_rejected([streamed for _, streamed in pairs], draft))
        runs += [run for pair in pairs for run in pair]
        streamed_runs += [streamed for _, streamed in pairs]
    words.append(f"{streamed_mib(streamed_runs):.0f} MiB streamed")
    return f"{measured(runs)}; {'; '.join(words)}"


@gate(
    level="logits",
    claims="catching up on the accepted prefix is catching up on the whole batch",
    kills=(
        "slice-missing",
        "slice-stale",
        "slice-raced",
        "routing-first-row",
        "rollback-skipped",
        "catch-up-tail-kept",
        "catch-up-short",
        "stream-ignored",
        "catch-up-ignored",
    ),
    needs=("head",),
)
def test_catch_up_prefix_is_batch(bench: Bench) -> str:
    """What the head is told of a rejected tail changes no logit and no later draft.

    The drafts are compared under --numerics invariant: the head computes them in other batches.

    Kills slice-missing, slice-stale, slice-raced, routing-first-row, rollback-skipped,
    catch-up-tail-kept, catch-up-short, stream-ignored and catch-up-ignored.
    """
    runs, batches = [], []
    invariant = bench.invariant()
    profiles: list[dict[str, Any]] = [{}, *([invariant] if invariant else [])]
    for prompt, profile in itertools.product(bench.general, profiles):
        prefix = bench.run(prompt, mtp=True, moe_stream=bench.streams, **profile)
        batch = bench.run(prompt, mtp=True, moe_stream=bench.streams, catch_up="batch", **profile)
        what = f"{prompt.name}, catch-up on the prefix and on the batch"
        bench.equal(prefix, batch, what)
        if profile:
            bench.equal(prefix, batch, what, "drafts")
        short, long = (run.metrics.head.n_slices for run in (prefix, batch))
        if bench.streams and short >= long:
            raise GateFailure(f"no evidence: the head read {short} slices and {long} on the batch")
        runs += [prefix, batch]
        batches.append(batch)
    return f"{measured(runs)}; {accepted_and_rejected(batches, 3)}"


def _memory(streamed: bool) -> str:
    return "streamed" if streamed else "resident"
