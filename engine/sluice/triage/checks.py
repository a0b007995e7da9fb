"""What one run's evidence says against itself: incomplete, or not what its own logits give."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from sluice.telemetry.evidence import Evidence

LONGEST_PERIOD = 4
"""Tokens of a phrase whose repetition counts as running away."""

REPEATS = 8
"""How often a phrase has to come in a row for that."""


def incomplete(evidence: Evidence) -> list[str]:
    """Sentences on evidence that cannot be what a run has written."""
    found = []
    n = len(evidence.ids)
    for what, entries in (("logits_sha256", evidence.logits_sha256), ("top2", evidence.top2)):
        if len(entries) != n:
            found.append(f"{n} tokens but {len(entries)} entries in {what}")
    asked = evidence.config.get("n")
    if evidence.stop.reason == "n" and isinstance(asked, int) and n < asked:
        found.append(f"ended by the limit of {asked} tokens, but holds {n}")
    whole = "\ufffd" not in evidence.text
    if whole and hashlib.sha256(evidence.text.encode()).hexdigest() != evidence.text_sha256:
        found.append("the text is not the text that was hashed")
    profile = evidence.config.get("numerics", evidence.fingerprint.numerics)
    if profile != evidence.fingerprint.numerics:
        found.append(f"settings say numerics {profile}, the fingerprint says"
                     f" {evidence.fingerprint.numerics}")  # fmt: skip
    if evidence.config.get("mtp") and n > 1:
        last = evidence.groups[-1] if evidence.groups else None
        end = 1 if last is None else last.step + len(last.accepted) + 1
        if end < n:
            found.append(f"groups account for {end} of {n} tokens")
    return found


def illogical(evidence: Evidence, asked_n: int | None = None) -> list[str]:
    """Sentences on tokens that a right decode loop would not have given, from these logits.

    Args:
        evidence: complete, see :func:`incomplete`.
        asked_n: how many tokens were asked for, where that is known from elsewhere.
    """
    found = [*_limits(evidence, asked_n)]
    if not evidence.config.get("temp"):
        for step, (token, top) in enumerate(zip(evidence.ids, evidence.top2, strict=False)):
            if token != top.ids[0]:
                found.append(
                    f"step {step}: took token {token}, but the largest logit of its row is token"
                    f" {top.ids[0]}'s, by {top.margin:.3g}"
                )
                break
    found += _groups(evidence)
    return found


def repeated(a: Sequence[int], b: Sequence[int]) -> list[str]:
    """Sentences on how ``b``'s tokens are ``a``'s with one dropped or one there twice."""
    step = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    if step is None:
        return []
    enough = 3
    tail_a, tail_b = list(a[step:]), list(b[step:])
    n = min(len(tail_a), len(tail_b)) - 1
    if step > 0 and b[step] == b[step - 1] and n >= enough and tail_b[1 : n + 1] == tail_a[:n]:
        return [f"step {step}: token {b[step]} is there twice, and what follows is the other"
                " side's text"]  # fmt: skip
    if n >= enough and tail_b[:n] == tail_a[1 : n + 1]:
        return [f"step {step}: token {a[step]} is missing, and what follows is the other side's"
                " text"]  # fmt: skip
    return []


def runaway(ids: Sequence[int]) -> str | None:
    """A sentence where the run ends in one phrase over and over."""
    for period in range(1, LONGEST_PERIOD + 1):
        length = period * REPEATS
        tail = list(ids[-length:])
        if len(tail) == length and tail == tail[:period] * REPEATS:
            return f"the last {length} tokens are {tail[:period]} over and over"
    return None


def _limits(evidence: Evidence, asked_n: int | None) -> Iterator[str]:
    limit = asked_n if asked_n is not None else evidence.config.get("n")
    if isinstance(limit, int) and len(evidence.ids) > limit:
        yield f"{len(evidence.ids)} tokens were handed out where {limit} were asked for"
    stop = evidence.stop
    if stop.id is not None and evidence.ids and evidence.ids[-1] == stop.id and (
        stop.logits_sha256 == evidence.logits_sha256[-1]
    ):  # fmt: skip
        yield f"the end-of-generation token {stop.id} is among the tokens, beyond the text"


def _groups(evidence: Evidence) -> list[str]:
    found: list[str] = []
    ids, expected = evidence.ids, 1
    for index, group in enumerate(evidence.groups):
        n = len(group.accepted)
        where = f"group {index} at step {group.step}"
        if group.step != expected:
            found.append(f"{where}: the tokens before it end at step {expected}")
        if group.accepted != group.drafted[:n]:
            found.append(f"{where}: accepted what was not drafted")
        confirmed = group.step + n
        taken = tuple(ids[group.step : confirmed])
        if taken != group.accepted[: len(taken)]:
            found.append(f"{where}: accepted {list(group.accepted)}, but the tokens there are"
                         f" {list(taken)}")  # fmt: skip
        if n < len(group.drafted) and confirmed < len(ids) and ids[confirmed] == group.drafted[n]:
            found.append(
                f"{where}: accepted {n} drafts, but the target agreed with the next one,"
                f" {group.drafted[n]}, too"
            )
        if found:
            return found
        expected = confirmed + 1
    return found
