"""``sluice triage`` lines for greedy texts that differ, and the prompts they name. Pure."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Sequence

from sluice.config import Config, knobs
from sluice.sweep.row import Identity, Row
from sluice.sweep.texts import Texts

FOLDER = "prompts"
_SHARED = ("threads", "ctx", "ubatch", "flash_attn", "numerics")


def commands(identity: Identity, rows: Sequence[Row], texts: Sequence[Texts]) -> tuple[str, ...]:
    """A line for each text that is not the first arm's; none for a server's texts.

    A triage runs Sluice's own engine, which gives another text than a server may.
    """
    model = identity.settings.get("file")
    if identity.target != "engine" or model is None:
        return ()
    found: list[str] = []
    for one in texts:
        if not one.differ:
            continue
        n = max((row.n_decoded + 1 for row in rows
                 if row.ok and (row.workload, row.prompt) == (one.workload, one.prompt)),
                default=1)  # fmt: skip
        flags = ["-f", prompt_file(one.workload, one.prompt), "-n", str(n), *_flags(identity)]
        found += one.commands(model, flags)
    return tuple(found)


def prompt_file(workload: str, prompt: str) -> str:
    """Where a prompt's text is, relative to the folder of the sweep.

    The names are anything printable: what a file's name may not hold is left out, and a few
    digits keep those apart that then would be alike.
    """
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{workload}.{prompt}").strip(".-")
    digits = hashlib.sha256(f"{workload}\0{prompt}".encode()).hexdigest()[:6]
    return f"{FOLDER}/{words}-{digits}.txt"


def _flags(identity: Identity) -> list[str]:
    """What all arms shared and is not at its default, as flags of ``sluice run``."""
    given = dict(identity.settings) | {"threads": str(identity.threads)}
    defaults = {f.name: str(f.default) for f in dataclasses.fields(Config)}
    words: list[str] = []
    for name in _SHARED:
        value = given.get(name)
        is_auto = name == "flash_attn"  # as the profile has it, unless it was set against it
        if value is None or value == defaults[name] or (is_auto and value == _auto(given)):
            continue
        words += [knobs()[name].flag, value]
    return words


def _auto(given: dict[str, str]) -> str:
    return "on" if given.get("numerics", "default") == "default" else "off"
