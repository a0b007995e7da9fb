"""What moved between two recordings of the same gates: two releases of llama.cpp, by class. Pure.

A golden holds no logits and no text, only hashes, places and margins: it tells whether anything
moved, and whether a text did. What it cannot tell from them it calls UNKNOWN.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sluice.triage.finding import Class

NEAR_TIE = 0.05
"""A recorded margin, in logits, below which a token that moved is called a near tie."""

_TEXT_KEYS = ("text_sha256", "characters", "tokens")


@dataclass(frozen=True, slots=True)
class Change:
    """One recorded value: of which model, section and run, its class, and what moved in words."""

    model: str
    section: str
    run: str
    name: Class
    words: str


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Every run of two goldens of one model, in order, with what moved in it.

    Args:
        old, new: parsed goldens: ``model``, ``fingerprint``, ``sections`` and hashes of what
            the values belong to.
    """
    model = str(new.get("model", old.get("model", "")))
    for key, what in (("master_sha256", "model"), ("prompts_sha256", "prompts")):
        if old.get(key) != new.get(key):
            return [Change(model, "", "", "CONFIG", f"recorded of other {what}: {_short(old, key)}"
                           f" / {_short(new, key)}")]  # fmt: skip
    out = []
    left, right = old["sections"], new["sections"]
    for section in dict.fromkeys([*left, *right]):
        mine, other = _runs(left.get(section)), _runs(right.get(section))
        for run in dict.fromkeys([*mine, *other]):
            if run not in mine or run not in other:
                side = "old" if run in mine else "new"
                out.append(Change(model, section, run, "CONFIG", f"only in the {side} one"))
                continue
            name, words = _judge(mine[run], other[run])
            out.append(Change(model, section, run, name, words))
    return out


def fingerprint_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The parts of the fingerprint that differ, in words."""
    left, right = old["fingerprint"], new["fingerprint"]
    return [
        f"{name}: {left.get(name)} / {right.get(name)}"
        for name in dict.fromkeys([*left, *right])
        if left.get(name) != right.get(name)
    ]


def counted(found: Iterable[Change]) -> str:
    """How many runs are of which class: ``12 IDENTICAL, 3 NUMERIC``."""
    counts = Counter(change.name for change in found)
    return ", ".join(f"{n} {name}" for name, n in counts.most_common()) or "nothing recorded"


def _runs(section: Any) -> dict[str, Mapping[str, Any]]:
    """A section's runs by name; a section that is one run has the empty name."""
    if not isinstance(section, Mapping):
        return {}
    if all(isinstance(value, Mapping) for value in section.values()):
        return {
            name if not inner else f"{name}, {inner}": run
            for name, part in section.items()
            for inner, run in _runs(part).items()
        } or {}
    return {"": section}


def _judge(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Class, str]:
    moved = [k for k in dict.fromkeys([*old, *new]) if old.get(k) != new.get(k)]
    if not moved:
        return "IDENTICAL", "every recorded value is the same"
    words = ", ".join(f"{k} {_value(old.get(k))} / {_value(new.get(k))}" for k in moved)
    if "diverges" in old or "diverges" in new:
        return _judge_place(old, new, moved), words
    if any(key in moved for key in (*_TEXT_KEYS, "stop")):
        return "UNKNOWN", f"{words}; record evidence with both and triage it"
    return "NUMERIC", words


def _judge_place(old: Mapping[str, Any], new: Mapping[str, Any], moved: list[str]) -> Class:
    """A divergence lies where two tokens are nearly tied; its margin says how nearly."""
    if not {"diverges", "step", "tokens", "character"} & set(moved):
        return "UNKNOWN" if set(_TEXT_KEYS) & set(moved) else "NUMERIC"
    margins = [abs(run["margin"]) for run in (old, new) if isinstance(run.get("margin"), float)]
    return "NEAR_TIE_FLIP" if margins and max(margins) < NEAR_TIE else "UNKNOWN"


def _value(value: Any) -> str:
    text = "–" if value is None else str(value)
    return text[:12] if len(text) == 64 else text


def _short(golden: Mapping[str, Any], key: str) -> str:
    return _value(golden.get(key))
