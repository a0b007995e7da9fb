"""What the gates of streaming share: runs that must equal the resident one, and their evidence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sluice.errors import GateFailure, RequestError
from sluice.targets import CacheBudgets, Run, cache_budgets
from sluice_gates.bench import Bench
from sluice_gates.gate import NotApplicable
from sluice_gates.prompts import Prompt

MIB = 1 << 20
KEPT = ("model", "ubatch", "mtp", "draft")
"""Settings that the resident run has in common with a streamed one."""

PAGES: dict[str, Any] = {"cache_memory": "pages"}
"""Each cached expert at an address of its own; by default they stand in slots where they can."""


def budgets(bench: Bench, **changes: Any) -> CacheBudgets:
    """The cache budgets that make sense for the bench's model."""
    return cache_budgets(bench.config(**changes))


def resident(bench: Bench, prompt: Prompt, **changes: Any) -> Run:
    """The reference: nothing streamed."""
    return bench.run(prompt, n=bench.n_streamed, **changes)


def streamed(bench: Bench, prompt: Prompt, **changes: Any) -> Run:
    """A streamed run that has the logits of the resident one, and its drafts under MTP.

    Raises:
        GateFailure: it differs, or has read nothing.
    """
    kept = {name: value for name, value in changes.items() if name in KEPT}
    wanted = resident(bench, prompt, **kept)
    run = bench.run(prompt, n=bench.n_streamed, moe_stream=True, **changes)
    check(bench, wanted, run, f"{prompt.name}, resident and {words(changes)}")
    return run


def foretold(bench: Bench, prompt: Prompt, **changes: Any) -> Run:
    """As :func:`streamed`, where routers may be run early.

    Raises:
        NotApplicable: the model's cannot be.
    """
    try:
        return streamed(bench, prompt, **changes)
    except RequestError as err:
        if is_unforetold(err):
            raise NotApplicable(str(err)) from None
        raise


def is_unforetold(err: RequestError) -> bool:
    """Whether it is the refusal of a model whose routers cannot be run early."""
    return str(err).startswith("--predict-prefetch, --predict-log:")


def check(bench: Bench, wanted: Run, run: Run, what: str) -> None:
    """Fail where ``run`` differs from ``wanted`` in a logit or a draft."""
    bench.equal(wanted, run, what)
    if wanted.evidence.groups:
        bench.equal(wanted, run, what, "drafts")


def words(changes: dict[str, Any]) -> str:
    """Settings as a message names them."""
    parts = [
        name if value is True else f"{name}={value}"
        for name, value in changes.items()
        if name != "model"
    ]
    return ", ".join(["streamed", *parts])


def need(found: float, what: str) -> None:
    """Fail where there is none of what a gate rests on."""
    if not found:
        raise GateFailure(f"no evidence: {what}")


def evicted(run: Run) -> int:
    """Experts that left the cache over the whole run."""
    cache = run.metrics.cache
    return sum(cache.evicted_by_layer.values()) if cache is not None else 0


def hits(run: Run) -> int:
    """Experts that were routed to after the prompt and were in the cache."""
    return run.metrics.generated.n_hits


def used_ahead(run: Run) -> int:
    """Experts that were read ahead and then routed to."""
    return run.metrics.prefill.n_ahead_used + run.metrics.generated.n_ahead_used


def handed_over(run: Run) -> int:
    """Reads that the kernel was given over the whole run."""
    return run.metrics.prefill.n_kernel_reads + run.metrics.generated.n_kernel_reads


def by_kernel(runs: Iterable[Run]) -> str:
    """How many reads the kernel was given, in words; some, where it can be given any.

    Raises:
        GateFailure: it could have been.
    """
    mine = [run for run in runs if run.held.kernel_reads]
    if not mine:
        return "no read for the kernel here"
    n = sum(map(handed_over, mine))
    need(n, "no read was handed over to the kernel")
    return f"{n} reads by the kernel"


def overlapped_mib(runs: Iterable[Run]) -> float:
    """MiB that were not waited for before compute went on; each run must have had some."""
    total = 0
    for run in runs:
        found = run.metrics.generated.overlapped_bytes
        need(found, "nothing overlapped")
        total += found
    return total / MIB
