"""Both sides run again under observation, and what that shows."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import get_args

from sluice.errors import SluiceError
from sluice.telemetry.evidence import Evidence
from sluice.triage import ulp
from sluice.triage.finding import (
    Difference,
    Kind,
    Localisation,
    NodeDifference,
    SliceDifference,
    StepTrace,
)
from sluice.triage.localise import (
    Located,
    Parting,
    locate,
    logits_rows,
    measured,
)
from sluice.triage.observe import Array, Observer
from sluice.triage.side import Outcome, Side
from sluice.triage.weights import MOST, in_memory

_ORDER: tuple[str, ...] = get_args(Kind)


class Reruns:
    """Observed runs of two sides.

    Args:
        a, b: the sides.
        outcome_a, outcome_b: what they gave unobserved.
        same_loop: see :func:`sluice.triage.localise.locate`.
    """

    def __init__(
        self, a: Side, b: Side, outcome_a: Outcome, outcome_b: Outcome, *, same_loop: bool
    ) -> None:
        self._sides = a, b
        self._evidence = outcome_a.evidence, outcome_b.evidence
        self._same_loop = same_loop
        self._n_prompt = len(outcome_a.evidence.prompt_ids)
        self._observers = Observer(), Observer()
        self._movement: dict[int, tuple[float, int | None]] = {}
        self._located: Located | None = None
        self.notes: list[str] = []
        self.localisation = Localisation(None, None, (), 0, 0, note="not run")
        self.slices: tuple[SliceDifference, ...] = ()
        self.n_slices = 0

    @property
    def parting(self) -> Parting | None:
        """Where the decode loops part though every value before was the same."""
        return self._located.parting if self._located is not None else None

    def run(self, n: int) -> None:
        """Generate ``n`` tokens on both sides, look at every node, and localise."""
        changed = []
        for name, side, observer, known in zip(
            "AB", self._sides, self._observers, self._evidence, strict=True
        ):
            seen = self._observed(side, observer, n)
            if seen is not None and (words := _changed(known, seen)) is not None:
                changed.append(f"side {name}: {words}")
        a, b = self._observers
        located = locate(a.decodes, b.decodes, same_loop=self._same_loop)
        self._located = located
        self._collect_slices()
        self._measure_movement()
        nodes = self._captured(located, n)
        self.localisation = Localisation(
            first=nodes[0] if nodes else None,
            last_agreed=located.last_agreed,
            nodes=nodes,
            n_compared=located.n_compared,
            n_unmatched=located.n_unmatched,
            slices=self.slices,
            observing_changed="; ".join(changed) or None,
            note=None if nodes else _why_none(located),
        )

    def refined(self, differences: tuple[Difference, ...]) -> tuple[Difference, ...]:
        """The differences with movements from whole rows, and those that only a rerun shows."""
        found = [self._with_movement(one) for one in differences]
        located = self._located
        if located is not None and located.pair is not None and located.routing is not None:
            position = located.pair.position
            found.append(Difference("routing", located.routing, position=position,
                                    step=self._step(position)))  # fmt: skip
        if self.slices:
            one = self.slices[0]
            found.append(
                Difference(
                    "expert_bytes",
                    f"side {one.side.upper()}: expert {one.expert} of {one.tensor} is not what"
                    f" the file holds",
                    step=one.step,
                )
            )
        return tuple(sorted(found, key=lambda one: _ORDER.index(one.kind)))

    def with_movements(self, traces: tuple[StepTrace, ...]) -> tuple[StepTrace, ...]:
        """The traces with the movement of every step that both sides computed alike."""
        return tuple(
            dataclasses.replace(one, movement=self._movement[one.step][0])
            if one.step in self._movement and one.moved is not None
            else one
            for one in traces
        )

    def wrong_rows(self) -> tuple[str, ...]:
        """Sentences on tokens that were chosen from another row of logits than their own."""
        found = []
        for name, observer, evidence in zip("AB", self._observers, self._evidence, strict=True):
            words = _wrong_row(observer, evidence, self._n_prompt)
            if words is not None and self.localisation.observing_changed is None:
                found.append(f"side {name}: {words}")
        return tuple(found)

    def _observed(self, side: Side, observer: Observer, n: int) -> Evidence | None:
        try:
            return side.run(observer, n=n).evidence
        except SluiceError as err:
            self.notes.append(f"an observed run did not begin: {err}")
            return None

    def _captured(self, located: Located, n: int) -> tuple[NodeDifference, ...]:
        if located.pair is None:
            return ()
        pair, (a, b) = located.pair, self._observers
        again = Observer(capture=(pair.a, pair.row_a)), Observer(capture=(pair.b, pair.row_b))
        for side, observer in zip(self._sides, again, strict=True):
            self._observed(side, observer, n)
        if any(len(o.decodes) <= i for o, i in zip(again, (pair.a, pair.b), strict=True)):
            self.notes.append("the runs did not come as far again: values were not captured")
            return measured(located, a.decodes, b.decodes, self._n_prompt)
        try:
            return measured(located, again[0].decodes, again[1].decodes, self._n_prompt)
        except KeyError:
            self.notes.append("the graphs were other ones the second time: no values")
            return measured(located, a.decodes, b.decodes, self._n_prompt)

    def _collect_slices(self) -> None:
        found = [
            in_memory(bad, side, self._n_prompt)
            for side, observer in zip("ab", self._observers, strict=True)
            for bad in observer.bad_slices
        ]
        self.n_slices = len(found)
        self.slices = tuple(found[:MOST])

    def _measure_movement(self) -> None:
        rows = [
            logits_rows(observer.decodes, self._n_prompt, evidence.ids)
            for observer, evidence in zip(self._observers, self._evidence, strict=True)
        ]
        parted = next(
            (i for i, (x, y) in enumerate(zip(self._evidence[0].ids, self._evidence[1].ids,
                                              strict=False)) if x != y),
            None,
        )  # fmt: skip
        for step in sorted(rows[0].keys() & rows[1].keys()):
            if parted is not None and step > parted:
                break
            x, y = rows[0][step], rows[1][step]
            if x.shape == y.shape:
                self._movement[step] = ulp.largest_absolute(x, y), ulp.largest(x, y)

    def _with_movement(self, one: Difference) -> Difference:
        if one.kind not in ("ids", "logits") or one.step not in self._movement:
            return one
        movement, in_ulp = self._movement[one.step]
        words = one.words
        if one.kind == "logits":
            words = f"step {one.step}: the logits moved, by {movement:.3g}"
        return dataclasses.replace(one, words=words, movement=movement, movement_ulp=in_ulp)

    def _step(self, position: int) -> int | None:
        step = position - self._n_prompt + 1
        return step if step >= 0 else None


def _changed(known: Evidence, seen: Evidence) -> str | None:
    """A sentence where an observed run has other logits than the same run unobserved."""
    for step, (mine, other) in enumerate(
        zip(known.logits_sha256, seen.logits_sha256, strict=False)
    ):
        if mine != other:
            return f"observing changed the logits, from step {step} on"
    return None


def _wrong_row(observer: Observer, evidence: Evidence, n_prompt: int) -> str | None:
    rows = logits_rows(observer.decodes, n_prompt, evidence.ids)
    for step in sorted(rows):
        if step >= len(evidence.logits_sha256):
            return None
        if _sha256(rows[step]) == evidence.logits_sha256[step]:
            continue
        other = _row_with(observer, evidence.logits_sha256[step])
        if other is None:
            return None
        right = n_prompt - 1 + step
        return (
            f"step {step}: token {evidence.ids[step]} was chosen from the logits after position"
            f" {other}, not from those after position {right}"
        )
    return None


def _row_with(observer: Observer, sha256: str) -> int | None:
    for decode in observer.decodes:
        if decode.is_head or decode.logits is None:
            continue
        first = len(decode.tokens) - len(decode.logits)
        for row, logits in enumerate(decode.logits):
            if _sha256(logits) == sha256:
                return decode.position + first + row
    return None


def _sha256(row: Array) -> str:
    return hashlib.sha256(row.tobytes()).hexdigest()


def _why_none(located: Located) -> str:
    if located.parting is not None:
        return located.parting.words
    if not located.n_compared:
        return "no node of one side has a counterpart on the other"
    return "every node that both sides have agrees"
