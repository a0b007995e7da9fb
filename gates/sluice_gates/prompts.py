"""The prompts that gates run, with what was found out about them: data, not code."""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

SCHEMA = "sluice-prompts/1"

USER_FLOOR = 0.1
"""Acceptance below which a head of unknown quality is called broken."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt and its name in reports."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class PromptSet:
    """What one model is run on.

    Args:
        general: for identity and speculation.
        divergence: found by search to diverge on this quantisation. Without a search, what was
            found for other quantisations of the bundled model, or the general ones: they may
            diverge or not.
        table: the one whose five-row table is shown, if one is recorded.
        endings: the model ends by itself within an accepted group; without a search, perhaps.
        acceptance_floor: least share of drafts accepted over the general prompts at draft 3.
        searched: whether ``divergence`` and ``endings`` were found by search.
    """

    general: tuple[Prompt, ...]
    divergence: tuple[Prompt, ...]
    table: Prompt | None
    endings: tuple[Prompt, ...]
    acceptance_floor: float
    searched: bool

    @property
    def sha256(self) -> str:
        """Of everything that a golden's values depend on."""
        whole = [[p.name, p.text] for p in (*self.general, *self.divergence)]
        return hashlib.sha256(json.dumps(whole).encode()).hexdigest()


def prompt_set(quantisation: str | None) -> PromptSet:
    """The prompts of a quantisation of the bundled model; ``None`` is any other model."""
    raw = _data()

    def named(names: list[str]) -> tuple[Prompt, ...]:
        return tuple(Prompt(name, raw["texts"][name]["text"]) for name in names)

    general = named(raw["general"])
    found = raw["quantisations"].get(quantisation)
    if found is None:
        others = raw["quantisations"].values() if quantisation is not None else ()
        divergence, endings = (
            named(sorted({name for other in others for name in other[kind]})) or general
            for kind in ("divergence", "endings")
        )
        return PromptSet(general, divergence, None, endings, USER_FLOOR, searched=False)
    table = found["table"]
    return PromptSet(
        general=general,
        divergence=named(found["divergence"]),
        table=named([table])[0] if table else None,
        endings=named(found["endings"]),
        acceptance_floor=found["acceptance_floor"],
        searched=True,
    )


@functools.cache
def _data() -> dict[str, Any]:
    text = files("sluice_gates").joinpath("data", "prompts.json").read_text(encoding="utf-8")
    raw: dict[str, Any] = json.loads(text)
    if raw["schema"] != SCHEMA:
        raise ValueError(f"data/prompts.json: schema {raw['schema']}, expected {SCHEMA}")
    return raw
