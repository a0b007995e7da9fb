"""The plots of a sweep, as PNG. matplotlib is loaded when the first one is drawn."""

from __future__ import annotations

import contextlib
import io
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.errors import SystemFault
from sluice.sweep.conclusions import BAND
from sluice.sweep.figures import ArmFigures
from sluice.sweep.report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("#1f5fa8", "#c2410c", "#2e7d32", "#7b3fa0", "#00838f", "#ad1457", "#6d4c41", "#455a64")
_BAND_COLOUR = "#f3e3a3"
_WIDTH, _HEIGHT, _DPI = 4.6, 3.3, 110
_ACROSS = 3


@dataclass(frozen=True, slots=True)
class Plot:
    """One plot: the file that it goes to, what it shows in a line, and its bytes."""

    file: str
    title: str
    png: bytes


def plots(report: Report) -> tuple[Plot, ...]:
    """Every plot that there is anything to draw in.

    Raises:
        SystemFault: matplotlib cannot be loaded.
    """
    found = []
    for file, title, draw in (
        ("rates.png", "Effective tok/s by draft length; bars span the prompts", _rates),
        ("steps.png", "What a step takes and what it gives, by draft length", _steps),
        ("acceptance.png", "Acceptance by draft length, with the advised band, and where each"
         " workload's fastest arm lies", _acceptance),
        ("places.png", "Acceptance by place in the draft", _places),
    ):  # fmt: skip
        with _quiet():
            figure = draw(report)
            if figure is not None:
                found.append(Plot(file, title, _png(figure)))
    return tuple(found)


def _rates(report: Report) -> Figure | None:
    def draw(axes: Axes, workload: str) -> None:
        for i, group in enumerate(_groups(report, workload)):
            colour = _COLOURS[i % len(_COLOURS)]
            fixed = [one for one in group if not one.arm.p_min]
            _bars(axes, fixed, colour, _label(group[0]), line="-", marker="o")
            _bars(axes, [one for one in group if one.arm.p_min], colour, "", line="none",
                  marker="D")  # fmt: skip
            for one in group:
                if one.arm.p_min and one.effective_tok_s is not None:
                    at = _x(one), one.effective_tok_s.high
                    axes.annotate(f"p_min {one.arm.p_min:g}", at, xytext=(0, 4), rotation=90,
                                  ha="center", textcoords="offset points", fontsize=6)  # fmt: skip
        _lengths(axes, "effective tok/s")
        axes.set_ylim(0, axes.get_ylim()[1] * 1.1)

    return _grid(report, draw, lambda one: one.effective_tok_s is not None)


def _steps(report: Report) -> Figure | None:
    def draw(axes: Axes, workload: str) -> None:
        beside = axes.twinx()
        for i, group in enumerate(_groups(report, workload)):
            fixed = [one for one in group if not one.arm.p_min and one.step_s is not None
                     and one.tokens_per_step is not None]  # fmt: skip
            colour = _COLOURS[i % len(_COLOURS)]
            axes.plot([_x(one) for one in fixed], [(one.step_s or 0) * 1e3 for one in fixed],
                      color=colour, marker="o", label=_label(group[0]))  # fmt: skip
            beside.plot([_x(one) for one in fixed],
                        [one.tokens_per_step.mean for one in fixed if one.tokens_per_step],
                        color=colour, marker="s", linestyle="--", alpha=0.6)  # fmt: skip
        _lengths(axes, "ms a step (solid)")
        beside.set_ylabel("tokens per step (dashed)", fontsize=8)
        beside.tick_params(labelsize=7)
        axes.set_ylim(bottom=0)
        beside.set_ylim(bottom=0)

    return _grid(report, draw, lambda one: one.step_s is not None and not one.arm.p_min)


def _acceptance(report: Report) -> Figure | None:
    if not any(one.acceptance_tokens is not None for one in report.figures):
        return None
    figure = _figure(2 * _WIDTH, 1.4 * _HEIGHT)
    axes = figure.subplots()
    axes.axhspan(*BAND, color=_BAND_COLOUR, zorder=0,
                 label=f"often advised: {BAND[0]:g} to {BAND[1]:g}")  # fmt: skip
    fastest = {one.workload: one.fastest for one in report.conclusions}
    for i, workload in enumerate(report.workloads):
        colour = _COLOURS[i % len(_COLOURS)]
        drawn = [one for one in report.figures_of(workload)
                 if one.acceptance_tokens is not None and one.is_cold is not True]  # fmt: skip
        for k, group in enumerate(_split(drawn)):
            fixed = [one for one in group if not one.arm.p_min]
            axes.plot([_x(one) for one in fixed], [one.acceptance_tokens or 0 for one in fixed],
                      color=colour, marker="o", markersize=4,
                      linestyle=("-", "--", ":", "-.")[k % 4],
                      label=workload if not k else "")  # fmt: skip
            axes.plot([_x(one) for one in group if one.arm.p_min],
                      [one.acceptance_tokens or 0 for one in group if one.arm.p_min],
                      color=colour, marker="D", markersize=4, linestyle="none")  # fmt: skip
        for one in drawn:
            if fastest.get(workload, ())[:1] == (one.arm.name,):
                axes.plot([_x(one)], [one.acceptance_tokens or 0], color=colour, marker="*",
                          markersize=17, markeredgecolor="black", linestyle="none", zorder=5,
                          label=f"fastest of {workload}: {one.arm.name}")  # fmt: skip
        if fastest.get(workload) and not any(one.arm.name == fastest[workload][0] for one in drawn):
            axes.plot([], [], color=colour, marker="*", linestyle="none",
                      label=f"fastest of {workload}: {fastest[workload][0]}, no draft")  # fmt: skip
    _lengths(axes, "accepted / drafted")
    axes.set_xlabel("draft length n_max (circles: fixed; diamonds: with a p_min)", fontsize=8)
    axes.set_ylim(0, 1.04)
    axes.legend(fontsize=7, loc="best")
    return figure


