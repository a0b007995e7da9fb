"""Compare two runs by their evidence alone: no model, no llama.cpp.

The order is that of causes: configuration, prompt, tokens, text, drafts, logits, end. Routed
experts and expert bytes are not in an evidence file; :mod:`sluice.triage.localise` finds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from sluice.telemetry.evidence import Evidence, Fingerprint
from sluice.triage import ulp
from sluice.triage.finding import Choice, Difference, Setting, StepTrace

Pieces = Mapping[int, str]

IGNORED = frozenset({"model"})
"""Settings that say nothing by themselves: the fingerprint says which model it is."""


def differences(a: Evidence, b: Evidence, pieces: Pieces | None = None) -> tuple[Difference, ...]:
    """The first difference of every kind, in the order of comparison; empty for equal runs."""
    names = pieces or {}
    found = (
        configuration(a, b),
        _prompt(a, b),
        _ids(a, b, names),
        _text(a, b),
        _groups(a, b),
        _logits(a, b, names),
        _end(a, b),
    )
    return tuple(one for one in found if one is not None)


def decisive(found: tuple[Difference, ...]) -> Difference | None:
    """The difference that a report leads with: the first that is not of the configuration."""
    return next((d for d in found if d.kind != "config"), found[0] if found else None)


def settings(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[Setting, ...]:
    """Settings that differ, in the order of ``a``."""
    names = [*a, *(name for name in b if name not in a)]
    return tuple(
        Setting(name, a.get(name), b.get(name))
        for name in names
        if name not in IGNORED and a.get(name) != b.get(name)
    )


def fingerprints(a: Fingerprint, b: Fingerprint) -> tuple[Setting, ...]:
    """Parts of the fingerprint that differ."""
    return tuple(
        Setting(f.name, getattr(a, f.name), getattr(b, f.name))
        for f in fields(Fingerprint)
        if getattr(a, f.name) != getattr(b, f.name)
    )


def configuration(a: Evidence, b: Evidence) -> Difference | None:
    """Settings and parts of the fingerprint that differ, as one difference."""
    found = fingerprints(a.fingerprint, b.fingerprint) + settings(a.config, b.config)
    if not found:
        return None
    words = "; ".join(f"{s.name}: {s.a} / {s.b}" for s in found)
    return Difference("config", words, settings=found)


def first_moved(a: Evidence, b: Evidence) -> int | None:
    """The first step whose logits differ, while both have one and are on the same tokens."""
    for step, (mine, other) in enumerate(zip(a.logits_sha256, b.logits_sha256, strict=False)):
        if mine != other:
            return step
        if step < min(len(a.ids), len(b.ids)) and a.ids[step] != b.ids[step]:
            return None  # beyond here other tokens are computed, and nothing is comparable
    return None


def first_token(a: Evidence, b: Evidence) -> int | None:
    """The first step whose token differs; ``None`` where one run is a prefix of the other."""
    for step, (mine, other) in enumerate(zip(a.ids, b.ids, strict=False)):
        if mine != other:
            return step
    return None


def choice(evidence: Evidence, step: int, pieces: Pieces) -> Choice | None:
    """What a run had at a step, as far as its evidence goes."""
    if step >= len(evidence.ids):
        return None
    token = evidence.ids[step]
    if step >= len(evidence.top2):
        return Choice(token, pieces.get(token))
    top = evidence.top2[step]
    known = all(i in pieces for i in top.ids)
    return Choice(
        id=token,
        text=pieces.get(token),
        ids=top.ids,
        texts=(pieces[top.ids[0]], pieces[top.ids[1]]) if known else None,
        logits=top.logits,
        margin=top.margin,
        margin_ulp=ulp.between(*top.logits),
    )


def top2_movement(a: Evidence, b: Evidence, step: int) -> float | None:
    """A lower bound of a step's movement: that of the logits that both sides recorded."""
    if step >= min(len(a.top2), len(b.top2)):
        return None
    left = dict(zip(a.top2[step].ids, a.top2[step].logits, strict=True))
    right = dict(zip(b.top2[step].ids, b.top2[step].logits, strict=True))
    shared = [abs(left[i] - right[i]) for i in left if i in right]
    return max(shared) if shared else None


def traces(a: Evidence, b: Evidence, pieces: Pieces | None = None) -> tuple[StepTrace, ...]:
    """Both runs, step by step. After the first other token nothing is said to have moved."""
    names = pieces or {}
    parted = first_token(a, b)
    rows = []
    for step in range(max(len(a.ids), len(b.ids))):
        left, right = choice(a, step, names), choice(b, step, names)
        comparable = (
            step < min(len(a.logits_sha256), len(b.logits_sha256))
            and a.prompt_ids == b.prompt_ids
            and (parted is None or step <= parted)
        )
        rows.append(
            StepTrace(
                step,
                left.id if left else None,
                right.id if right else None,
                left.text if left else None,
                right.text if right else None,
                left.margin if left else None,
                right.margin if right else None,
                a.logits_sha256[step] != b.logits_sha256[step] if comparable else None,
            )
        )
    return tuple(rows)


