"""Figures as rows of text, for whatever draws a table. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.sweep.figures import ArmFigures
from sluice.sweep.ranking import Ranking


@dataclass(frozen=True, slots=True)
class Table:
    """One table; ``is_number`` says of each column whether it belongs to the right."""

    title: str
    headings: tuple[str, ...]
    is_number: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def tables(figures: Sequence[ArmFigures], rankings: Sequence[Ranking]) -> tuple[Table, ...]:
    """A table a workload, arms in the order of ``figures``."""
    raise NotImplementedError
