"""The first difference between two runs, in words."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from sluice.telemetry.evidence import Evidence, Group
from sluice_gates.gate import Level


def difference(
    left: Evidence, right: Evidence, level: Level, *, prefix: bool = False
) -> str | None:
    """The first difference at ``level``, or ``None``.

    Args:
        left, right: two runs; logits imply ids, ids imply text, "drafts" compares the groups.
        level: how closely.
        prefix: ``left`` may be shorter, and then its end is not compared.
    """
    if left.prompt_ids != right.prompt_ids:
        return f"prompts of {len(left.prompt_ids)} / {len(right.prompt_ids)} tokens"
    if level == "drafts":
        return group_difference(left.groups, right.groups)
    if level != "text":
        for step in range(min(len(left.ids), len(right.ids))):
            if left.ids[step] != right.ids[step] or (
                level == "logits" and left.logits_sha256[step] != right.logits_sha256[step]
            ):
                return at_step(left, right, step)
        if len(left.ids) != len(right.ids) and not (prefix and len(left.ids) < len(right.ids)):
            return f"{len(left.ids)} / {len(right.ids)} tokens, equal up to there"
    if prefix and len(left.ids) < len(right.ids):
        return None if right.text.startswith(whole(left.text)) else "texts that are no prefix"
    if left.text != right.text:
        place = first_differing(left.text, right.text)
        return f"texts of {len(left.text)} / {len(right.text)} characters, from {place} on"
    if level == "logits" and left.stop != right.stop:
        return f"the end: {_end(left)} / {_end(right)}"
    return None


def at_step(left: Evidence, right: Evidence, step: int) -> str:
    """What two runs have at one step."""
    return (
        f"step {step}: token {left.ids[step]} / {right.ids[step]},"
        f" logits {left.logits_sha256[step][:8]} / {right.logits_sha256[step][:8]},"
        f" top-2 margin {left.top2[step].margin:.6g} / {right.top2[step].margin:.6g}"
    )


def group_difference(left: list[Group], right: list[Group]) -> str | None:
    """The first group that was drafted or accepted otherwise."""
    for index, (mine, other) in enumerate(zip(left, right, strict=False)):
        if mine != other:
            return (
                f"group {index} at step {mine.step} / {other.step}: drafted"
                f" {list(mine.drafted)} / {list(other.drafted)}, accepted"
                f" {len(mine.accepted)} / {len(other.accepted)}"
            )
    if len(left) != len(right):
        return f"{len(left)} / {len(right)} groups, equal up to there"
    return None


def first_differing(left: str, right: str) -> int:
    """Index of the first character that differs; the shorter length where one is a prefix."""
    for index, (mine, other) in enumerate(zip(left, right, strict=False)):
        if mine != other:
            return index
    return min(len(left), len(right))


def first_step(left: Evidence, right: Evidence) -> int | None:
    """The first step whose token differs, or ``None`` where one run is a prefix of the other."""
    for step, (mine, other) in enumerate(zip(left.ids, right.ids, strict=False)):
        if mine != other:
            return step
    return None


def whole(text: str) -> str:
    """``text`` without the replacement characters of an unfinished last character."""
    return text.rstrip("\ufffd")


def digest(runs: Iterable[Evidence]) -> str:
    """SHA-256 over the logits hashes of every step of ``runs``."""
    total = hashlib.sha256()
    for evidence in runs:
        for row in evidence.logits_sha256:
            total.update(bytes.fromhex(row))
    return total.hexdigest()


def _end(evidence: Evidence) -> str:
    stop = evidence.stop
    if stop.logits_sha256 is None:
        return stop.reason
    return f"{stop.reason} {stop.id} from logits {stop.logits_sha256[:8]}"
