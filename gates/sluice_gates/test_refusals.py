"""Refusals: what must not run, through the command, the Python API and one call's override."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sluice.bundled import BUNDLED, model_path
from sluice.config import DRAFT_MAX, knobs
from sluice.errors import GateFailure
from sluice.knob import Knob
from sluice_gates import variants
from sluice_gates.bench import Bench
from sluice_gates.gate import gate
from sluice_gates.models import made_once
from sluice_gates.refusals import Wrong, refused_at_every_door


@gate(level="words", claims="--mtp with --temp above 0 is refused", once=True)
def test_refuse_mtp_with_temp(bench: Bench) -> str:
    """Whichever door the temperature comes through, one line says what to drop, exit code 2."""
    wrong = []
    for temp in (0.7, 0.01):
        # Per call, it takes a session that drafts, and so a head.
        per_call: tuple[dict[str, Any], ...] = ({"temp": temp}, {"mtp": True})
        doors = per_call if bench.model.facts.has_head else ()
        wrong.append(Wrong({"mtp": True, "temp": temp}, 2, ("--mtp", "--temp"), *doors))
    return _refused(bench, wrong)


@gate(level="words", claims="--mtp on a file without a head is refused", once=True)
def test_refuse_mtp_without_head(bench: Bench) -> str:
    """No silent fallback to one token at a time: exit code 2, at load, in one line."""
    headless = not bench.model.facts.has_head
    path = bench.model.path if headless else _variant(bench, variants.without_nextn)
    changes: dict[str, Any] = {"model": str(path)}
    return _refused(
        bench,
        [
            Wrong(changes | {"mtp": True}, 2, ("--mtp", "head")),
            Wrong(changes | {"mtp": True, "moe_stream": True}, 2, ("--mtp", "head")),
            # A session has its head, or has none, from when it is opened.
            Wrong(changes | {"mtp": True}, 2, ("--mtp",), {"mtp": True}, changes),
        ],
    )


@gate(level="words", claims="a head that is announced and not there is refused", once=True)
def test_refuse_key_without_tensors(bench: Bench) -> str:
    """The nextn key without its tensors does not open for drafting: exit code 3, in one line."""
    path = _variant(bench, variants.nextn_key_without_tensors)
    changes = {"model": str(path), "mtp": True}
    return _refused(
        bench, [Wrong(changes, 3, ("nextn",)), Wrong(changes | {"moe_stream": True}, 3, ("nextn",))]
    )


@gate(level="words", claims="what would abort the process is refused", needs=("head",), once=True)
def test_refuse_what_would_abort(bench: Bench) -> str:
    """Batches too narrow for the draft, drafts wider than what was opened, contexts too short."""
    narrow = [
        Wrong({"mtp": True, "draft": draft, "ubatch": draft + 1}, 2, ("--ubatch", "--draft"))
        for draft in range(1, DRAFT_MAX + 1)
    ]
    return _refused(
        bench,
        [
            *narrow,
            Wrong({"mtp": True, "ubatch": 1}, 2, ("--ubatch",)),
            Wrong({"mtp": True, "draft": 2, "draft_min": 3}, 2, ("--draft-min",),
                  {"draft_min": 3}, {"mtp": True, "draft": 2}),
            Wrong({"ctx": 16, "n": 64}, 2, ("-c",), {"n": 64}, {"ctx": 16}),
            Wrong({"mtp": True, "draft": DRAFT_MAX + 1}, 2, ("--draft",),
                  {"draft": 4}, {"mtp": True, "draft": 3}),
            Wrong({"load_all": True}, 2, ("--load-all", "--moe-stream")),
            Wrong({"poison": True}, 2, ("--poison", "--moe-stream")),
            Wrong({"moe_stream": True, "load_all": True, "poison": True}, 2, ("--poison",)),
        ],
    )  # fmt: skip


@gate(level="words", claims="every knob has a range, and beyond it is refused", once=True)
def test_refuse_out_of_range(bench: Bench) -> str:
    """One step below and above the range of every knob, not a number, and no such word."""
    wrongs = []
    for name, knob in knobs().items():
        default = getattr(bench.config(), name)
        for value in _beyond(knob, default):
            # A threshold of a draft means something only where there are drafts.
            opened = {"mtp": True} if "draft" in name and bench.model.facts.has_head else {}
            wrongs.append(
                Wrong(opened | {name: value}, 2, (knob.flag.split("/")[0],),
                      {name: value} if knob.per_call else None, opened)
            )  # fmt: skip
    return _refused(bench, wrongs)


@gate(level="words", claims="a file that is no whole gguf is refused", once=True)
def test_refuse_unusable_file(bench: Bench) -> str:
    """Cut short, not a gguf: exit code 3. No such file, a folder: exit code 2. One line each."""
    short = str(_variant(bench, variants.cut_short))
    other = str(_variant(bench, variants.not_a_gguf))
    wrongs = []
    for extra in ({}, {"moe_stream": True}):
        wrongs += [
            Wrong({"model": short, **extra}, 3, ("cut short",)),
            Wrong({"model": other, **extra}, 3, ("not a gguf",)),
            Wrong({"model": f"{short}.gone", **extra}, 2, ("no such file",)),
            Wrong({"model": str(bench.scratch), **extra}, 2, ("folder",)),
        ]
    return _refused(bench, wrongs)


def _refused(bench: Bench, wrongs: list[Wrong]) -> str:
    if not wrongs:
        raise GateFailure("no evidence: nothing to refuse")
    doors = sum(refused_at_every_door(bench, wrong) for wrong in wrongs)
    return f"{len(wrongs)} requests refused, {doors} times in one line"


def _beyond(knob: Knob, default: Any) -> list[Any]:
    """Values of a knob's own type that lie just outside of what it allows."""
    if isinstance(default, bool):
        return []
    if knob.choices:
        return ["neither"]
    step = 1 if isinstance(default, int) else 0.5
    values: list[Any] = []
    if knob.low is not None:
        values.append(type(default)(knob.low) - step)
    if knob.high is not None:
        values.append(type(default)(knob.high) + step)
    if isinstance(default, float):
        values.append(math.nan)
    return values


def _variant(bench: Bench, make: Callable[[Path, Path], Path]) -> Path:
    """A broken copy of the bundled model: a model that was named may be too large to copy."""
    return made_once(model_path(BUNDLED), make.__name__, make, bench.scratch)
