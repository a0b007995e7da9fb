"""The benchmark's one plot."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

from arms import Arm
from report import Round, Summary, ideal_tok_s, spread, summary
from sluice.errors import SystemFault
from sluice.telemetry.files import atomic

_COLOURS = {"resident": "#4c4c4c", "streamed": "#2a7fb8", "limited": "#b8562a", "peer": "#8a6bbe"}


def draw(out: Path, title: str, arms: Sequence[Arm], rounds: Sequence[Round]) -> None:
    """Write a PNG: the rate of every arm and its range, and what it reads a token.

    Raises:
        SystemFault: matplotlib is not installed, or ``out`` cannot be written.
    """
    try:
        figures = importlib.import_module("matplotlib.figure")
    except ImportError:
        raise SystemFault("no plot: matplotlib is not installed; pip install matplotlib") from None
    rows = [(arm, row) for arm in arms if (row := summary(arm, rounds)).tok_s is not None]
    figure = figures.Figure(figsize=(11, 1.2 + 0.34 * len(rows)), layout="constrained")
    rates, reads = figure.subplots(1, 2, sharey=True, width_ratios=(3, 1))
    for y, (arm, row) in enumerate(rows):
        assert row.tok_s is not None
        low, high = row.tok_s.median - row.tok_s.low, row.tok_s.high - row.tok_s.median
        rates.barh(y, row.tok_s.median, xerr=[[low], [high]], color=_colour(arm), capsize=3)
        ideal = _ideal(arm, rounds)
        if ideal is not None:
            rates.plot([ideal, ideal], [y - 0.4, y + 0.4], color="black", linewidth=1.5)
        reads.barh(y, _mib(row), color=_colour(arm))
    rates.set_yticks(range(len(rows)), [arm.label for arm, _ in rows])
    rates.invert_yaxis()
    rates.set_xlabel("tokens a second: median, and smallest to largest\n"
                     "(black: compute and reads side by side, neither waiting)")  # fmt: skip
    reads.set_xlabel("MiB read a token")
    for axes in (rates, reads):
        axes.grid(axis="x", alpha=0.3)
        axes.set_axisbelow(True)
    figure.suptitle(title)
    with atomic(out) as part:
        figure.savefig(part, format="png", dpi=120)


def _ideal(arm: Arm, rounds: Sequence[Round]) -> float | None:
    if not arm.is_streamed or arm.limited or arm.changes.get("mtp"):
        return None
    found = spread(rounds, arm.name, ideal_tok_s)
    return found.median if found else None


def _mib(row: Summary) -> float:
    return row.mib_token.median if row.mib_token else 0.0


def _colour(arm: Arm) -> str:
    if arm.kind == "peer":
        return _COLOURS["peer"]
    if arm.limited:
        return _COLOURS["limited"]
    return _COLOURS["streamed" if arm.is_streamed else "resident"]
