"""Speculative decoding: draft, verify in one decode, accept the matching prefix, roll back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from sluice.decoding.head import Head
from sluice.decoding.step import Step, greedy
from sluice.llama.context import Context
from sluice.seams import Seams
from sluice.telemetry.evidence import Group
from sluice.telemetry.metrics import Metrics

Propose = Callable[[int, int], list[int]]
"""Drafts after the confirmed token (first argument) at a position (second)."""


def speculative_steps(
    target: Context,
    head: Head | None,
    *,
    last_row: int,
    position: int,
    propose: Propose,
    draft_min: int,
    catch_up_batch: bool,
    seams: Seams,
    metrics: Metrics,
) -> Iterator[Step]:
    """Endless steps of ``target``, several a verify decode.

    The width of a verify decode is the draft's, also when fewer tokens are still wanted: the
    width selects the kernels, and a narrower last group would be other arithmetic.

    Args:
        target: holds the prompt; its last decode had logits in row ``last_row``.
        head: catches up on what is accepted; ``None`` where drafts come from elsewhere.
        position: of the first generated token.
        propose: the source of drafts.
        draft_min: a draft shorter than this is thrown away whole.
        catch_up_batch: let the head catch up on the whole verify batch and drop the rejected
            tail again (the control), instead of on the accepted prefix.
        seams: see :mod:`sluice.seams`.
        metrics: charged with every decode, draft and catch-up.
    """
    logits = target.logits(last_row)
    confirmed = greedy(logits)
    yield Step(confirmed, logits)
    step = 1
    while True:
        began = time.perf_counter()
        drafted = propose(confirmed, position)
        if len(drafted) < draft_min:
            drafted = []
        drafted_at = time.perf_counter()
        batch = [confirmed, *drafted]
        target.decode(batch, position, outputs="all")
        metrics.decode_s += time.perf_counter() - drafted_at
        metrics.draft_s += drafted_at - began
        metrics.n_decodes += 1

        matching = _matching_prefix(target, drafted)
        n_accepted = min(max(seams.accepted(matching, len(drafted)), 0), len(drafted))
        accepted = drafted[:n_accepted]
        metrics.n_drafted += len(drafted)
        metrics.n_accepted += n_accepted

        logits = target.logits(seams.logits_row(n_accepted, len(batch)))
        confirmed = greedy(logits)
        group: Group | None = Group(step, tuple(drafted), tuple(accepted))
        for row, token in enumerate(accepted):
            yield Step(token, target.logits(row), group)
            group = None
        yield Step(confirmed, logits, group)
        step += n_accepted + 1

        n_kept = n_accepted + 1
        if head is not None:
            began = time.perf_counter()
            hidden = target.hidden_rows(len(batch))
            n_rows = len(batch) if catch_up_batch else n_kept
            n_rows = seams.catch_up_rows(n_rows, len(batch))
            head.follow(batch[:n_rows], position, hidden)
            if n_rows > n_kept and seams.drops_surplus():
                head.context.remove_from(position + n_kept)
            head.hidden = hidden[seams.hidden_row(n_accepted)]
            metrics.catch_up_s += time.perf_counter() - began
        n_rejected = len(drafted) - n_accepted
        if n_rejected and seams.rolls_back(n_rejected):
            target.remove_from(position + n_kept)
        position += n_kept


def _matching_prefix(target: Context, drafted: Sequence[int]) -> int:
    for row, token in enumerate(drafted):
        if greedy(target.logits(row)) != token:
            return row
    return len(drafted)
