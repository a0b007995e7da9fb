"""Figures as rows of text, for whatever draws a table. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sluice.sweep.figures import ArmFigures
from sluice.sweep.ranking import Ranking
from sluice.sweep.spread import Spread
from sluice.sweep.texts import Texts, by_workload
from sluice.sweep.words import NONE, listed, milliseconds, number, percent, rate


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, what it means in a line, and whether its cells belong to the right."""

    heading: str
    meaning: str
    is_number: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """One table: as many cells in each row as there are columns."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


_Cell = Callable[[ArmFigures], str]


def tables(
    figures: Sequence[ArmFigures], rankings: Sequence[Ranking], texts: Sequence[Texts] = ()
) -> tuple[Table, ...]:
    """For each workload a table of speeds, one of drafts, and one of acceptance by place.

    Arms are in the order of ``figures``; a column without a value is left out, and so is a table
    that would have none.
    """
    ranked = {ranking.workload: ranking for ranking in rankings}
    about = by_workload(texts)
    found = []
    for workload in dict.fromkeys(one.workload for one in figures):
        mine = [one for one in figures if one.workload == workload]
        ranking = ranked.get(workload)
        found.append(speeds(workload, mine, ranking, about.get(workload, ())))
        found += [one for one in (drafts(workload, mine), places(workload, mine)) if one.rows]
    return tuple(found)


def speeds(
    workload: str, figures: Sequence[ArmFigures], ranking: Ranking | None, texts: Sequence[Texts]
) -> Table:
    """What the clock says of every arm."""
    ranks = {one.arm: one.rank for one in ranking.arms} if ranking is not None else {}
    rank = Column("rank", "by tok/s; arms within the noise of the first of them share one")
    text = Column("text", "greedy text by prompt; the same letter is the same text", False)
    return _table(
        workload,
        figures,
        [
            (rank, lambda one: _rank(one, ranks)),
            *_SPEEDS,
            (text, lambda one: " ".join(t.letters(one.arm.name) or NONE for t in texts)),
        ],
        _notes(figures, ranking),
    )


def drafts(workload: str, figures: Sequence[ArmFigures]) -> Table:
    """What was drafted, accepted and read; no rows where no arm drafted or read."""
    measured = [one for one in figures if one.n_requests]
    table = _table(f"{workload}: drafts", measured, _DRAFTS, [])
    return table if len(table.columns) > 1 else Table(table.title, (), ())


def places(workload: str, figures: Sequence[ArmFigures]) -> Table:
    """Acceptance by place in the draft, of the arms that tell it."""
    mine = [one for one in figures if one.places]
    n = max((len(one.places) for one in mine), default=0)
    columns = (
        _ARM,
        *(Column(str(i), f"accepted of the drafts that reached place {i}")
          for i in range(1, n + 1)),
    )  # fmt: skip
    rows = tuple(
        (_name(one), *(number(p.acceptance) for p in one.places), *[""] * (n - len(one.places)))
        for one in mine
    )
    return Table(f"{workload}: acceptance by place in the draft", columns, rows)


def _table(
    title: str,
    figures: Sequence[ArmFigures],
    columns: Sequence[tuple[Column, _Cell]],
    notes: Sequence[str],
) -> Table:
    kept = [(column, cell) for column, cell in columns
            if any(cell(one).replace(NONE, "").strip() for one in figures)]  # fmt: skip
    return Table(
        title=title,
        columns=(_ARM, *(column for column, _ in kept)),
        rows=tuple((_name(one), *(cell(one) for _, cell in kept)) for one in figures),
        notes=tuple(notes),
    )


def _notes(figures: Sequence[ArmFigures], ranking: Ranking | None) -> list[str]:
    notes = []
    if ranking is not None and ranking.noise is None:
        notes.append("nothing was repeated: no noise floor, and no rank")
    elif ranking is not None and ranking.noise is not None:
        notes.append(f"noise of one request: {percent(ranking.noise.relative_sd, 1)}"
                     f" ({ranking.noise.freedom} repeats)")  # fmt: skip
    same: dict[tuple[str, tuple[str, ...]], list[tuple[str, int]]] = {}
    for one in figures:
        for n, word, reasons in (
            (one.n_refused, "refused", one.refusals),
            (one.n_failed, "failed", one.failures),
        ):
            if n:
                same.setdefault((word, reasons), []).append((one.arm.name, n))
    for (word, reasons), arms in same.items():
        names = listed([name for name, _ in arms])
        notes.append(f"{sum(n for _, n in arms)} {word} ({names}): {'; '.join(reasons)}")
    return notes


def _name(one: ArmFigures) -> str:
    return one.arm.name + {True: " (cold)", False: " (warm)", None: ""}[one.is_cold]


def _rank(one: ArmFigures, ranks: Mapping[str, int | None]) -> str:
    rank = None if one.is_cold is True else ranks.get(one.arm.name)
    return NONE if rank is None else str(rank)


def _requests(one: ArmFigures) -> str:
    unmeasured = one.n_refused + one.n_failed
    return f"{one.n_requests}/{one.n_requests + unmeasured}" if unmeasured else str(one.n_requests)


def _spread(spread: Spread | None) -> str:
    if spread is None or spread.n < 2:
        return NONE
    return f"{rate(spread.low)}–{rate(spread.high)}"  # an en dash, as in any range


def _mean(spread: Spread | None) -> float | None:
    return None if spread is None else spread.mean


_ARM = Column("arm", "as --arm takes it", is_number=False)

_SPEEDS: tuple[tuple[Column, _Cell], ...] = (
    (Column("tok/s", "effective: decoding, drafting and catch-up together"),
     lambda one: rate(_mean(one.effective_tok_s))),
    (Column("range", "least and greatest effective tok/s of a prompt"),
     lambda one: _spread(one.effective_tok_s)),
    (Column("decode", "tok/s of the target's decodes alone"), lambda one: rate(_mean(one.tok_s))),
    (Column("tok/step", "tokens per step, all steps counted"),
     lambda one: number(_mean(one.tokens_per_step))),
    (Column("step ms", "tokens per step over effective tok/s"),
     lambda one: milliseconds(one.step_s)),
    (Column("slot ms", "one draft slot against MTP off"),
     lambda one: milliseconds(one.slot_off.cost_s if one.slot_off is not None else None)),
    (Column("of token", "slot ms over the time of a token with MTP off"),
     lambda one: percent(one.slot_off.share if one.slot_off is not None else None)),
    (Column("next ms", "one slot against the next shorter fixed length"),
     lambda one: milliseconds(one.slot_next.cost_s if one.slot_next is not None else None)),
    (Column("must add", "tokens per step that such a slot had to add"),
     lambda one: number(one.slot_next.gain_to_pay if one.slot_next is not None else None)),
    (Column("added", "tokens per step that it did add"),
     lambda one: number(one.slot_next.gain if one.slot_next is not None else None)),
    (Column("requests", "measured, of those made"), _requests),
)  # fmt: skip

_DRAFTS: tuple[tuple[Column, _Cell], ...] = (
    (Column("drafted", "drafted tokens"), lambda one: str(one.n_drafted) if one.arm.mtp else NONE),
    (Column("accepted", "accepted ones"), lambda one: str(one.n_accepted) if one.arm.mtp else NONE),
    (Column("by token", "acceptance over tokens"), lambda one: number(one.acceptance_tokens)),
    (Column("by request", "acceptance over requests"),
     lambda one: number(one.acceptance_requests)),
    (Column("mean len", "1 + accepted per step that verified a draft"),
     lambda one: number(one.mean_len)),
    (Column("undrafted", "steps that verified none, not in mean len"),
     lambda one: NONE if one.n_undrafted is None or not one.arm.mtp else str(one.n_undrafted)),
    (Column("MiB/token", "read for each token that decodes gave"),
     lambda one: number(one.mib_per_token, 1)),
    (Column("MiB/accepted", "read for each accepted draft"),
     lambda one: number(one.mib_per_accepted, 1)),
    (Column("stall ms", "waited for reads, for each token that decodes gave"),
     lambda one: milliseconds(one.stall_s_per_token)),
)  # fmt: skip
