"""What the benchmark of the engine measures: one arm is one way to run the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

MIB = 1 << 20
Kind = Literal["engine", "raw", "peer"]
SERIAL: Mapping[str, Any] = {"overlap": False, "prefetch": 0, "predict_prefetch": False}
READ_AHEAD: Mapping[str, Mapping[str, Any]] = {
    "": {},
    "+overlap": {"overlap": True},
    "+predict": {"overlap": True, "predict_prefetch": True},
    "+prefetch": {"overlap": True, "prefetch": 1},
}
"""Suffix of an arm's name to the settings that hide reads."""


@dataclass(frozen=True, slots=True)
class Budgets:
    """Cache sizes in MiB: a third of the expert bytes, and all; with the head's and without."""

    third: int
    all: int
    third_head: int
    all_head: int


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run the model.

    Args:
        name: for ``--only`` and the JSON.
        label: for the table.
        changes: settings of :class:`sluice.config.Config`, of an engine arm.
        limited: runs in a control group of a third of the file.
        cache_mb: what ``{cache_mb}`` of a peer's command stands for.
    """

    name: str
    label: str
    kind: Kind = "engine"
    changes: Mapping[str, Any] = field(default_factory=dict)
    limited: bool = False
    cache_mb: int = 0

    @property
    def is_streamed(self) -> bool:
        """Whether experts come from disk."""
        return bool(self.changes.get("moe_stream"))

    @property
    def is_serial(self) -> bool:
        """Whether compute waits for every read, so that all reading is waiting."""
        return self.is_streamed and not any(self.changes.get(name) for name in SERIAL)

    @property
    def is_cached(self) -> bool:
        """Whether a cache has to be warm before this is timed."""
        return bool(self.changes.get("cache_mb"))


def all_arms(budgets: Budgets, peer: str = "") -> list[Arm]:
    """Every arm, in the order of the table; ``peer`` is the command template of a peer."""
    arms = [Arm("raw", "disk alone, same blocks and lanes", "raw"),
            Arm("resident", "llama.cpp, resident")]  # fmt: skip
    for name, label, size in (("off", "cache off", 0), ("third", "a third cached", budgets.third),
                              ("all", "all cached", budgets.all)):  # fmt: skip
        for suffix, how in READ_AHEAD.items():
            if size or not ("predict_prefetch" in how or "prefetch" in how):
                words = f"{label}{', ' + suffix[1:] if suffix else ''}"
                fill = {"cache_fill": True} if name == "all" else {}
                arms.append(_streamed(name + suffix, words, cache_mb=size, **fill, **how))
    arms.append(_streamed("all-used", "all cached, by use alone", cache_mb=budgets.all))
    for draft in (1, 3):
        mtp: dict[str, Any] = {"mtp": True, "draft": draft}
        size = budgets.third_head
        arms.append(Arm(f"mtp{draft}-resident", f"resident, draft {draft}", changes=mtp))
        arms.append(_streamed(f"mtp{draft}-off", f"cache off, draft {draft}", cache_mb=0, **mtp))
        arms.append(_streamed(f"mtp{draft}-third", f"a third cached, predict, draft {draft}",
                              cache_mb=size, **mtp, **READ_AHEAD["+predict"]))  # fmt: skip
    arms.append(Arm("limit-mmap", "memory of a third: mmap", limited=True))
    auto = _streamed("limit-auto", "memory of a third: cache auto, predict", limited=True,
                     cache_mb="auto", **READ_AHEAD["+predict"])  # fmt: skip
    arms.append(auto)
    if peer:
        sizes = (("off", 0), ("third", budgets.third), ("all", budgets.all))
        for name, size in sizes if "{cache_mb}" in peer else (("given", 0),):
            arms.append(Arm(f"peer-{name}", f"peer, cache {name}", "peer", cache_mb=size))
    return arms


def chosen(arms: Sequence[Arm], only: Sequence[str]) -> list[Arm]:
    """The arms named in ``only``, all where it is empty.

    Raises:
        KeyError: of a name that no arm has.
    """
    unknown = set(only) - {arm.name for arm in arms}
    if unknown:
        raise KeyError(min(unknown))
    return [arm for arm in arms if not only or arm.name in only]


def _streamed(name: str, label: str, *, limited: bool = False, **changes: Any) -> Arm:
    settings = {"moe_stream": True, **SERIAL, **changes}
    return Arm(name, label, changes=settings, limited=limited)
