"""A row of what a llama-server answered to a request. Pure."""

from __future__ import annotations

import dataclasses
import hashlib

from sluice.sweep import formulas
from sluice.sweep.arm import Arm
from sluice.sweep.row import Row
from sluice.targets.server_reply import Reply


def answered(blank: Row, arm: Arm, reply: Reply, *, is_greedy: bool) -> Row:
    """The row of an answer, or of one that failed by what cannot be true of it.

    Args:
        blank: names the request: identity, arm, workload, prompt, repeat.
        arm: that the server was started for.
        reply: what it answered.
        is_greedy: whether the text can be held against another arm's.
    """
    n_verify, n_undrafted = steps(arm, reply)
    offered, accepted = by_place(arm, reply)
    row = dataclasses.replace(
        blank,
        outcome="ok",
        error="",
        n_prompt=reply.prompt_n,
        prompt_s=reply.prompt_ms / 1e3,
        n_decoded=reply.decoded_n,
        n_drafted=reply.drafted,
        n_accepted=reply.accepted,
        n_verify=n_verify,
        n_undrafted=n_undrafted,
        offered_at=offered,
        accepted_at=accepted,
        effective_s=reply.predicted_ms / 1e3,
        text_sha256=hashlib.sha256(reply.text.encode()).hexdigest() if is_greedy else "",
    )
    if is_of_another(arm, reply):
        return dataclasses.replace(
            row, outcome="failed", error=f"the server drafted {reply.drafted} tokens, and the arm"
            f" is {arm.name}: it was started otherwise",
        )  # fmt: skip
    return row.checked()


def is_of_another(arm: Arm, reply: Reply) -> bool:
    """Whether the counts cannot be those of a server that drafts as the arm says."""
    if not arm.mtp:
        return reply.drafted > 0
    if not reply.drafted:
        # Only a threshold, or the end of the text, keeps it from drafting.
        return arm.is_fixed and not arm.n_min and reply.decoded_n > arm.n_max
    # What the end of the text cut off hides as many steps at most.
    steps_at_most = formulas.steps_of_counts(reply.decoded_n, reply.accepted) + arm.n_max
    return reply.drafted > arm.n_max * (reply.verify_steps or steps_at_most)


def steps(arm: Arm, reply: Reply) -> tuple[int | None, int | None]:
    """Steps that verified a draft, and steps that did not.

    Where the server does not count them, they follow at a fixed length: every step gives its
    accepted drafts and a token more, and every draft but the last is of the full length.
    """
    if reply.verify_steps is not None:
        return reply.verify_steps, reply.undrafted_steps
    if not arm.is_fixed or arm.n_min:
        return None, None
    n_verify = formulas.steps_of_fixed(reply.drafted, arm.n_max)
    n_steps = formulas.steps_of_counts(reply.decoded_n, reply.accepted)
    return n_verify, max(n_steps - n_verify, 0)


def by_place(arm: Arm, reply: Reply) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Drafts that reached each place, and tokens accepted there; ``None`` where not told.

    A server counts the accepted ones only. How many drafts reached a place follows at a fixed
    length, if all drafts but one were of the full length.
    """
    given, n_verify = reply.accepted_by_position, reply.verify_steps
    if given is None or not n_verify or not arm.is_fixed or len(given) > arm.n_max:
        return None, None
    n_full, rest = divmod(reply.drafted, arm.n_max)
    if n_full + (rest > 0) != n_verify:
        return None, None
    accepted = given + (0,) * (arm.n_max - len(given))
    offered = tuple(n_full + (place < rest) for place in range(arm.n_max))
    if any(map(int.__gt__, accepted, offered)):
        return None, None
    return offered, accepted
