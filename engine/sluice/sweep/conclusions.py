"""What a sweep concludes, in words with figures. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sluice.sweep.figures import ArmFigures
from sluice.sweep.ranking import Ranking

BAND = (0.6, 0.7)
"""Acceptance that is often advised; drawn for the eye, and decided on by nothing."""


@dataclass(frozen=True, slots=True)
class Split:
    """A greedy prompt whose text is not the same in every arm.

    ``groups`` are arms of one text, the largest group first; ``commands`` one ``sluice triage``
    line for the first arm of every further group against the first of the first. Where the target
    is not Sluice's own engine there are none.
    """

    workload: str
    prompt: str
    groups: tuple[tuple[str, ...], ...]
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Conclusion:
    """One workload, in sentences.

    ``fastest`` are the arms that nothing beats outside the noise, ``acceptance`` is over tokens at
    the first of them.
    """

    workload: str
    fastest: tuple[str, ...]
    is_settled: bool
    acceptance: float | None
    sentences: tuple[str, ...]


def conclude(figures: Sequence[ArmFigures], rankings: Sequence[Ranking]) -> tuple[Conclusion, ...]:
    """One conclusion a workload, in the order of ``rankings``."""
    raise NotImplementedError


def splits(
    figures: Sequence[ArmFigures],
    *,
    model: str = "",
    prompts: Mapping[tuple[str, str], str] | None = None,
) -> tuple[Split, ...]:
    """Greedy prompts whose text differs between arms.

    Args:
        model: what ``sluice run`` is to be given as MODEL in the commands; empty for none.
        prompts: workload and prompt to what names it on the command line: ``-p TEXT``,
            or ``-f FILE``.
    """
    raise NotImplementedError