def _places(report: Report) -> Figure | None:
    def draw(axes: Axes, workload: str) -> None:
        # Streaming changes no byte: one line for each way to draft says it all.
        ways: dict[str, ArmFigures] = {}
        for one in report.figures_of(workload):
            if one.places:
                ways.setdefault(one.arm.drafting_name, one)
        for i, (name, one) in enumerate(ways.items()):
            known = [(p.place, p.acceptance) for p in one.places if p.acceptance is not None]
            line = "--" if one.arm.p_min else "-"
            axes.plot([place for place, _ in known], [value for _, value in known],
                      color=_COLOURS[i % len(_COLOURS)], marker="o", markersize=3,
                      linestyle=line, label=name)  # fmt: skip
        _lengths(axes, "accepted / reached")
        axes.set_xlabel("place in the draft", fontsize=8)
        axes.set_ylim(0, 1.04)

    return _grid(report, draw, lambda one: bool(one.places), beside=True)


def _grid(
    report: Report,
    draw: Callable[[Axes, str], None],
    has: Callable[[ArmFigures], bool],
    *,
    beside: bool = False,
) -> Figure | None:
    """One pair of axes a workload; the legend in it, or beside it."""
    names = [name for name in report.workloads if any(map(has, report.figures_of(name)))]
    if not names:
        return None
    n_across = min(_ACROSS, len(names))
    n_down = math.ceil(len(names) / n_across)
    figure = _figure(max(n_across, 1.4) * _WIDTH, n_down * _HEIGHT)
    for place, name in enumerate(names, 1):
        axes = figure.add_subplot(n_down, n_across, place)
        draw(axes, name)
        axes.set_title(name, fontsize=9)
        if len(axes.get_legend_handles_labels()[0]) > 1:
            if beside:
                axes.legend(fontsize=6, loc="center left", bbox_to_anchor=(1.0, 0.5))
            else:
                axes.legend(fontsize=6)
    return figure


def _bars(
    axes: Axes, arms: Sequence[ArmFigures], colour: str, label: str, *, line: str, marker: str
) -> None:
    """Mean rates with their span over the prompts."""
    spans = [(_x(one), one.effective_tok_s) for one in arms if one.effective_tok_s is not None]
    if not spans:
        return
    below = [span.mean - span.low for _, span in spans]
    above = [span.high - span.mean for _, span in spans]
    axes.errorbar([x for x, _ in spans], [span.mean for _, span in spans], yerr=[below, above],
                  color=colour, label=label or None, linestyle=line, marker=marker, markersize=4,
                  capsize=3, linewidth=1.2)  # fmt: skip


def _lengths(axes: Axes, quantity: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_ylabel(quantity, fontsize=8)
    axes.set_xlabel("draft length n_max (0: MTP off)", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)


def _groups(report: Report, workload: str) -> list[list[ArmFigures]]:
    return _split([one for one in report.figures_of(workload) if one.n_requests])


def _split(figures: Sequence[ArmFigures]) -> list[list[ArmFigures]]:
    """Arms that share their streaming and their temperature, by length."""
    groups: dict[tuple[str, bool | None], list[ArmFigures]] = {}
    for one in figures:
        groups.setdefault((one.arm.baseline, one.is_cold), []).append(one)
    return [sorted(group, key=lambda one: one.arm.n_max) for group in groups.values()]


def _x(one: ArmFigures) -> float:
    """The draft length; those with a threshold stand beside it, the stricter the farther."""
    return one.arm.n_max + (0.8 * one.arm.p_min - 0.2 if one.arm.p_min else 0.0)


def _label(one: ArmFigures) -> str:
    """Of a group of arms."""
    words = one.arm.baseline.removeprefix("off,") if one.arm.streaming else "resident"
    return words + {True: " (cold)", False: " (warm)", None: ""}[one.is_cold]


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Names are text, never formulas; a glyph that the font has not is drawn as a box."""
    try:
        import matplotlib
    except ImportError as err:
        raise SystemFault(f"no plots: matplotlib cannot be loaded ({err}); reinstall sluicegate"
                          ) from None  # fmt: skip
    with warnings.catch_warnings(), matplotlib.rc_context({"text.parse_math": False}):
        warnings.simplefilter("ignore")
        yield


def _png(figure: Figure) -> bytes:
    held = io.BytesIO()
    # Without the name of the program: the same rows give the same bytes.
    figure.savefig(held, format="png", dpi=_DPI, metadata={"Software": None})
    return held.getvalue()
