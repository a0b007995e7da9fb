"""Which arms gave the same greedy text, by its hash. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sluice.sweep.arm import parse
from sluice.sweep.figures import ArmFigures


@dataclass(frozen=True, slots=True)
class Group:
    """Arms that gave one text, in the order of the sweep; ``letter`` is ``A`` for the first."""

    letter: str
    sha256: str
    arms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Texts:
    """The greedy texts after one prompt.

    ``groups`` come in the order of their first arm. ``unsteady`` arms gave another text when they
    were repeated, and are in more than one group.
    """

    workload: str
    prompt: str
    groups: tuple[Group, ...]
    unsteady: tuple[str, ...] = ()

    @property
    def differ(self) -> bool:
        """Whether there is more than one text."""
        return len(self.groups) > 1

    def letters(self, arm: str) -> str:
        """Of the texts of ``arm``: ``A``, or ``A/B`` where it is unsteady; empty for none."""
        return "/".join(group.letter for group in self.groups if arm in group.arms)

    def commands(self, model: str, flags: Sequence[str]) -> tuple[str, ...]:
        """A ``sluice triage`` line for the first text against each of the others.

        Args:
            model: as ``sluice run`` takes it.
            flags: further words of both sides: the prompt (``-f FILE``), ``-n`` and whatever all
                arms share.
        """
        first = self.groups[0].arms[0]
        # An unsteady arm is held against itself where no other arm gave its other text.
        others = [next((a for a in g.arms if a != first), g.arms[0]) for g in self.groups[1:]]
        return tuple(
            shlex.join(
                ["sluice", "triage", "--a", _side(first, model, flags), "--b",
                 _side(other, model, flags)]
            )
            for other in others
        )  # fmt: skip


def texts(figures: Sequence[ArmFigures]) -> tuple[Texts, ...]:
    """The texts of every greedy prompt, in the order of the figures."""
    found: dict[tuple[str, str], dict[str, dict[str, None]]] = {}
    counts: dict[tuple[str, str], dict[str, set[str]]] = {}
    for one in figures:
        for prompt, hashes in one.hashes:
            key = one.workload, prompt
            for sha256 in hashes:
                found.setdefault(key, {}).setdefault(sha256, {})[one.arm.name] = None
                counts.setdefault(key, {}).setdefault(one.arm.name, set()).add(sha256)
    return tuple(
        Texts(
            workload,
            prompt,
            tuple(Group(_letter(i), sha, tuple(arms)) for i, (sha, arms) in enumerate(of.items())),
            tuple(arm for arm, shas in counts[workload, prompt].items() if len(shas) > 1),
        )
        for (workload, prompt), of in found.items()
    )


def by_workload(found: Sequence[Texts]) -> Mapping[str, tuple[Texts, ...]]:
    """The same by workload, in order."""
    names = dict.fromkeys(one.workload for one in found)
    return {name: tuple(one for one in found if one.workload == name) for name in names}


def _letter(place: int) -> str:
    """A to Z, then A1 and on."""
    turn, letter = divmod(place, 26)
    return chr(ord("A") + letter) + (str(turn) if turn else "")


def _side(arm: str, model: str, flags: Sequence[str]) -> str:
    return shlex.join([model, *flags, *parse(arm).run_flags()])
