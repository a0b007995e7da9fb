"""The exit code of commands that compare: 0 where nothing differs, 1 where something does."""

from __future__ import annotations

from collections.abc import Iterable

from sluice.triage.finding import Class

IDENTICAL: Class = "IDENTICAL"
DIFFERENT = 1


def exit_of(classes: Iterable[str]) -> int:
    """0 where every class is :data:`IDENTICAL`, or there is none."""
    return DIFFERENT if any(name != IDENTICAL for name in classes) else 0
