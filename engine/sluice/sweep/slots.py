"""What one more draft slot costs a step, and what it has to add. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from sluice.sweep import formulas
from sluice.sweep.request import by_prompt, step_time_s, step_tokens, token_time_s
from sluice.sweep.row import Row


@dataclass(frozen=True, slots=True)
class SlotCost:
    """What one more draft slot costs a step, between a shorter arm and this one.

    ``against`` is the shorter arm's name, ``cost_s`` the time, ``share`` that over the token
    time with MTP off, ``gain`` the tokens per step that each slot did add, and ``gain_to_pay``
    what it had to add at the shorter arm's rate.
    """

    against: str
    cost_s: float
    share: float | None
    gain: float
    gain_to_pay: float

    @property
    def pays(self) -> bool:
        """Whether the slots added more than they had to."""
        return self.gain > self.gain_to_pay


def slot_cost(
    against: str, longer: Sequence[Row], shorter: Sequence[Row], n_slots: float, off: Sequence[Row]
) -> SlotCost | None:
    """Cost and gain of each of the slots between two arms, over the prompts that both have.

    Args:
        against: name of the shorter arm.
        longer, shorter: their rows on one workload.
        n_slots: how many slots lie between them.
        off: rows with MTP off, for the token time.

    Returns:
        ``None`` where the arms share no prompt, or steps are not known.
    """
    times = [by_prompt(rows, step_time_s) for rows in (longer, shorter)]
    tokens = [by_prompt(rows, step_tokens) for rows in (longer, shorter)]
    shared = [prompt for prompt in times[0] if prompt in times[1]]
    if not shared:
        return None
    longer_s, shorter_s = (statistics.fmean(by[p] for p in shared) for by in times)
    longer_t, shorter_t = (statistics.fmean(by[p] for p in shared) for by in tokens)
    cost_s = formulas.slot_cost_s(longer_s, shorter_s, n_slots)
    gain = formulas.ratio(longer_t - shorter_t, n_slots)
    rate = formulas.ratio(shorter_t, shorter_s)
    if cost_s is None or gain is None or rate is None:
        return None
    tokens_off = [t for p, t in by_prompt(off, token_time_s).items() if p in shared]
    share = formulas.slot_share(cost_s, statistics.fmean(tokens_off)) if tokens_off else None
    return SlotCost(against, cost_s, share, gain, formulas.gain_to_pay(cost_s, rate))
