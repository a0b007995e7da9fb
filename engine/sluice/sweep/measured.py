"""A row of what Sluice's own engine left of a request. Pure."""

from __future__ import annotations

import dataclasses

from sluice.sweep.arm import Arm
from sluice.sweep.row import Counts, Row
from sluice.telemetry.evidence import Evidence
from sluice.telemetry.metrics import Metrics


def measured(
    blank: Row, arm: Arm, evidence: Evidence, metrics: Metrics, *, is_cold: bool | None = None
) -> Row:
    """The row of a run that went through, or of one that failed by what cannot be true of it.

    Args:
        blank: names the request: identity, arm, workload, prompt, repeat.
        arm: that was run.
        evidence, metrics: of the run, finished.
        is_cold: as in :class:`Row`; of streamed arms only.
    """
    counts = Counts.of(evidence.groups, arm.n_max)
    is_greedy = evidence.config.get("temp") == 0
    reads = metrics.generated
    # The token that ends a generation is no part of the text, but a decode gave it.
    n_given = len(evidence.ids) + (evidence.stop.reason == "eog")
    return dataclasses.replace(
        blank,
        outcome="ok",
        error="",
        n_prompt=metrics.n_prompt,
        prompt_s=metrics.prefill_s,
        n_decoded=max(n_given - 1, 0),
        n_drafted=counts.n_drafted,
        n_accepted=counts.n_accepted,
        n_verify=counts.n_verify,
        n_undrafted=metrics.n_decodes - counts.n_verify,
        offered_at=counts.offered_at if arm.mtp else None,
        accepted_at=counts.accepted_at if arm.mtp else None,
        decode_s=metrics.decode_s,
        effective_s=metrics.decode_s + metrics.draft_s + metrics.catch_up_s,
        text_sha256=evidence.text_sha256 if is_greedy else "",
        read_bytes=reads.read_bytes if arm.is_streamed else None,
        stall_s=reads.stall_s if arm.is_streamed else None,
        is_cold=is_cold,
    ).checked()
