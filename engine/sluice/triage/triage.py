"""Compare, localise, attribute, classify: two runs in, one finding out."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence

from sluice.bundled import model_path
from sluice.config import Config
from sluice.errors import RequestError, SluiceError
from sluice.telemetry.evidence import Evidence
from sluice.triage import classify, compare, switches
from sluice.triage.arm import in_own_process
from sluice.triage.attribute import Attributor, Level, Runner
from sluice.triage.classify import Case
from sluice.triage.control import control
from sluice.triage.finding import (
    Attribution,
    Control,
    Difference,
    Finding,
    SliceDifference,
    Subject,
)
from sluice.triage.localise import Parting
from sluice.triage.reruns import Reruns
from sluice.triage.side import Fault, Outcome, Side, from_evidence, ids_of, same_shape
from sluice.triage.weights import differing
from sluice.triage.widths import WidthVerdict, verdict

Compared = Evidence | Config | Side

SWEPT_DRAFTS = (1, 2, 3)
"""Draft widths that side B is run with: all of one width class on every kernel known to us."""

_SWEEP_MAX = 6  # wider drafts are in another class of the tiled kernels


def triage(
    a: Compared,
    b: Compared,
    *,
    prompt: str | Sequence[int] | None = None,
    fault: Fault | None = None,
    localise: bool = True,
    attribution: bool = True,
    isolated: bool = True,
    labels: tuple[str, str] = ("A", "B"),
) -> Finding:
    """What differs between two runs, where it begins, what makes it, and of what class it is.

    Args:
        a, b: evidence, or settings to run ``prompt`` with (two models of one shape are two
            settings that differ in their model). Evidence is run again where its model and
            build are at hand.
        prompt: text or ids; needed with settings.
        fault: planted into side B's engine.
        localise: run both sides again and look at every node.
        attribution: run what lies between the sides.
        isolated: give each arm a process of its own; arms with a fault never have one.
        labels: what a report calls the sides.

    Raises:
        RequestError: settings without a prompt, or a run that is refused.
        SluiceError: a run that did not begin.
    """
    work = _Work(a, b, prompt, fault)
    work.compare()
    if localise:
        work.localise()
    if attribution:
        work.attribute(isolated)
    return work.finding(labels)


class _Work:
    """The state of one triage."""

    def __init__(
        self, a: Compared, b: Compared, prompt: str | Sequence[int] | None, fault: Fault | None
    ) -> None:
        self.notes: list[str] = []
        self.sides = [self._side(a, prompt, None, "A"), self._side(b, prompt, fault, "B")]
        self.given = [one if isinstance(one, Evidence) else None for one in (a, b)]
        self.outcomes = [
            Outcome(given) if given is not None else _ran(side)
            for given, side in zip(self.given, self.sides, strict=True)
        ]
        self.differences: tuple[Difference, ...] = ()
        self.reruns: Reruns | None = None
        self.attribution: Attribution | None = None
        self.control: Control | None = None
        self.drafts: dict[int, int | None] | None = None
        self.pieces: dict[int, str] = {}

    @property
    def a(self) -> Evidence:
        return self.outcomes[0].evidence

    @property
    def b(self) -> Evidence:
        return self.outcomes[1].evidence

    def compare(self) -> None:
        side = self.sides[0] or self.sides[1]
        if side is not None:
            ids = {*self.a.ids, *self.b.ids}
            ids |= {i for e in (self.a, self.b) for top in e.top2 for i in top.ids}
            with contextlib.suppress(SluiceError):
                self.pieces = side.pieces(ids)
        self.differences = compare.differences(self.a, self.b, self.pieces)

    def localise(self) -> None:
        """Look at both sides up to the first difference, if there is one beyond the settings."""
        a, b = self.sides
        found = compare.decisive(self.differences)
        if found is None or found.kind in ("config", "prompt"):
            return
        if a is None or b is None:
            self.notes.append("not localised: one side cannot be run again")
            return
        same_loop = classify.same_loop(self.a.config, self.b.config)
        self.reruns = Reruns(a, b, self.outcomes[0], self.outcomes[1], same_loop=same_loop)
        self.reruns.run(self._n_steps())
        self.differences = self.reruns.refined(self.differences)

    def attribute(self, isolated: bool) -> None:
        """Run arms between the sides, and side B at other draft widths."""
        a, b = self.sides
        found = compare.decisive(self.differences)
        moved = next((d for d in self.differences if d.kind in ("ids", "logits")), None)
        if a is None or b is None or found is None or moved is None or moved.step is None:
            return
        if any(outcome.failed for outcome in self.outcomes) or (a.prompt != b.prompt and (
            self.a.prompt_ids != self.b.prompt_ids
        )):  # fmt: skip
            return
        planted = a.planted or b.planted
        runner = in_own_process if isolated and not planted else _ran
        level: Level = "ids" if moved.kind == "ids" else "logits"
        setups = switches.setup(a.config, a.off), switches.setup(b.config, b.off)
        same_model = self.a.fingerprint.model_sha256 == self.b.fingerprint.model_sha256
        if switches.differing(*setups) and same_model:
            self.attribution = Attributor(
                b, *setups, self.a, self.b, step=moved.step, level=level, runner=runner
            ).attribute()
            same_loop = classify.same_loop(self.a.config, self.b.config)
            self.control = control(a, b, same_loop=same_loop)
        drafting = next((i for i, one in ((1, b), (0, a)) if one.config.mtp), None)
        if drafting is not None and same_model:
            self.drafts = self._sweep(drafting, runner, level)

    def finding(self, labels: tuple[str, str]) -> Finding:
        reruns = self.reruns
        slices, n_slices, alike = self._weights()
        case = Case(
            a=self.a,
            b=self.b,
            differences=self.differences,
            asked_a=self._asked(0),
            asked_b=self._asked(1),
            failed_a=self.outcomes[0].failed,
            failed_b=self.outcomes[1].failed,
            localisation=reruns.localisation if reruns is not None else None,
            attribution=self.attribution,
            control=self.control,
            parting=self._parting(),
            width=self._width(),
            drafts=self.drafts,
            wrong_rows=reruns.wrong_rows() if reruns is not None else (),
            slices=slices,
            n_slices=n_slices,
            same_shape=alike,
        )
        localisation = case.localisation
        if slices and localisation is not None:
            localisation = dataclasses.replace(localisation, slices=slices)
        traces = compare.traces(self.a, self.b, self.pieces)
        if reruns is not None:
            traces = reruns.with_movements(traces)
        return Finding(
            a=self._subject(0, labels[0]),
            b=self._subject(1, labels[1]),
            classification=classify.classify(case),
            difference=compare.decisive(self.differences),
            differences=self.differences,
            steps=traces,
            localisation=localisation,
            attribution=self.attribution,
            control=self.control,
            notes=tuple(self.notes + (reruns.notes if reruns is not None else [])),
        )

    def _side(
        self, one: Compared, prompt: str | Sequence[int] | None, fault: Fault | None, name: str
    ) -> Side | None:
        if isinstance(one, Side):
            return one if fault is None else dataclasses.replace(one, fault=fault)
        if isinstance(one, Evidence):
            side = from_evidence(one)
            if isinstance(side, str):
                self.notes.append(f"side {name} {side}")
                return None
            return side if fault is None else dataclasses.replace(side, fault=fault)
        if prompt is None:
            raise RequestError("triage: settings can only be run with a prompt")
        side = Side(one, ids_of(prompt))
        return side if fault is None else dataclasses.replace(side, fault=fault)

    def _n_steps(self) -> int:
        """Tokens to generate so that the first difference is among them."""
        longest = max(len(self.a.ids), len(self.b.ids), 1)
        steps = [d.step for d in self.differences if d.step is not None]
        first = min(steps, default=0)
        group = next((g for e in (self.a, self.b) for g in e.groups
                      if g.step <= first <= g.step + len(g.accepted)), None)  # fmt: skip
        end = first + 2 if group is None else group.step + len(group.drafted) + 2
        return max(1, min(end, longest))

    def _sweep(self, index: int, runner: Runner, level: Level) -> dict[int, int | None] | None:
        """Where the side that drafts leaves the other one, by draft width."""
        first = compare.first_token if level == "ids" else compare.first_moved
        side, other = self.sides[index], self.outcomes[1 - index].evidence
        if side is None or side.config.draft > _SWEEP_MAX:
            return None
        found = {side.config.draft: first(other, self.outcomes[index].evidence)}
        for draft in SWEPT_DRAFTS:
            config = side.config.replace(draft=draft)
            narrow = min(config.ubatch, config.ctx) < draft + 2
            if draft in found or config.draft_min > draft or narrow:
                continue
            with contextlib.suppress(SluiceError):
                outcome = runner(side.with_config(config, side.off))
                if outcome.failed is None:
                    found[draft] = first(other, outcome.evidence)
        return found

    def _weights(self) -> tuple[tuple[SliceDifference, ...], int, bool]:
        """Slices that are not the file's; else, of two models, what their files do not share."""
        if self.reruns is not None and self.reruns.slices:
            return self.reruns.slices, self.reruns.n_slices, True
        a, b = self.sides
        if self.a.fingerprint.model_sha256 == self.b.fingerprint.model_sha256:
            return (), 0, True
        if a is None or b is None:
            return (), 0, True
        paths = model_path(a.config.model), model_path(b.config.model)
        if not same_shape(*paths):
            return (), 0, False
        return *differing(*paths), True

    def _width(self) -> WidthVerdict | None:
        first = self.reruns.localisation.first if self.reruns is not None else None
        a, b = self.sides
        if first is None or a is None or b is None:
            return None
        setups = switches.setup(a.config, a.off), switches.setup(b.config, b.off)
        decode_only = [
            set(switches.KERNELS) if one.config.numerics == "decode-invariant" else set()
            for one in setups
        ]
        prefill = first.step is None or first.step == 0
        off = [set(one.off) | (set() if prefill else extra)
               for one, extra in zip(setups, decode_only, strict=True)]  # fmt: skip
        return verdict(first, model_path(b.config.model), off_a=off[0], off_b=off[1])

    def _parting(self) -> Parting | None:
        return self.reruns.parting if self.reruns is not None else None

    def _asked(self, index: int) -> dict[str, object] | None:
        side = self.sides[index]
        if side is None or self.given[index] is not None:
            return None
        return side.config.resolved().as_dict()

    def _subject(self, index: int, label: str) -> Subject:
        evidence = self.outcomes[index].evidence
        return Subject(
            label=label,
            config=evidence.config,
            fingerprint=dataclasses.asdict(evidence.fingerprint),
            text=evidence.text,
            n_tokens=len(evidence.ids),
            ran=self.given[index] is None or self.reruns is not None,
            failed=self.outcomes[index].failed,
        )


def _ran(side: Side | None) -> Outcome:
    assert side is not None  # only evidence has no side
    return side.run()
