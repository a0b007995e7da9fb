"""Plots of a finding as SVG, in the page itself: no script, no font, no file beside it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

from sluice.triage.finding import NodeDifference, StepTrace

WIDTH, HEIGHT = 960, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 8, 12, 30
_CELL, _LABEL, _NAMES = 16, 76, 170
_COLD, _HOT = (255, 237, 160), (189, 0, 38)


def margins(steps: Sequence[StepTrace], first: int | None) -> str:
    """Margins of both sides along the run, on a logarithmic scale; ``first`` is marked."""
    series = [
        ("a", [(s.step, s.margin_a) for s in steps if s.margin_a is not None]),
        ("b", [(s.step, s.margin_b) for s in steps if s.margin_b is not None]),
    ]
    scale = _Scale([v for _, points in series for _, v in points], len(steps))
    body = [scale.axes("margin of the two largest logits")]
    for name, points in series:
        path = " ".join(f"{scale.x(step):.1f},{scale.y(value):.1f}" for step, value in points)
        body.append(f'<polyline class="side-{name}" points="{path}"/>')
    return _svg(WIDTH, HEIGHT, [*body, scale.mark(first)], "Margins along the run")


def movements(steps: Sequence[StepTrace], first: int | None) -> str:
    """The largest movement of a logit at each step; a tick where it moved by an unknown amount."""
    known = [(s.step, s.movement) for s in steps if s.movement]
    scale = _Scale([v for _, v in known], len(steps))
    body = [scale.axes("largest movement of a logit")]
    for step, value in known:
        top = scale.y(value)
        body.append(
            f'<rect class="bar" x="{scale.x(step) - 1.5:.1f}" y="{top:.1f}" width="3"'
            f' height="{scale.floor - top:.1f}"><title>step {step}: {value:.3g}</title></rect>'
        )
    for trace in steps:
        if trace.moved and not trace.movement:
            x = scale.x(trace.step)
            body.append(
                f'<path class="tick" d="M{x:.1f} {scale.floor:.1f}v-7"><title>step'
                f" {trace.step}: moved</title></path>"
            )
    return _svg(WIDTH, HEIGHT, [*body, scale.mark(first)], "Movement of the logits at each step")


def heat(nodes: Sequence[NodeDifference]) -> str:
    """Layers by nodes, in graph order; the hotter, the more float32 values apart."""
    names = list(dict.fromkeys(node.name for node in nodes))
    layers = sorted({node.layer for node in nodes}, key=lambda n: -1 if n is None else n)
    hottest = max((_heat_of(node) for node in nodes), default=0.0)
    body = []
    for column, name in enumerate(names):
        x = _LABEL + column * _CELL + _CELL * 0.75
        body.append(f'<text transform="translate({x:.0f} {_NAMES - 6}) rotate(-60)">'
                    f"{escape(name)}</text>")  # fmt: skip
    for row, layer in enumerate(layers):
        y = _NAMES + row * _CELL
        words = "outside" if layer is None else f"layer {layer}"
        body.append(f'<text x="{_LABEL - 6}" y="{y + 12}" text-anchor="end">{words}</text>')
    for node in nodes:
        x = _LABEL + names.index(node.name) * _CELL
        y = _NAMES + layers.index(node.layer) * _CELL
        share = _heat_of(node) / hottest if hottest else 0.0
        body.append(
            f'<rect x="{x}" y="{y}" width="{_CELL - 1}" height="{_CELL - 1}"'
            f" fill={quoteattr(_colour(share))}><title>{escape(_tip(node))}</title></rect>"
        )
    width = _LABEL + len(names) * _CELL + 80
    return _svg(width, _NAMES + len(layers) * _CELL + 4, body, "Differing nodes by layer")


class _Scale:
    """Steps to the right, values upwards by powers of ten; zero lies on the floor."""

    def __init__(self, values: Sequence[float], n_steps: int) -> None:
        positive = [v for v in values if v > 0 and math.isfinite(v)] or [1.0]
        self._low = math.floor(math.log10(min(positive)) - 0.01)
        self._high = max(math.ceil(math.log10(max(positive)) + 0.01), self._low + 1)
        self._n = max(n_steps - 1, 1)
        self.floor = HEIGHT - _BOTTOM

    def x(self, step: int) -> float:
        """The place of a step."""
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * step / self._n

    def y(self, value: float) -> float:
        """The place of a value; what is not finite lies on top."""
        if value <= 0:
            return float(self.floor)
        if not math.isfinite(value):
            return float(_TOP)
        share = (math.log10(value) - self._low) / (self._high - self._low)
        return self.floor - (self.floor - _TOP) * share

    def axes(self, label: str) -> str:
        """Lines at powers of ten, a few steps, and what is shown."""
        parts = []
        every = max(1, -(-(self._high - self._low) // 6))
        for power in range(self._low, self._high + 1, every):
            y = self.y(10.0**power)
            parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}"/>')
            parts.append(
                f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">1e{power}</text>'
            )
        for step in range(0, self._n + 1, max(1, -(-self._n // 10))):
            parts.append(f'<text x="{self.x(step):.1f}" y="{HEIGHT - 12}" text-anchor="middle">'
                         f"{step}</text>")  # fmt: skip
        parts.append(f'<text x="{WIDTH - _RIGHT}" y="{_TOP + 2}" text-anchor="end">'
                     f"{escape(label)}, by step</text>")  # fmt: skip
        return "".join(parts)

    def mark(self, step: int | None) -> str:
        """A line through the first difference."""
        if step is None:
            return ""
        return (f'<path class="mark" d="M{self.x(step):.1f} {_TOP}V{self.floor}">'
                f"<title>first difference, step {step}</title></path>")  # fmt: skip


def _svg(width: int, height: int, body: Sequence[str], title: str) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img"'
        f" aria-label={quoteattr(title)}>{''.join(body)}</svg>"
    )


def _heat_of(node: NodeDifference) -> float:
    return math.log2(2 + (node.max_ulp or 0))


def _colour(share: float) -> str:
    mixed = (round(a + (b - a) * share) for a, b in zip(_COLD, _HOT, strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)


def _tip(node: NodeDifference) -> str:
    ulp = "other bytes" if node.max_ulp is None else f"{node.max_ulp} ulp"
    return f"{node.where} ({node.op}): {ulp}"
