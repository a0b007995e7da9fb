"""A finding as one HTML page that needs nothing beside it."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from sluice.triage import plots
from sluice.triage.finding import CLASSES, Finding
from sluice.triage.report import lines, node, place, summary
from sluice.webpage import render

_NODES_LISTED = 40


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of one side beside that of the other; ``same`` where they are equal."""

    same: bool
    a: str
    b: str


def page(finding: Finding) -> str:
    """The page, with LF line ends."""
    first = finding.difference.step if finding.difference is not None else None
    located = finding.localisation
    return render(
        "sluice.triage",
        finding=finding,
        summary=summary(finding),
        meaning=CLASSES[finding.classification.name],
        place=place(finding.difference) if finding.difference is not None else None,
        screen="\n".join(lines(finding)),
        pieces=aligned(finding),
        settings=settings(finding),
        margins=Markup(plots.margins(finding.steps, first)) if finding.steps else None,
        movements=Markup(plots.movements(finding.steps, first)) if finding.steps else None,
        heat=Markup(plots.heat(located.nodes)) if located is not None and located.nodes else None,
        nodes=[node(one) for one in located.nodes[:_NODES_LISTED]] if located is not None else [],
        n_nodes=len(located.nodes) if located is not None else 0,
    )


def aligned(finding: Finding) -> list[Piece]:
    """Both texts cut into pieces that are equal and pieces that are not."""
    left, right = _tokens(finding, "a"), _tokens(finding, "b")
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
    return [
        Piece(tag == "equal", "".join(left[i:j]), "".join(right[k:m]))
        for tag, i, j, k, m in matcher.get_opcodes()
    ]


def settings(finding: Finding) -> list[tuple[str, str, str, bool]]:
    """Every setting and part of the fingerprint: name, both values, whether they differ."""
    rows = []
    for a, b in (
        (finding.a.config, finding.b.config),
        (finding.a.fingerprint, finding.b.fingerprint),
    ):
        for name in dict.fromkeys([*a, *b]):
            values = _shown(a, name), _shown(b, name)
            rows.append((name, *values, values[0] != values[1]))
    return rows


def _tokens(finding: Finding, side: str) -> list[str]:
    """Tokens where a vocabulary was at hand, else words."""
    subject = finding.a if side == "a" else finding.b
    texts = [s.text_a if side == "a" else s.text_b for s in finding.steps]
    known = [text for text in texts if text is not None]
    if "".join(known) == subject.text:
        return known
    return re.findall(r"\s+|[^\s]+", subject.text)


def _shown(values: dict[str, Any], name: str) -> str:
    if name not in values:
        return "–"
    value = values[name]
    return value if isinstance(value, str) else json.dumps(value)
