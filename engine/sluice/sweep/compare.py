"""Two sweeps side by side: two builds, two machines, two targets. Pure."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from sluice.sweep.arm import parse
from sluice.sweep.conclusions import conclude
from sluice.sweep.figures import figures
from sluice.sweep.ranking import noise_of, rankings
from sluice.sweep.report import ordered
from sluice.sweep.request import by_prompt, effective_tok_s
from sluice.sweep.row import Identity, Row
from sluice.sweep.rows import Recorded
from sluice.sweep.screen import table_lines
from sluice.sweep.spread import Noise
from sluice.sweep.table import Column, Table
from sluice.sweep.words import NONE, listed, number, percent, rate

SCHEMA: Final = "sluice-sweep-compare/1"

Verdict = Literal["faster", "slower", "within noise", "no noise floor"]


@dataclass(frozen=True, slots=True)
class Pair:
    """One arm on one workload in both sweeps, over the prompts that both measured.

    ``ratio`` is B's effective tok/s over A's, ``floor`` the relative difference that noise alone
    could make, ``verdict`` what B is. ``same_text`` says whether the greedy texts are the same
    ones, ``None`` where there are none.
    """

    workload: str
    arm: str
    is_cold: bool | None
    n_prompts: int
    tok_s_a: float
    tok_s_b: float
    ratio: float
    floor: float | None
    verdict: Verdict
    acceptance_a: float | None
    acceptance_b: float | None
    same_text: bool | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sweeps.

    ``differences`` are those of the identities, ``fastest`` the fastest arms of each workload in
    A and in B, ``unpaired`` what only one of them has, in words.
    """

    a: Identity
    b: Identity
    differences: tuple[str, ...]
    pairs: tuple[Pair, ...]
    fastest: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]
    unpaired: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON: the schema first."""
        values = dataclasses.asdict(self)
        return {"schema": SCHEMA, **values, "a": self.a.as_dict(), "b": self.b.as_dict()}


def compare(a: Recorded, b: Recorded) -> Comparison:
    """B against A.

    Raises:
        RequestError: a row names an arm that is none.
    """
    left, right = ordered(a.rows), ordered(b.rows)
    cells_a, cells_b = _cells(left), _cells(right)
    keys_b = {row.workload: row.workload_key for row in right}
    pairs, unpaired = [], []
    same = [w for w in dict.fromkeys(row.workload for row in left) if w in keys_b]
    for name in dict.fromkeys(row.workload for row in (*left, *right)):
        keys = {row.workload_key for row in (*left, *right) if row.workload == name}
        if name not in same:
            where = "B" if name in keys_b else "A"
            unpaired.append(f"{name}: in {where} only")
        elif len(keys) > 1:
            unpaired.append(f"{name}: of other prompts or sampling in A and B, not compared")
            same.remove(name)
    for cell in dict.fromkeys((*cells_a, *cells_b)):
        if cell[0] not in same:
            continue
        if cell in cells_a and cell in cells_b:
            mine = [row for row in left if row.workload == cell[0]]
            theirs = [row for row in right if row.workload == cell[0]]
            pair = _pair(cell, cells_a[cell], cells_b[cell], _noise(mine, theirs))
            if pair is not None:
                pairs.append(pair)
                continue
            unpaired.append(f"{cell[0]}, {_name(cell)}: no prompt measured in both")
        else:
            where = "A" if cell in cells_a else "B"
            unpaired.append(f"{cell[0]}, {_name(cell)}: in {where} only")
    return Comparison(
        a.identity, b.identity, _differences(a.identity, b.identity), tuple(pairs),
        _fastest(left, right, same), tuple(unpaired),
    )  # fmt: skip


def compared_screen(comparison: Comparison, a: str, b: str) -> str:
    """The comparison as a screen of text, LF line ends; ``a`` and ``b`` name the sweeps."""
    parts = [f"A  {a}\nB  {b}"]
    differ = [f"  {one}" for one in comparison.differences] or ["  nothing but the time"]
    parts.append("\n".join(["What A and B differ in", *differ]))
    for workload, first, second in comparison.fastest:
        mine = [pair for pair in comparison.pairs if pair.workload == workload]
        if mine:
            parts.append("\n".join(table_lines(_table(workload, mine))))
        parts.append(f"  fastest in A: {listed(first, 'or') or 'none'};"
                     f" in B: {listed(second, 'or') or 'none'}.")  # fmt: skip
    if comparison.unpaired:
        parts.append("\n".join(["Not compared", *(f"  {one}" for one in comparison.unpaired)]))
    return "\n\n".join(parts) + "\n"


_Cell = tuple[str, str, bool | None]
"""Workload, arm, and whether the rows were cold."""


def _cells(rows: Iterable[Row]) -> dict[_Cell, list[Row]]:
    cells: dict[_Cell, list[Row]] = {}
    for row in rows:
        if row.ok:
            cells.setdefault((row.workload, row.arm, row.is_cold), []).append(row)
    return cells


def _pair(cell: _Cell, a: Sequence[Row], b: Sequence[Row], noise: Noise | None) -> Pair | None:
    shared = {row.prompt for row in a} & {row.prompt for row in b}
    rows_a, rows_b = ([row for row in rows if row.prompt in shared] for rows in (a, b))
    rates = [by_prompt(rows, effective_tok_s).values() for rows in (rows_a, rows_b)]
    if not all(rates):
        return None
    tok_s_a, tok_s_b = map(statistics.fmean, rates)
    floor = noise.floor(len(rows_a), len(rows_b)) if noise is not None else None
    drafts = parse(cell[1]).mtp
    acceptances = [figures(rows)[0].acceptance_tokens if drafts else None
                   for rows in (rows_a, rows_b)]  # fmt: skip
    return Pair(
        *cell, len(shared), tok_s_a, tok_s_b, tok_s_b / tok_s_a, floor,
        _verdict(tok_s_a, tok_s_b, floor), acceptances[0], acceptances[1],
        _same_text(rows_a, rows_b),
    )  # fmt: skip


def _noise(a: Sequence[Row], b: Sequence[Row]) -> Noise | None:
    """Pooled over both sweeps; that of one where only the other has no repeat."""
    found = [noise for noise in (noise_of(a), noise_of(b)) if noise is not None]
    if not found:
        return None
    freedom = sum(noise.freedom for noise in found)
    variance = sum(noise.relative_sd**2 * noise.freedom for noise in found) / freedom
    return Noise(variance**0.5, freedom)


def _verdict(a: float, b: float, floor: float | None) -> Verdict:
    if floor is None:
        return "no noise floor"
    if 1 - min(a, b) / max(a, b) <= floor:
        return "within noise"
    return "faster" if b > a else "slower"


def _same_text(a: Sequence[Row], b: Sequence[Row]) -> bool | None:
    texts = [{(row.prompt, row.text_sha256) for row in rows if row.text_sha256} for rows in (a, b)]
    return texts[0] == texts[1] if all(texts) else None


def _differences(a: Identity, b: Identity) -> tuple[str, ...]:
    found = a.differences(b)
    return tuple(
        one.replace(" here, ", " in A, ").removesuffix(" there") + " in B" for one in found
    )


def _fastest(
    a: Sequence[Row], b: Sequence[Row], workloads: Sequence[str]
) -> tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]:
    sides = [
        {one.workload: one.fastest for one in conclude(figures(rows), rankings(rows))}
        for rows in (a, b)
    ]
    return tuple((name, sides[0][name], sides[1][name]) for name in workloads)


def _name(cell: _Cell) -> str:
    return cell[1] + {True: " (cold)", False: " (warm)", None: ""}[cell[2]]


def _table(workload: str, pairs: Sequence[Pair]) -> Table:
    same = {True: "same", False: "other", None: NONE}
    return Table(
        workload,
        (
            Column("arm", "as --arm takes it", False),
            Column("A tok/s", "effective, over the prompts of both"),
            Column("B tok/s", "likewise"),
            Column("B/A", "their ratio"),
            Column("noise", "what noise alone can make"),
            Column("B is", "what B is, against A", False),
            Column("A acc.", "acceptance over tokens"),
            Column("B acc.", "likewise"),
            Column("text", "whether the greedy texts are the same", False),
        ),
        tuple(
            (
                _name((one.workload, one.arm, one.is_cold)), rate(one.tok_s_a), rate(one.tok_s_b),
                number(one.ratio), percent(one.floor, 1), one.verdict,
                number(one.acceptance_a), number(one.acceptance_b), same[one.same_text],
            )
            for one in pairs
        ),
    )  # fmt: skip
