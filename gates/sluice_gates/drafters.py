"""Drafters for gates: one that knows the sequence, one that is always wrong."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.targets import Drafter


@dataclass(frozen=True, slots=True)
class Oracle(Drafter):
    """Drafts what comes: ``sequence`` is the prompt and everything generated after it.

    Beyond its end it repeats the last id, so that a draft is always as wide as asked.
    """

    sequence: tuple[int, ...]

    def draft(self, confirmed: list[int], width: int, n_vocab: int) -> list[int]:
        """The next ``width`` ids of the sequence."""
        start = len(confirmed)
        return [self.sequence[min(start + i, len(self.sequence) - 1)] for i in range(width)]


@dataclass(frozen=True, slots=True)
class AlwaysWrong(Drafter):
    """Drafts the id after the right one, at every place; ``sequence`` as for the oracle."""

    sequence: tuple[int, ...]

    def draft(self, confirmed: list[int], width: int, n_vocab: int) -> list[int]:
        """``width`` ids, none of which is what comes."""
        right = Oracle(self.sequence).draft(confirmed, width, n_vocab)
        return [(token + 1) % n_vocab for token in right]