def _prompt(a: Evidence, b: Evidence) -> Difference | None:
    if a.prompt_ids == b.prompt_ids:
        return None
    at = _first(a.prompt_ids, b.prompt_ids)
    words = (
        f"prompts of {len(a.prompt_ids)} / {len(b.prompt_ids)} tokens, different from"
        f" position {at} on"
    )
    return Difference("prompt", words, position=at)


def _ids(a: Evidence, b: Evidence, pieces: Pieces) -> Difference | None:
    step = first_token(a, b)
    if step is None:
        return None
    left, right = choice(a, step, pieces), choice(b, step, pieces)
    assert left is not None
    assert right is not None
    return Difference(
        "ids",
        f"step {step}: token {_spelled(left)} / {_spelled(right)}",
        step=step,
        position=len(a.prompt_ids) + step,
        character=_first(a.text, b.text),
        a=left,
        b=right,
        movement=top2_movement(a, b, step),
        first_moved_step=first_moved(a, b),
    )


def _text(a: Evidence, b: Evidence) -> Difference | None:
    shorter = min(len(a.ids), len(b.ids))
    if a.text == b.text or a.ids[:shorter] != b.ids[:shorter] or len(a.ids) != len(b.ids):
        return None
    at = _first(a.text, b.text)
    words = f"equal tokens, texts of {len(a.text)} / {len(b.text)} characters, from {at} on"
    return Difference("text", words, character=at)


def _groups(a: Evidence, b: Evidence) -> Difference | None:
    """Drafts are compared where both runs drafted in the same way."""
    same = all(a.config.get(n) == b.config.get(n) for n in ("mtp", "draft", "draft_min",
                                                            "mtp_p_min"))  # fmt: skip
    if not same or a.groups == b.groups:
        return None
    for index, (mine, other) in enumerate(zip(a.groups, b.groups, strict=False)):
        if mine != other:
            words = (
                f"group {index} at step {mine.step} / {other.step}: drafted"
                f" {list(mine.drafted)} / {list(other.drafted)}, accepted"
                f" {len(mine.accepted)} / {len(other.accepted)}"
            )
            step = min(mine.step, other.step)
            return Difference("groups", words, step=step, position=len(a.prompt_ids) + step)
    if len(a.ids) != len(b.ids):
        return None  # a longer run has more groups
    return Difference("groups", f"{len(a.groups)} / {len(b.groups)} groups, equal up to there")


def _logits(a: Evidence, b: Evidence, pieces: Pieces) -> Difference | None:
    step = first_moved(a, b)
    if step is None or a.prompt_ids != b.prompt_ids:
        return None
    movement = top2_movement(a, b, step)
    by = "" if movement is None else f", by {movement:.3g} at least"
    return Difference(
        "logits",
        f"step {step}: the logits moved{by}",
        step=step,
        position=len(a.prompt_ids) + step,
        character=_character(a, step, pieces),
        a=choice(a, step, pieces),
        b=choice(b, step, pieces),
        movement=movement,
        first_moved_step=step,
    )


def _end(a: Evidence, b: Evidence) -> Difference | None:
    if first_token(a, b) is not None:
        return None
    if len(a.ids) != len(b.ids):
        step = min(len(a.ids), len(b.ids))
        words = (
            f"{len(a.ids)} / {len(b.ids)} tokens, equal up to there; ended by"
            f" {a.stop.reason} / {b.stop.reason}"
        )
        return Difference("end", words, step=step, position=len(a.prompt_ids) + step)
    if (a.stop.reason, a.stop.id) != (b.stop.reason, b.stop.id):
        return Difference("end", f"ended by {a.stop.reason} {a.stop.id} / {b.stop.reason}"
                                 f" {b.stop.id}", step=len(a.ids))  # fmt: skip
    if a.stop.logits_sha256 != b.stop.logits_sha256:
        return Difference("logits", "the logits of the end moved", step=len(a.ids),
                          first_moved_step=len(a.ids))  # fmt: skip
    return None


def _character(evidence: Evidence, step: int, pieces: Pieces) -> int | None:
    before = evidence.ids[:step]
    if not all(i in pieces for i in before):
        return None
    return sum(len(pieces[i]) for i in before)


def _spelled(one: Choice) -> str:
    return f"{one.id}" if one.text is None else f"{one.id} {one.text!r}"


def _first(left: Any, right: Any) -> int:
    for index, (mine, other) in enumerate(zip(left, right, strict=False)):
        if mine != other:
            return index
    return min(len(left), len(right))
