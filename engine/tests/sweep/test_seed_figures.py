"""The figures of a published sweep of draft lengths, from what it prints, by our formulas.

The data says of each figure whether it follows; a figure that does not is never made to.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from sluice.sweep import formulas
from sluice.sweep.spread import Spread

DATA = json.loads((Path(__file__).parent / "data" / "seed_figures.json").read_text("utf-8"))
FIGURES: list[dict[str, Any]] = DATA["figures"]
TINY = 1e-9


def mean(*values: float) -> float:
    spread = Spread.of(values)
    assert spread is not None
    return spread.mean


def value(expression: Any, inputs: Iterator[float]) -> float:
    """The expression with its printed figures, in order, replaced by ``inputs``."""
    if isinstance(expression, str):
        return next(inputs)
    if isinstance(expression, (int, float)):
        return float(expression)
    if "ms" in expression:
        return next(inputs) / 1000
    if "minus" in expression:
        left, right = expression["minus"]
        return value(left, inputs) - value(right, inputs)
    formula = mean if expression["f"] == "mean" else getattr(formulas, expression["f"])
    arguments = [value(one, inputs) for one in expression["args"]]
    if expression["f"] in ("acceptance_of_fixed", "step_tokens_of_fixed"):
        arguments[1] = int(arguments[1])
    found: float = formula(*arguments)
    return found


def printed_in(expression: Any) -> list[str]:
    """The printed figures that an expression rests on, in the order of their use."""
    if isinstance(expression, str):
        return [expression]
    if isinstance(expression, dict):
        parts = [expression["ms"]] if "ms" in expression else []
        parts += expression.get("args", []) + expression.get("minus", [])
        return [text for part in parts for text in printed_in(part)]
    return []


def rounded(text: str) -> tuple[float, float]:
    """The least and the greatest value that prints as ``text``."""
    half = Decimal(1).scaleb(int(Decimal(text).as_tuple().exponent)) / 2
    return float(Decimal(text) - half), float(Decimal(text) + half)


def extremes(expression: Any, texts: Sequence[str]) -> tuple[float, float]:
    """Least and greatest value over the rounding of the inputs; equal inputs move together."""
    distinct = list(dict.fromkeys(texts))
    found = []
    for corner in itertools.product(*(rounded(text) for text in distinct)):
        chosen = dict(zip(distinct, corner, strict=True))
        found.append(value(expression, iter([chosen[text] for text in texts])))
    return min(found), max(found)


def ours(figure: dict[str, Any]) -> float | None:
    if figure["from"] is None:
        return None
    texts = printed_in(figure["from"])
    return value(figure["from"], iter([float(t) for t in texts])) * figure["scale"]


def verdict(figure: dict[str, Any]) -> str:
    """What is true of a figure, whatever the data says."""
    found = ours(figure)
    if found is None:
        return "not derivable"
    if figure["printed"] is None:
        return "not printed"
    ends = figure["printed"].split(" to ")
    low, high = rounded(ends[0])[0], rounded(ends[-1])[1]
    if low - TINY <= found <= high + TINY:
        return "follows"
    least, most = extremes(figure["from"], printed_in(figure["from"]))
    overlaps = least * figure["scale"] < high - TINY and most * figure["scale"] > low + TINY
    return "rounding" if overlaps else "differs"


def name(figure: dict[str, Any]) -> str:
    return f"{figure['model']}: {figure['what']}"


@pytest.mark.parametrize("figure", FIGURES, ids=name)
def test_a_printed_figure_is_what_the_data_says_of_it(figure: dict[str, Any]) -> None:
    assert verdict(figure) == figure["verdict"]
    assert figure["why"] or figure["verdict"] == "follows"


@pytest.mark.parametrize(
    ("printed", "expression", "expected"),
    [
        ("0.50", "0.50", "follows"),
        ("0.51", {"f": "ratio", "args": ["2.03", 4]}, "follows"),
        ("0.51", {"f": "ratio", "args": ["2.01", 4]}, "differs"),
        ("0.51", {"f": "ratio", "args": ["2.0", 4]}, "rounding"),
        ("5 to 7", "7.9", "differs"),
        ("1", None, "not derivable"),
        (None, "1", "not printed"),
    ],
)
def test_the_verdicts_can_be_wrong(printed: str | None, expression: Any, expected: str) -> None:
    assert verdict({"printed": printed, "from": expression, "scale": 1}) == expected


def test_the_table_of_what_follows() -> None:
    """Run with ``-s`` to read it."""
    words = {"follows": "follows", "rounding": "only within the rounding of its inputs",
             "differs": "does not follow", "not derivable": "cannot be derived",
             "not printed": "not printed"}  # fmt: skip
    lines = [f"{'figure':<58} {'printed':>10} {'ours':>8}  verdict"]
    for figure in FIGURES:
        found = ours(figure)
        shown = "–" if found is None else f"{found:.4g}"
        why = f": {figure['why']}" if figure["why"] else ""
        lines.append(f"{name(figure):<58} {figure['printed'] or '–':>10} {shown:>8}"
                     f"  {words[verdict(figure)]}{why}")  # fmt: skip
    counts = [f"{sum(verdict(f) == kind for f in FIGURES)} {kind}" for kind in words]
    print("\n" + "\n".join([*lines, f"{len(FIGURES)} figures: {', '.join(counts)}"]))
    assert sum(f["verdict"] == "follows" for f in FIGURES) > len(FIGURES) / 3


def _ms(text: str) -> float:
    return float(text) / 1000


def step(tokens: float, rate: float) -> float:
    found = formulas.step_time_s(tokens, rate)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("tokens", "seconds", "longer_tokens", "longer_seconds", "pays"),
    [
        # MoE: one draft is the fastest setting, a second one loses, three lose against none.
        (1, _ms("6.3"), 1.88, _ms("8.8"), True),
        (1.88, _ms("8.8"), 2.10, step(2.10, 1.88 / _ms("8.8") - 23), False),
        (1, _ms("6.3"), 2.14, _ms("13.9"), False),
        # Dense, sampled: two and three tie, six is the worst; greedy: six is worse than four.
        (2.22, step(2.22, 62.9), 2.51, step(2.51, 62.0), False),
        (2.51, step(2.51, 62.0), 2.84, step(2.84, 47.4), False),
        (4.20, step(4.20, 91.9), 5.20, step(5.20, 87.5), False),
        (1, _ms("23.8"), 2.22, step(2.22, 62.9), True),
    ],
)
def test_slots_pay_where_the_text_says_that_they_do(
    tokens: float, seconds: float, longer_tokens: float, longer_seconds: float, pays: bool
) -> None:
    needed = formulas.gain_to_pay(longer_seconds - seconds, tokens / seconds)
    assert (longer_tokens - tokens > needed) is pays
    assert (longer_tokens / longer_seconds > tokens / seconds) is pays
