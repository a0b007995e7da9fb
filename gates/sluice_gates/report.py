"""Verdicts as properties of tests, and as lines of pytest's output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sluice.telemetry.verdicts import Verdict, counted

PREFIX = "sluice."
"""Of the test properties that carry a verdict from a worker to the controller and to JUnit."""


def properties_of(verdict: Verdict) -> list[tuple[str, str]]:
    """Test properties, plain text each."""
    values = verdict.as_dict() | {
        "kills": " ".join(verdict.kills),
        "seconds": f"{verdict.seconds:.3f}",
    }
    return [(PREFIX + name, str(value)) for name, value in values.items()]


def verdict_of(properties: Mapping[str, Any]) -> Verdict | None:
    """What :func:`properties_of` wrote, if it is there."""
    given = {
        name.removeprefix(PREFIX): value
        for name, value in properties.items()
        if name.startswith(PREFIX)
    }
    if "verdict" not in given:
        return None
    return Verdict.from_dict(given | {"kills": given["kills"].split()})


def shared_fingerprint(fingerprints: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """What all runs share, and the hash of each model."""
    shared: dict[str, Any] = {}
    models = {}
    for label, parts in fingerprints.items():
        rest = dict(parts)
        models[label] = rest.pop("model_sha256", "")
        shared |= rest
    return shared | {"models": models}


def table(verdicts: Iterable[Verdict]) -> list[str]:
    """One line a verdict: gate, model, level, verdict, evidence."""
    rows = [("gate", "model", "level", "verdict", "evidence")]
    rows += [(v.gate, v.model, v.level, v.verdict, v.evidence) for v in verdicts]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]])
        for row in rows
    ]


def counts(verdicts: Iterable[Verdict]) -> str:
    """How many gates had which verdict."""
    return ", ".join(f"{n} {word}" for word, n in counted(verdicts))
