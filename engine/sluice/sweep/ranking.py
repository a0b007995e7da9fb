"""Which arm is the fastest, and which differences are none. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sluice.sweep.request import by_prompt, effective_tok_s
from sluice.sweep.row import Row
from sluice.sweep.spread import Noise


@dataclass(frozen=True, slots=True)
class Ranked:
    """One arm in the order of a workload.

    Arms of one ``rank`` (from 1) are within the noise of the first of them, and are not ranked
    among themselves; ``None`` where there is no noise floor to rank by. ``behind`` is how far
    the arm is behind the fastest, relative to it; ``floor`` the difference that noise alone could
    make between those two.
    """

    arm: str
    effective_tok_s: float
    n_requests: int
    rank: int | None
    behind: float
    floor: float | None


@dataclass(frozen=True, slots=True)
class Ranking:
    """The arms of one workload, fastest first, over the prompts that all of them have.

    ``noise`` is ``None`` where nothing was repeated: then nothing is ranked either.
    """

    workload: str
    noise: Noise | None
    arms: tuple[Ranked, ...]
    n_prompts: int

    @property
    def fastest(self) -> tuple[str, ...]:
        """The fastest arm, and those that cannot be told from it."""
        return tuple(a.arm for a in self.arms if a.rank == 1)

    def is_apart(self, a: str, b: str) -> bool:
        """Whether two arms of the ranking differ by more than noise alone can make."""
        if self.noise is None:
            return False
        fast, slow = sorted(
            (one for one in self.arms if one.arm in (a, b)), key=lambda one: -one.effective_tok_s
        )
        apart = 1 - slow.effective_tok_s / fast.effective_tok_s
        return apart > self.noise.floor(fast.n_requests, slow.n_requests)

    @property
    def is_settled(self) -> bool:
        """Whether one arm is the fastest, outside the noise."""
        return len(self.fastest) == 1


def rankings(rows: Iterable[Row]) -> tuple[Ranking, ...]:
    """One ranking a workload, in the order in which they first come; cold rows are left out.

    Arms are compared by their mean effective tok/s over the prompts that all of them have, each
    prompt the mean of its repeats. An arm that was measured on fewer than half of the workload's
    prompts is left out: it would take the others' prompts from the comparison.
    """
    found = []
    by_workload: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.ok and row.is_cold is not True and effective_tok_s(row) is not None:
            by_workload[row.workload].append(row)
    for workload, measured in by_workload.items():
        by_arm: dict[str, list[Row]] = defaultdict(list)
        for row in measured:
            by_arm[row.arm].append(row)
        found.append(_ranking(workload, by_arm, noise_of(measured)))
    return tuple(found)


def noise_of(rows: Iterable[Row]) -> Noise | None:
    """The noise of repeats of one arm and prompt of a workload; ``None`` without repeats."""
    repeats: dict[tuple[str, str, str, bool | None], list[float]] = defaultdict(list)
    for row in rows:
        rate = effective_tok_s(row) if row.ok else None
        if rate is not None:
            repeats[row.workload, row.arm, row.prompt, row.is_cold].append(rate)
    return Noise.of(repeats.values())


def _ranking(workload: str, by_arm: Mapping[str, Sequence[Row]], noise: Noise | None) -> Ranking:
    prompts_of = {arm: {row.prompt for row in rows} for arm, rows in by_arm.items()}
    n_prompts = len(set().union(*prompts_of.values()))
    complete = [arm for arm, prompts in prompts_of.items() if 2 * len(prompts) >= n_prompts]
    prompts = set.intersection(*(prompts_of[arm] for arm in complete))
    rates, counts = {}, {}
    for arm in complete if prompts else []:
        shared = [row for row in by_arm[arm] if row.prompt in prompts]
        rates[arm] = statistics.fmean(by_prompt(shared, effective_tok_s).values())
        counts[arm] = len(shared)
    order = sorted(rates, key=lambda arm: -rates[arm])
    ranked: list[Ranked] = []
    leader, rank = "", 0
    for place, arm in enumerate(order, 1):
        if not leader or _apart(rates, counts, leader, arm, noise):
            leader, rank = arm, place
        first = order[0]
        ranked.append(
            Ranked(
                arm=arm,
                effective_tok_s=rates[arm],
                n_requests=counts[arm],
                rank=None if noise is None else rank,
                behind=1 - rates[arm] / rates[first],
                floor=None if noise is None else noise.floor(counts[first], counts[arm]),
            )
        )
    return Ranking(workload, noise, tuple(ranked), len(prompts))


def _apart(
    rates: Mapping[str, float], counts: Mapping[str, int], a: str, b: str, noise: Noise | None
) -> bool:
    if noise is None:
        return False
    return 1 - rates[b] / rates[a] > noise.floor(counts[a], counts[b])
