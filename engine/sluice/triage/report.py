"""A finding as a screen of text. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from sluice.triage.finding import (
    CLASSES,
    Attribution,
    Choice,
    Difference,
    Finding,
    Localisation,
    NodeDifference,
    Setting,
    SliceDifference,
    Subject,
)

WIDTH = 100
_MOST = 4
"""How many of a kind are listed before the rest is counted."""


def summary(finding: Finding) -> str:
    """One line: the class, where, and through what."""
    parts: list[str] = [finding.classification.name]
    if finding.difference is not None:
        parts.append(place(finding.difference))
    located = finding.localisation
    if located is not None and located.first is not None:
        parts.append(f"first in {located.first.where}")
    found = finding.attribution
    if found is not None and found.flips:
        through = f" through {', '.join(found.kernels)}" if found.kernels else ""
        parts.append(f"turned by {', '.join(found.flips)}{through}")
    return "; ".join(parts)


def lines(finding: Finding) -> list[str]:
    """Lines without line ends, wrapped at :data:`WIDTH` columns."""
    verdict = finding.classification
    out = [*_wrapped(f"{verdict.name}: {CLASSES[verdict.name]}")]
    for sentence in verdict.evidence:
        out += _wrapped(sentence, "  - ")
    out.append("")
    for name, subject in (("A", finding.a), ("B", finding.b)):
        out += _wrapped(_subject(subject), f"{name}  ")
    if finding.difference is not None:
        out += ["", *_difference(finding.difference)]
    others = [d for d in finding.differences if d is not finding.difference]
    if others:
        out.append("also different:")
        for other in others:
            out += _wrapped(f"{other.kind}: {other.words}", "  ")
            out += _settings(other.settings)
    if finding.localisation is not None:
        out += ["", *_localisation(finding.localisation)]
    if finding.attribution is not None:
        out += ["", *_attribution(finding.attribution)]
    for note in finding.notes:
        out += _wrapped(note, "note: ")
    return out


def place(found: Difference) -> str:
    """Where a difference is, in words: ``ids at step 31, position 47, character 151``."""
    where = [f"{name} {value}" for name, value in (
        ("step", found.step), ("position", found.position), ("character", found.character),
    ) if value is not None]  # fmt: skip
    return f"{found.kind} at {', '.join(where)}" if where else found.kind


def node(found: NodeDifference) -> str:
    """One differing node in words: operation, types, shapes, how far apart."""
    weight = f" of {found.weight} ({found.weight_type})" if found.weight else ""
    parts = [
        f"{found.where}: {found.op}{weight}, {found.type_name}",
        f"shapes {_shape(found.shape_a)} / {_shape(found.shape_b)}",
        f"{_rows(found.rows_a)} / {_rows(found.rows_b)} in the decode",
        f"position {found.position}",
    ]
    if found.n_differing is not None:
        parts.append(f"{found.n_differing} of {found.n_values} values differ")
    if found.max_ulp is not None:
        parts.append(f"by {found.max_ulp} ulp at most")
    if found.max_abs is not None:
        parts.append(f"({found.max_abs:.3g})")
    if found.context != "target":
        parts.append(f"in the {found.context}'s graph")
    return ", ".join(parts).replace("at most, (", "at most (")


def _subject(subject: Subject) -> str:
    failed = f"; ended by: {subject.failed}" if subject.failed else ""
    again = ", run here" if subject.ran else ""
    return f"{subject.label} ({subject.n_tokens} tokens{again}){failed}"


def _difference(found: Difference) -> Iterator[str]:
    yield from _wrapped(f"first difference: {place(found)}: {found.words}")
    yield from _settings(found.settings)
    for name, choice in (("A", found.a), ("B", found.b)):
        if choice is not None:
            yield from _wrapped(_choice(choice), f"  {name}  ")
    moved = []
    if found.movement is not None:
        ulp = f" ({found.movement_ulp} ulp)" if found.movement_ulp is not None else ""
        moved.append(f"at that step a logit moved by {found.movement:.3g}{ulp} at most")
    if found.first_moved_step is not None:
        moved.append(f"logits first moved at step {found.first_moved_step}")
    if moved:
        yield from _wrapped("; ".join(moved), "  ")


def _choice(choice: Choice) -> str:
    words = f"token {choice.id}{_quoted(choice.text)}"
    if choice.ids is None or choice.logits is None:
        return words
    texts = choice.texts or (None, None)
    second = f"{choice.ids[1]}{_quoted(texts[1])}"
    first, other = choice.logits
    out = f"{words}, logits {first:.7g} over {other:.7g} of {second}"
    if choice.margin is not None:
        ulp = f" ({choice.margin_ulp} ulp)" if choice.margin_ulp is not None else ""
        out += f", margin {choice.margin:.3g}{ulp}"
    return out


def _settings(settings: tuple[Setting, ...]) -> list[str]:
    return [
        line for s in settings[:_MOST] for line in _wrapped(f"{s.name}: {s.a} / {s.b}", "    ")
    ] + _rest(len(settings), "settings")


def _localisation(found: Localisation) -> Iterator[str]:
    if found.first is None:
        yield from _wrapped(f"no node differs: {found.note or _compared(found)}")
    else:
        yield from _wrapped(f"first node: {node(found.first)}")
        yield from _wrapped(
            f"last that agreed: {found.last_agreed or 'none'}; {_compared(found)}", "  "
        )
    if found.observing_changed:
        yield from _wrapped(f"observing changed something: {found.observing_changed}", "  ")
    for one in found.slices[:_MOST]:
        yield from _wrapped(_slice(one), "  ")
    yield from _rest(len(found.slices), "slices")


def _compared(found: Localisation) -> str:
    more = f", {found.n_unmatched} are on one side only" if found.n_unmatched else ""
    return f"{found.n_compared} rows of nodes compared{more}"


def _slice(found: SliceDifference) -> str:
    expert = f", expert {found.expert}" if found.expert is not None else ""
    holds = f"; it holds {found.holds}" if found.holds else ""
    return (
        f"weight of side {found.side} is not the {found.against}'s: {found.tensor}{expert},"
        f" {found.file} at byte {found.offset} + {found.first_byte}, {found.n_bytes} of"
        f" {found.size_bytes} bytes{holds}"
    )


def _attribution(found: Attribution) -> Iterator[str]:
    turned = ", ".join(found.flips) or "none of them"
    yield from _wrapped(
        f"turned by: {turned} (of {', '.join(s.name for s in found.tried)};"
        f" {len(found.arms)} arms, compared by {found.level})"
    )
    if found.kernels:
        yield from _wrapped(f"acts through: {', '.join(found.kernels)}", "  ")
    for arm in found.arms:
        answers = {"a": "as A", "b": "as B", "other": "otherwise", "failed": "failed"}
        detail = f": {arm.detail}" if arm.detail else ""
        switches = " + ".join(arm.switches) or "A itself"
        yield from _wrapped(f"{switches} -> {answers[arm.outcome]}{detail}", "    ")
    if found.note:
        yield from _wrapped(found.note, "  ")


def _shape(shape: tuple[int, ...]) -> str:
    """Without the ones at its end."""
    n = max((i + 1 for i, size in enumerate(shape) if size != 1), default=1)
    return " × ".join(str(size) for size in shape[:n])


def _rows(n: int) -> str:
    return f"{n} row" if n == 1 else f"{n} rows"


def _quoted(text: str | None) -> str:
    return "" if text is None else f" {text!r}"


def _rest(n: int, what: str) -> list[str]:
    return [f"    and {n - _MOST} {what} more"] if n > _MOST else []


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=" " * (len(indent) if indent else 2),
        break_on_hyphens=False,
        replace_whitespace=True,
    ) or [indent]
