"""The figures of every arm on every workload, from the rows. Pure.

Rates and times of an arm are the mean over prompts, each the mean over its repeats; ratios over
tokens sum first and divide then. Formulas are those of :mod:`sluice.sweep.formulas`.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sluice.errors import RequestError
from sluice.sweep import formulas
from sluice.sweep.arm import Arm, parse
from sluice.sweep.request import (
    by_prompt,
    decode_tok_s,
    effective_tok_s,
    step_time_s,
    step_tokens,
)
from sluice.sweep.row import Row
from sluice.sweep.slots import SlotCost, slot_cost
from sluice.sweep.spread import Spread


@dataclass(frozen=True, slots=True)
class Place:
    """One place in the draft, counted from 1: drafts that reached it, and tokens accepted there."""

    place: int
    n_offered: int
    n_accepted: int

    @property
    def acceptance(self) -> float | None:
        """``accepted at this place / drafts that reached it``."""
        return formulas.acceptance(self.n_accepted, self.n_offered)


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """One arm on one workload; ``is_cold`` as in the rows. ``None`` where it cannot be told.

    Args:
        n_requests: measured ones, of ``n_prompts`` prompts; ``n_failed`` and ``n_refused``
            others were not, for the reasons in ``failures`` and ``refusals``.
        acceptance_requests: mean over requests of each one's accepted over drafted.
        acceptance_tokens: all accepted over all drafted.
        places: acceptance by place in the draft.
        mean_len: 1 + accepted per verify step; ``n_undrafted`` steps verified nothing and are
            not in it.
        tokens_per_step: tokens that decodes gave over all steps, drafted or not.
        drafted_per_step: likewise.
        tok_s: tokens a second of the target's decodes alone.
        effective_tok_s: tokens a second of decoding, drafting and catch-up together.
        step_s: tokens per step over effective tok/s.
        slot_off: cost of a slot against MTP off; of fixed lengths only, because an arm of
            variable length also pays for the draft that fell below its threshold.
        slot_next: cost of a slot against the next shorter fixed length that was measured, where
            MTP off is length 0.
        mib_per_token: read from disk for each token that decodes gave.
        mib_per_accepted: read from disk for each accepted draft.
        hashes: SHA-256 of the greedy text by prompt, every one that its repeats gave.
    """

    arm: Arm
    workload: str
    is_cold: bool | None
    n_requests: int
    n_prompts: int
    n_failed: int = 0
    n_refused: int = 0
    failures: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    n_drafted: int = 0
    n_accepted: int = 0
    n_decoded: int = 0
    n_verify: int | None = None
    n_undrafted: int | None = None
    acceptance_requests: float | None = None
    acceptance_tokens: float | None = None
    places: tuple[Place, ...] = ()
    mean_len: float | None = None
    tokens_per_step: Spread | None = None
    drafted_per_step: float | None = None
    tok_s: Spread | None = None
    effective_tok_s: Spread | None = None
    prompt_tok_s: float | None = None
    step_s: float | None = None
    slot_off: SlotCost | None = None
    slot_next: SlotCost | None = None
    mib_per_token: float | None = None
    mib_per_accepted: float | None = None
    stall_s_per_token: float | None = None
    hashes: tuple[tuple[str, tuple[str, ...]], ...] = ()


def figures(rows: Iterable[Row]) -> tuple[ArmFigures, ...]:
    """The figures of every arm, workload by workload, in the order in which they first come.

    Rows of one arm that were cold and those that were not are two entries, cold first; an arm
    that was never measured has one, with the reasons. Costs of slots are taken over the prompts
    that both arms have.

    Raises:
        RequestError: a row names an arm that is none.
    """
    all_rows = list(rows)
    arms = {row.arm: parse(row.arm) for row in all_rows}
    for name, arm in arms.items():
        if name != arm.name:
            raise RequestError(f"arm {name!r} in a row: its name is {arm.name}; take the rows out")
    found = []
    for workload in dict.fromkeys(row.workload for row in all_rows):
        of_workload = [row for row in all_rows if row.workload == workload]
        measured: dict[_Cell, list[Row]] = defaultdict(list)
        for row in of_workload:
            if row.ok:
                measured[row.arm, row.is_cold].append(row)
        for name in arms:
            mine = [row for row in of_workload if row.arm == name]
            # A request that was not measured was neither cold nor warm: it is told of once.
            others = [row for row in mine if not row.ok]
            temperatures = [cold for cold in (True, False, None) if (name, cold) in measured]
            for is_cold in temperatures or ([None] if mine else []):
                base = _base(
                    arms[name], workload, is_cold, measured.get((name, is_cold), []), others
                )
                found.append(_with_costs(base, measured, arms))
                others = []
    return tuple(found)


_Cell = tuple[str, bool | None]
"""Arm, and whether the rows were cold."""


def _base(
    arm: Arm, workload: str, is_cold: bool | None, rows: Sequence[Row], others: Sequence[Row]
) -> ArmFigures:
    """Everything but what it takes another arm to say."""
    n_drafted, n_accepted = sum(r.n_drafted for r in rows), sum(r.n_accepted for r in rows)
    n_decoded = sum(r.n_decoded for r in rows)
    n_verify, n_undrafted = _sum([r.n_verify for r in rows]), _sum([r.n_undrafted for r in rows])
    n_steps = _sum([r.n_steps for r in rows])
    read_bytes, stall_s = _sum([r.read_bytes for r in rows]), _sum([r.stall_s for r in rows])
    requests = Spread.of(formulas.acceptance(r.n_accepted, r.n_drafted) for r in rows)
    steps = Spread.of(by_prompt(rows, step_time_s).values())
    return ArmFigures(
        arm=arm,
        workload=workload,
        is_cold=is_cold,
        n_requests=len(rows),
        n_prompts=len({r.prompt for r in rows}),
        n_failed=sum(r.outcome == "failed" for r in others),
        n_refused=sum(r.outcome == "refused" for r in others),
        failures=tuple(dict.fromkeys(r.error for r in others if r.outcome == "failed")),
        refusals=tuple(dict.fromkeys(r.error for r in others if r.outcome == "refused")),
        n_drafted=n_drafted,
        n_accepted=n_accepted,
        n_decoded=n_decoded,
        n_verify=None if n_verify is None else int(n_verify),
        n_undrafted=None if n_undrafted is None else int(n_undrafted),
        acceptance_requests=None if requests is None else requests.mean,
        acceptance_tokens=formulas.acceptance(n_accepted, n_drafted),
        places=_places(rows),
        mean_len=None if n_verify is None else formulas.mean_len(n_accepted, n_verify),
        tokens_per_step=Spread.of(by_prompt(rows, step_tokens).values()),
        drafted_per_step=None if n_steps is None else formulas.ratio(n_drafted, n_steps),
        tok_s=Spread.of(by_prompt(rows, decode_tok_s).values()),
        effective_tok_s=Spread.of(by_prompt(rows, effective_tok_s).values()),
        prompt_tok_s=formulas.tok_s(sum(r.n_prompt for r in rows), sum(r.prompt_s for r in rows)),
        step_s=None if steps is None else steps.mean,
        mib_per_token=_mib(read_bytes, n_decoded),
        mib_per_accepted=_mib(read_bytes, n_accepted),
        stall_s_per_token=None if stall_s is None else formulas.ratio(stall_s, n_decoded),
        hashes=_hashes(rows),
    )


def _with_costs(
    base: ArmFigures, measured: Mapping[_Cell, Sequence[Row]], arms: Mapping[str, Arm]
) -> ArmFigures:
    arm = base.arm
    off = measured.get((arm.baseline, base.is_cold), ())
    rows = measured.get((arm.name, base.is_cold), ())
    if not arm.is_fixed:
        return base
    slot_off = slot_cost(arm.baseline, rows, off, arm.n_max, off)
    slot_next = None
    shorter = [
        other
        for other in arms.values()
        if other.baseline == arm.baseline
        and (other.is_fixed or not other.mtp)
        and other.n_max < arm.n_max
        and measured.get((other.name, base.is_cold))
    ]
    if shorter:
        nearest = max(shorter, key=lambda other: other.n_max)
        slot_next = slot_cost(
            nearest.name,
            rows,
            measured[nearest.name, base.is_cold],
            arm.n_max - nearest.n_max,
            off,
        )
    return dataclasses.replace(base, slot_off=slot_off, slot_next=slot_next)


def _sum(values: Sequence[float | None]) -> float | None:
    """``None`` where a part of it is not known, or there is none."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _mib(read_bytes: float | None, n_tokens: int) -> float | None:
    return None if read_bytes is None else formulas.mib_per_token(read_bytes, n_tokens)


def _places(rows: Sequence[Row]) -> tuple[Place, ...]:
    """Over the rows that tell it."""
    offered: dict[int, int] = defaultdict(int)
    accepted: dict[int, int] = defaultdict(int)
    for row in rows:
        pairs = zip(row.offered_at or (), row.accepted_at or (), strict=True)
        for place, (n_offered, n_accepted) in enumerate(pairs, 1):
            offered[place] += n_offered
            accepted[place] += n_accepted
    return tuple(Place(place, offered[place], accepted[place]) for place in sorted(offered))


def _hashes(rows: Sequence[Row]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for row in rows:
        if row.text_sha256:
            found[row.prompt][row.text_sha256] = None
    return tuple((prompt, tuple(hashes)) for prompt, hashes in found.items())
