"""The registry of switches: what can be turned, one at a time, from side A's run to side B's.

A :class:`Setup` is all that decides a run's bits: the settings, and which kernels decline.
A switch is a named part of it. Every knob of :class:`Config` is a switch, on its own or in a
group, without being listed here; the numerics profiles are taken apart into their kernels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.config import Config, knobs
from sluice.llama import kernels
from sluice.triage.finding import Setting

KERNELS = tuple(kernels.KERNELS)
"""Kernel switches: ``sgemm``, ``tiled``."""

FLASH_ATTENTION = "flash-attention"

GROUPS: dict[str, tuple[str, ...]] = {
    FLASH_ATTENTION: ("flash_attn",),
    "streaming": ("moe_stream",),
    "head catch-up": ("catch_up",),
    "draft width": ("draft",),
    "mtp": ("mtp",),
    "context": ("ctx",),
    "sampling": ("temp", "top_k", "top_p", "seed"),
}
"""Switches of another name than their knob, or of several knobs."""

NOT_SWITCHES = frozenset({"n"})
"""Knobs that decide how long a run is, and nothing of what it is."""

WIDTH_SWITCHES = frozenset(
    {"sgemm", "tiled", FLASH_ATTENTION, "ubatch", "mtp", "draft width", "numerics"}
)
"""Switches that select kernels, or how many rows a kernel computes together."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings of a run, resolved, and the kernels that are off for all of it."""

    config: Config
    off: frozenset[str] = field(default_factory=frozenset)


def setup(config: Config, off: Iterable[str] = ()) -> Setup:
    """``config`` with the profile ``invariant`` taken apart into what it switches off.

    ``decode-invariant`` stays a profile: its kernels change in the middle of a run.
    """
    resolved = config.resolved()
    if resolved.numerics == "invariant":
        return Setup(resolved.replace(numerics="default"), frozenset(off) | set(KERNELS))
    return Setup(resolved, frozenset(off))


def names() -> tuple[str, ...]:
    """Every switch, kernels first, then in the order of the settings."""
    grouped = {knob: name for name, group in GROUPS.items() for knob in group}
    found = dict.fromkeys(grouped.get(knob, knob.replace("_", "-")) for knob in knobs()
                          if knob not in NOT_SWITCHES)  # fmt: skip
    return (*KERNELS, *found)


def value(name: str, of: Setup) -> Any:
    """What a switch stands at; comparable, and a plain value."""
    if name in KERNELS:
        return "off" if name in of.off else "on"
    values = tuple(getattr(of.config, knob) for knob in _knobs(name))
    return values[0] if len(values) == 1 else list(values)


def differing(a: Setup, b: Setup) -> tuple[Setting, ...]:
    """The switches that do not stand alike, with both values."""
    return tuple(
        Setting(name, value(name, a), value(name, b))
        for name in names()
        if value(name, a) != value(name, b)
    )


def turned(a: Setup, b: Setup, switches: Iterable[str]) -> Setup:
    """``a`` with ``switches`` at ``b``'s values."""
    config, off = a.config, set(a.off)
    for name in switches:
        if name in KERNELS:
            off.discard(name)
            off |= b.off & {name}
        else:
            config = config.replace(**{k: getattr(b.config, k) for k in _knobs(name)})
    return Setup(config, frozenset(off))


def without(of: Setup, switches: Iterable[str]) -> Setup:
    """``of`` with kernel switches (flash attention among them) off."""
    config, off = of.config, set(of.off)
    for name in switches:
        if name == FLASH_ATTENTION:
            config = config.replace(flash_attn="off")
        else:
            off.add(name)
    return replace(of, config=config, off=frozenset(off))


def _knobs(name: str) -> tuple[str, ...]:
    return GROUPS.get(name, (name.replace("-", "_"),))
