"""The control of a difference: the same two runs with every width-dependent kernel off.

Under ``--numerics invariant`` a row has the same bits however many are computed with it, so
two runs that differ only in how their rows are batched must answer alike there. If they do,
the difference was arithmetic. If they do not, what is left is located without the arithmetic
that would hide it.
"""

from __future__ import annotations

from collections.abc import Sequence

from sluice.errors import SluiceError
from sluice.telemetry.evidence import Evidence, Group
from sluice.triage.compare import first_moved, first_token
from sluice.triage.finding import Control
from sluice.triage.reruns import Reruns
from sluice.triage.side import Outcome, Side


def control(a: Side, b: Side, *, same_loop: bool) -> Control:
    """Run both sides under ``--numerics invariant``, and look where they still differ."""
    sides = [
        one.with_config(one.config.replace(numerics="invariant", flash_attn="auto"), one.off)
        for one in (a, b)
    ]
    try:
        outcomes = [side.run() for side in sides]
    except SluiceError as err:
        return Control(None, f"not run: {err}")
    failed = next((one.failed for one in outcomes if one.failed is not None), None)
    if failed is not None:
        return Control(None, f"ended with an error: {failed}")
    left, right = (one.evidence for one in outcomes)
    step = _first(left, right)
    if step is None:
        n = min(len(left.ids), len(right.ids))
        return Control(True, f"with every width-dependent kernel off on both sides, {n} tokens"
                             " and their logits are the same, bit for bit")  # fmt: skip
    return _located(sides, outcomes, step, same_loop)


def last_group(groups: Sequence[Group], step: int) -> Group | None:
    """The verify decode before the one that gave ``step``."""
    before = [g for g in groups if g.step + len(g.accepted) < step]
    return before[-1] if before else None


def spelled(group: Group) -> str:
    """A group in words."""
    n_rejected = len(group.drafted) - len(group.accepted)
    return (
        f"the group at step {group.step}, which accepted {len(group.accepted)} and rejected"
        f" {n_rejected} of {len(group.drafted)} drafts"
    )


def _first(a: Evidence, b: Evidence) -> int | None:
    steps = [step for step in (first_token(a, b), first_moved(a, b)) if step is not None]
    return min(steps, default=None)


def _located(
    sides: Sequence[Side], outcomes: Sequence[Outcome], step: int, same_loop: bool
) -> Control:
    a, b = sides
    groups = outcomes[1].evidence.groups or outcomes[0].evidence.groups
    inside = next((g for g in groups if g.step <= step <= g.step + len(g.accepted)), None)
    width = len(inside.drafted) if inside is not None else 0
    reruns = Reruns(a, b, outcomes[0], outcomes[1], same_loop=same_loop)
    reruns.run(min(step + width + 2, max(len(one.evidence.ids) for one in outcomes)))
    group = last_group(groups, step)
    return Control(
        agrees=False,
        words=f"with every width-dependent kernel off on both sides they still differ, from step"
        f" {step} on",
        step=step,
        localisation=reruns.localisation,
        after=spelled(group) if group is not None else None,
        n_rejected=len(group.drafted) - len(group.accepted) if group is not None else 0,
    )
