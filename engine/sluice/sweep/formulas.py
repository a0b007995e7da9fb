"""The formulas of a sweep, one function each. Pure; times in seconds, rates in tokens a second.

docs/sweep.md says what each means. A figure whose divisor is nothing is ``None``, not 0.
"""

from __future__ import annotations

MIB = 1 << 20


def ratio(part: float, whole: float) -> float | None:
    """``part / whole``, ``None`` where ``whole`` is 0."""
    return part / whole if whole else None


def acceptance(n_accepted: float, n_drafted: float) -> float | None:
    """``accepted / drafted``: the share of the drafted tokens that the model accepted."""
    return ratio(n_accepted, n_drafted)


def mean_len(n_accepted: float, n_verify: float) -> float | None:
    """``1 + accepted / verify steps``; steps that verified nothing are not counted."""
    share = ratio(n_accepted, n_verify)
    return None if share is None else 1 + share


def tokens_per_step(n_decoded: float, n_steps: float) -> float | None:
    """``tokens / steps``: what one pass of the model gives, all steps counted."""
    return ratio(n_decoded, n_steps)


def acceptance_of_fixed(step_tokens: float, n_max: int) -> float:
    """``(tokens per step - 1) / n``: acceptance where every draft is ``n_max`` tokens long."""
    return (step_tokens - 1) / n_max


def step_tokens_of_fixed(accepted_share: float, n_max: int) -> float:
    """``1 + acceptance × n``: the inverse of :func:`acceptance_of_fixed`."""
    return 1 + accepted_share * n_max


def steps_of_fixed(n_drafted: int, n_max: int) -> int:
    """``drafted / n``, rounded up: verify steps of a fixed length, whose last draft may be shorter.

    For a target that tells how much was drafted, but not in how many steps.
    """
    return -(-n_drafted // n_max)


def steps_of_counts(n_decoded: int, n_accepted: int) -> int:
    """``tokens - accepted``: every step gives its accepted drafts and one token more.

    Exact unless the end of the text cut the last step's tokens short; then too small by what was
    cut, which is at most the draft length.
    """
    return max(n_decoded - n_accepted, 0)


def tok_s(n_decoded: float, seconds: float) -> float | None:
    """``tokens / seconds``: of decode time alone, or (effective) of all the time it took."""
    return ratio(n_decoded, seconds)


def step_time_s(step_tokens: float, rate: float) -> float | None:
    """``tokens per step / tok/s``: the time of one step, drafting included.

    ``rate`` is the effective one. With MTP off a step is one token, and this is the token time.
    """
    return ratio(step_tokens, rate)


def slot_cost_s(step_s: float, shorter_s: float, n_slots: float) -> float | None:
    """``(step time - shorter step time) / slots between``: what one more draft slot costs a step.

    Against MTP off, ``shorter_s`` is the token time and ``n_slots`` the draft length; against the
    next shorter length measured, it is that one's step time and the difference in length.
    """
    return ratio(step_s - shorter_s, n_slots)


def slot_share(cost_s: float, token_off_s: float) -> float | None:
    """``slot cost / token time with MTP off``: the cost as a share of a token."""
    return ratio(cost_s, token_off_s)


def gain_to_pay(cost_s: float, rate: float) -> float:
    """``slot cost × tok/s``: the tokens per step that one more slot has to add to pay.

    A step of T tokens and S seconds runs at T / S. One more slot makes it (T + d) / (S + c),
    which is faster if and only if d > c × T / S: the gain must exceed the slot's cost times the
    present rate, or, the same thing, the cost over the present time of a token.
    """
    return cost_s * rate


def mib_per_token(read_bytes: float, n_tokens: float) -> float | None:
    """``bytes / 2**20 / tokens``."""
    return ratio(read_bytes / MIB, n_tokens)
