"""Figures as rows of text, for whatever draws a table. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sluice.sweep.figures import ArmFigures
from sluice.sweep.ranking import Ranking
from sluice.sweep.spread import Spread
from sluice.sweep.texts import Texts, by_workload
from sluice.sweep.words import NONE, milliseconds, number, percent, rate


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
    """A table a workload, arms in the order of ``figures``; columns without a value are out."""
    ranked = {ranking.workload: ranking for ranking in rankings}
    about = by_workload(texts)
    return tuple(
        _table(
            workload,
            [one for one in figures if one.workload == workload],
            ranked.get(workload),
            about.get(workload, ()),
        )
        for workload in dict.fromkeys(one.workload for one in figures)
    )


def places(figures: Sequence[ArmFigures]) -> tuple[Table, ...]:
    """A table a workload: acceptance by place in the draft, of the arms that tell it."""
    found = []
    for workload in dict.fromkeys(one.workload for one in figures):
        mine = [one for one in figures if one.workload == workload and one.places]
        if not mine:
            continue
        n = max(len(one.places) for one in mine)
        columns = (
            Column("arm", "", is_number=False),
            *(Column(str(i), f"accepted of the drafts that reached place {i}")
              for i in range(1, n + 1)),
        )  # fmt: skip
        rows = tuple(
            (_name(one), *(number(p.acceptance) for p in one.places),
             *("" for _ in range(n - len(one.places))))
            for one in mine
        )  # fmt: skip
        found.append(Table(f"{workload}: acceptance by place in the draft", columns, rows))
    return tuple(found)


def _table(
    workload: str,
    figures: Sequence[ArmFigures],
    ranking: Ranking | None,
    texts: Sequence[Texts],
) -> Table:
    ranks = {one.arm: one.rank for one in ranking.arms} if ranking is not None else {}
    every = [*_COLUMNS]
    every.insert(1, (Column("rank", "by effective tok/s; arms within the noise share one"),
                     lambda one: _rank(one, ranks)))  # fmt: skip
    text = Column("text", "greedy text by prompt; the same letter is the same text", False)
    every.append((text, lambda one: " ".join(t.letters(one.arm.name) or NONE for t in texts)))
    kept = [(column, cell) for column, cell in every
            if any(cell(one).replace(NONE, "").strip() for one in figures)]  # fmt: skip
    return Table(
        title=workload,
        columns=tuple(column for column, _ in kept),
        rows=tuple(tuple(cell(one) for _, cell in kept) for one in figures),
        notes=tuple(_notes(figures, ranking)),
    )


def _notes(figures: Sequence[ArmFigures], ranking: Ranking | None) -> list[str]:
    notes = []
    if ranking is not None and ranking.noise is None:
        notes.append("nothing was repeated: no noise floor, and no rank")
    elif ranking is not None and ranking.noise is not None:
        notes.append(f"noise of one request: {percent(ranking.noise.relative_sd, 1)}"
                     f" ({ranking.noise.freedom} repeats)")  # fmt: skip
    for one in figures:
        for n, word, reasons in (
            (one.n_refused, "refused", one.refusals),
            (one.n_failed, "failed", one.failures),
        ):
            if n:
                notes.append(f"{one.arm.name}: {n} {word}: {'; '.join(reasons)}")
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


_COLUMNS: tuple[tuple[Column, _Cell], ...] = (
    (Column("arm", "", is_number=False), _name),
    (Column("tok/s", "effective: decoding, drafting and catch-up together"),
     lambda one: rate(_mean(one.effective_tok_s))),
    (Column("prompts", "least and greatest effective tok/s of a prompt"),
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
    (Column("must add", "tokens per step that this slot had to add"),
     lambda one: number(one.slot_next.gain_to_pay if one.slot_next is not None else None)),
    (Column("added", "tokens per step that it did add"),
     lambda one: number(one.slot_next.gain if one.slot_next is not None else None)),
    (Column("drafted", "drafted tokens"), lambda one: str(one.n_drafted) if one.arm.mtp else NONE),
    (Column("accepted", "accepted ones"), lambda one: str(one.n_accepted) if one.arm.mtp else NONE),
    (Column("acc tok", "acceptance over tokens"), lambda one: number(one.acceptance_tokens)),
    (Column("acc req", "acceptance over requests"), lambda one: number(one.acceptance_requests)),
    (Column("mean len", "1 + accepted per step that verified a draft"),
     lambda one: number(one.mean_len)),
    (Column("undrafted", "steps that verified none, not in mean len"),
     lambda one: NONE if one.n_undrafted is None or not one.arm.mtp else str(one.n_undrafted)),
    (Column("MiB/tok", "read for each token that decodes gave"),
     lambda one: number(one.mib_per_token, 1)),
    (Column("MiB/acc", "read for each accepted draft"),
     lambda one: number(one.mib_per_accepted, 1)),
    (Column("requests", "measured, of those made"), _requests),
)  # fmt: skip
