"""A gate: a claim, the level that it is checked at, and the faults that it must catch."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from sluice_gates.bench import Bench

Level = Literal["ids", "text", "logits", "drafts", "words"]
"""What is compared: token ids, text, a SHA-256 of every logits row, groups of drafts, or words."""

Need = Literal["head", "experts"]

GateFunction = Callable[["Bench"], str | None]
"""Returns its evidence in a few words, or raises GateFailure with the first difference."""

ATTRIBUTE = "sluice_gate"

FAMILIES = (
    "identity", "speculation", "streaming", "overlap", "sessions", "layouts", "drafts",
    "divergence", "numerics", "refusals", "goldens",
)  # fmt: skip
"""The order in which gates are run and listed: what others build on comes first."""


class NotApplicable(Exception):
    """The model lacks what the gate is about; the message says what."""


class NotRecorded(Exception):
    """The gate compares with a recorded value, and this fingerprint has none."""


@dataclass(frozen=True, slots=True)
class Gate:
    """One gate of the registry.

    ``kills`` names faults of :mod:`sluice_gates.faults` that make it fail; the kill matrix proves
    it. ``once`` runs it on the first model only, whatever the quantisations.
    """

    name: str
    level: Level
    claims: str
    kills: tuple[str, ...]
    needs: tuple[Need, ...]
    once: bool
    function: GateFunction

    @property
    def family(self) -> str:
        """The module that it is written in, without the prefix ``test_``."""
        return self.function.__module__.rpartition(".")[2].removeprefix("test_")

    def run(self, bench: Bench) -> None:
        """Check the needs, run the function, note its evidence."""
        lacking = {"head": not bench.model.facts.has_head, "experts": not bench.streams}
        words = {"head": "no MTP head to draft with", "experts": "no experts to stream"}
        for need in self.needs:
            if lacking[need]:
                raise NotApplicable(f"{bench.model.name} has {words[need]}")
        evidence = self.function(bench)
        if evidence:
            bench.note(evidence)


_gates: dict[str, Gate] = {}


def gate(
    *,
    level: Level,
    claims: str,
    kills: tuple[str, ...] = (),
    needs: tuple[Need, ...] = (),
    once: bool = False,
) -> Callable[[GateFunction], Callable[[Bench], None]]:
    """Register ``test_<name>(bench)`` as the gate ``<name>``, dashes for underscores.

    Raises:
        ValueError: the name is taken. Names are given once and never reused: see
            ``data/names.txt``.
    """

    def register(function: GateFunction) -> Callable[[Bench], None]:
        name = function.__name__.removeprefix("test_").replace("_", "-")
        made = Gate(name, level, claims, kills, needs, once, function)
        taken = _gates.get(name)
        if taken is not None and taken.function.__module__ != function.__module__:
            raise ValueError(f"the gate name {name} is taken by {taken.function.__module__}")
        _gates[name] = made

        @functools.wraps(function)
        def test(bench: Bench) -> None:
            try:
                made.run(bench)
            except (NotApplicable, NotRecorded) as why:
                bench.unjudged = why
                pytest.skip(str(why))

        setattr(test, ATTRIBUTE, made)
        return test

    return register


def gate_of(function: Any) -> Gate | None:
    """The gate that a test function was registered as, if it is one."""
    found = getattr(function, ATTRIBUTE, None)
    return found if isinstance(found, Gate) else None


def family_rank(gate: Gate) -> int:
    """Where the gate's family stands; an unknown family comes last."""
    return FAMILIES.index(gate.family) if gate.family in FAMILIES else len(FAMILIES)


def all_gates() -> list[Gate]:
    """Every gate of every family, in order."""
    package = importlib.import_module("sluice_gates")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name.startswith("test_"):
            importlib.import_module(f"sluice_gates.{module.name}")
    return sorted(_gates.values(), key=family_rank)
