"""From what was collected to a class, with a sentence for each piece of evidence.

The rules are asked in order, and the first that has evidence decides. They stand in the order
of what would make the later ones meaningless: evidence that contradicts itself first, then runs
that were not asked the same, then bugs that are seen directly, and arithmetic at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sluice.telemetry.evidence import Evidence
from sluice.triage import checks, switches
from sluice.triage.compare import IGNORED, first_token, settings
from sluice.triage.control import last_group, spelled
from sluice.triage.finding import (
    Attribution,
    Class,
    Classification,
    Control,
    Difference,
    Kind,
    Localisation,
    NodeDifference,
    SliceDifference,
)
from sluice.triage.localise import Parting
from sluice.triage.widths import WidthVerdict

# What these compute depends on cells of earlier decodes, beside their inputs.
_STATE_OPS = frozenset({"GATED_DELTA_NET", "SSM_CONV", "SSM_SCAN", "FLASH_ATTN_EXT"})
_STATE_RESULTS = frozenset({"attn_output", "kqv_out", "attn_pregate"})
_NOT_ROLLED_BACK = ("llama_decode returned -1", "could not roll back", "no free cells")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Everything that was collected; what was not tried is ``None`` or empty.

    Args:
        asked_a, asked_b: resolved settings that each side was asked for, where it was run here.
        failed_a, failed_b: messages of errors that ended a run.
        control: both sides without the width-dependent kernels.
        parting: where the decode loops part though every value before was the same.
        width: whether the first node's movement is a width class.
        drafts: draft width to the first step at which the side that drafts, run with it, leaves
            the other side; ``None`` where it does not.
        wrong_rows: sentences on tokens that were chosen from another row than their own.
        n_slices: differing slices, listed or not.
        same_shape: whether the models are alike in all but their weights' bytes.
    """

    a: Evidence
    b: Evidence
    differences: tuple[Difference, ...]
    asked_a: Mapping[str, Any] | None = None
    asked_b: Mapping[str, Any] | None = None
    failed_a: str | None = None
    failed_b: str | None = None
    localisation: Localisation | None = None
    attribution: Attribution | None = None
    control: Control | None = None
    parting: Parting | None = None
    width: WidthVerdict | None = None
    drafts: Mapping[int, int | None] | None = None
    wrong_rows: tuple[str, ...] = ()
    slices: tuple[SliceDifference, ...] = ()
    n_slices: int = 0
    same_shape: bool = True

    def difference(self, kind: Kind) -> Difference | None:
        """The first difference of a kind."""
        return next((d for d in self.differences if d.kind == kind), None)

    @property
    def same_loop(self) -> bool:
        """Whether both sides were asked for the same decode loop."""
        return same_loop(self.a.config, self.b.config)


def same_loop(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two configurations ask for the same decodes, as long as the tokens are the same."""
    names = ("mtp", "draft", "draft_min", "mtp_p_min", "catch_up", "ubatch", "ctx")
    plain = not a.get("mtp") and not b.get("mtp")
    wanted = ("mtp", "ubatch", "ctx") if plain else names
    return all(a.get(name) == b.get(name) for name in wanted)


def classify(case: Case) -> Classification:
    """The class of a case."""
    for name, rule in _RULES:
        evidence = rule(case)
        if evidence:
            return Classification(name, tuple(evidence))
    return Classification("UNKNOWN", tuple(_unknown(case)))


def _harness(case: Case) -> list[str]:
    found = []
    for side, evidence, failed in (("A", case.a, case.failed_a), ("B", case.b, case.failed_b)):
        if failed is None:
            found += [f"side {side}: {words}" for words in checks.incomplete(evidence)]
            if evidence.stop.reason == "unfinished":
                found.append(f"side {side}: the run has not ended")
    return found


def _illogical(case: Case) -> list[str]:
    found = []
    for side, evidence, asked in (("A", case.a, case.asked_a), ("B", case.b, case.asked_b)):
        n = None if asked is None else asked.get("n")
        found += [f"side {side}: {words}" for words in checks.illogical(evidence, n)]
    return found


def _not_as_asked(case: Case) -> list[str]:
    found = []
    for side, evidence, asked in (("A", case.a, case.asked_a), ("B", case.b, case.asked_b)):
        for one in settings(asked, evidence.config) if asked is not None else ():
            found.append(f"side {side}: {one.name} was asked to be {one.a}, the run had {one.b}")
    return found


def _failure(case: Case) -> list[str]:
    failed, evidence, side = case.failed_b, case.b, "B"
    if failed is None:
        failed, evidence, side = case.failed_a, case.a, "A"
    if failed is None or not evidence.groups or (case.failed_a and case.failed_b):
        return []
    if not any(words in failed for words in _NOT_ROLLED_BACK):
        return []
    last = evidence.groups[-1]
    n_rejected = len(last.drafted) - len(last.accepted)
    found = [f"side {side} ended after {len(evidence.ids)} tokens: {failed}"]
    if n_rejected:
        found.append(
            f"the group before it, at step {last.step}, rejected {n_rejected} of"
            f" {len(last.drafted)} drafts: their positions were still held"
        )
    else:
        found.append(
            f"the group before it, at step {last.step}, accepted all"
            f" {len(last.drafted)} drafts: what the head holds is not what it should"
        )
    return found  # fmt: skip


def _weights(case: Case) -> list[str]:
    if not case.slices or not case.same_shape:
        return []
    found = []
    for one in case.slices[:4]:
        place = one.tensor if one.expert is None else f"expert {one.expert} of {one.tensor}"
        layer = "" if one.layer is None else f", layer {one.layer}"
        holds = f"; it holds {one.holds}" if one.holds else ""
        found.append(
            f"side {one.side.upper()}: {place}{layer} is not what the {one.against} holds:"
            f" {one.n_bytes} of {one.size_bytes} bytes differ, the first at {one.file} offset"
            f" {one.offset + one.first_byte}{holds}"
        )
    if case.n_slices > len(found):
        found.append(f"{case.n_slices} slices differ in all")
    return found


def _configuration(case: Case) -> list[str]:
    found = []
    prompt = case.difference("prompt")
    if prompt is not None:
        found.append(f"the prompts differ: {prompt.words}")
    others = [d for d in case.differences if d.kind not in ("config", "prompt")]
    if not others:
        return found
    print_a, print_b = case.a.fingerprint, case.b.fingerprint
    for name in ("llama_cpp_python", "system_info"):
        if getattr(print_a, name) != getattr(print_b, name):
            found.append(f"another build: {name} {getattr(print_a, name)} /"
                         f" {getattr(print_b, name)}")  # fmt: skip
    if not case.same_shape:
        found.append("the models have other tensors, types or shapes")
    elif print_a.model_sha256 != print_b.model_sha256 and not case.slices:
        found.append(f"another model: {print_a.model_sha256[:20]} / {print_b.model_sha256[:20]}")
    a, b = case.a.config, case.b.config
    if (a.get("temp") or b.get("temp")) and (changed := [
        f"{n}: {a.get(n)} / {b.get(n)}"
        for n in ("temp", "top_k", "top_p", "seed") if a.get(n) != b.get(n)
    ]):  # fmt: skip
        found.append(f"sampled otherwise: {', '.join(changed)}")
    ended = case.failed_a is None and case.failed_b is None
    only_end = ended and all(d.kind in ("end", "groups") for d in others)
    if only_end and a.get("n") != b.get("n") and first_token(case.a, case.b) is None:
        found.append(f"another length was asked for: n {a.get('n')} / {b.get('n')}")
    return found


def _identical(case: Case) -> list[str]:
    if case.failed_a != case.failed_b or any(d.kind != "config" for d in case.differences):
        return []
    n = len(case.b.ids)
    found = [f"{n} tokens and the logits of {n} steps are the same, bit for bit"]
    changed = [s.name for s in settings(case.a.config, case.b.config) if s.name not in IGNORED]
    if changed:
        found.append(f"the settings that differ changed nothing: {', '.join(changed)}")
    return found


def _wrong_rows(case: Case) -> list[str]:
    return list(case.wrong_rows) + [
        f"side B: {words}" for words in checks.repeated(case.a.ids, case.b.ids)
    ]


def _loop(case: Case) -> list[str]:
    parting = case.parting
    if parting is None or parting.is_head or not case.same_loop:
        return []
    return [f"every value is the same up to there, and then other tokens are computed:"
            f" {parting.words}"]  # fmt: skip


def _state(case: Case) -> list[str]:
    found = []
    parting = case.parting
    if parting is not None and parting.is_head and case.same_loop:
        found.append(f"every value is the same up to there, and then the head goes on otherwise:"
                     f" {parting.words}")  # fmt: skip
    drafts = dict(case.drafts or {})
    if len(set(drafts.values())) > 1:
        listed = ", ".join(f"draft {d}: {'none' if s is None else f'step {s}'}"
                           for d, s in sorted(drafts.items()))  # fmt: skip
        found.append(f"where the sides part depends on the draft width ({listed})")
    after = _after_group(case)
    first = case.localisation.first if case.localisation is not None else None
    late = first is not None and first.step is not None and first.step > 0
    if case.same_loop and after is not None and first is not None and late and _reads_state(first):
        found.append(f"the first other value is state, {first.where} ({first.op}), after"
                     f" {after}")  # fmt: skip
    found += _left_by_control(case)
    if found and after is not None and not any(after in words for words in found):
        found.append(f"the first difference follows {after}")
    return found


def _left_by_control(case: Case) -> list[str]:
    """Sentences on state that is wrong beneath the arithmetic of the widths."""
    control = case.control
    if control is None or control.localisation is None or not control.n_rejected:
        return []
    first = control.localisation.first
    if first is None or first.step is None or first.step == 0 or not _reads_state(first):
        return []
    return [
        f"{control.words}, and the first other value is {first.where} ({first.op}) of position"
        f" {first.position}, after {control.after}"
    ]


def _reads_state(node: NodeDifference) -> bool:
    """Whether the node takes something from earlier decodes, its own inputs being equal.

    Wide and narrow graphs have the attention's result in common under another operation.
    """
    return node.op in _STATE_OPS or "cache_" in node.name or node.name in _STATE_RESULTS


def _near_tie(case: Case) -> list[str]:
    ids = case.difference("ids")
    if ids is None or ids.a is None or ids.b is None or ids.a.ids is None or ids.b.ids is None:
        return []
    swapped = ids.a.ids == ids.b.ids[::-1]
    explained = _explained(case)
    if not swapped or not explained or ids.movement is None:
        return []
    if case.control is not None and case.control.agrees is False:
        return []
    margins = (ids.a.margin or 0.0, ids.b.margin or 0.0)
    if max(margins) > 2 * ids.movement:
        return []
    found = [
        f"step {ids.step}: the same two tokens lead on both sides, {list(ids.a.ids)} on side A,"
        " the other way round on side B",
        f"their margin of {margins[0]:.3g} ({ids.a.margin_ulp} ULP) / {margins[1]:.3g} is within"
        f" the movement of that step, {ids.movement:.3g}",
        *explained,
    ]
    steps = set((case.drafts or {}).values())
    if len(case.drafts or {}) > 1 and len(steps) == 1:
        widths = ", ".join(str(d) for d in sorted(case.drafts or {}))
        found.append(f"the first difference is the same at drafts {widths}")
    return found


def _numeric(case: Case) -> list[str]:
    moved = case.difference("logits")
    if moved is None or case.difference("ids") is not None or case.difference("text") is not None:
        return []
    found = [f"no token differs; the logits first moved at step {moved.step}"
             + ("" if moved.movement is None else f", by {moved.movement:.3g}")]  # fmt: skip
    first = case.localisation.first if case.localisation is not None else None
    if first is not None:
        by = "" if first.max_ulp is None else f", by {first.max_ulp} ULP ({first.max_abs:.3g})"
        found.append(f"the first node that differs is {first.where} ({first.op}) at position"
                     f" {first.position}{by}")  # fmt: skip
    return found + _explained(case)


def _runaway(case: Case) -> list[str]:
    words = checks.runaway(case.b.ids)
    if words is None or checks.runaway(case.a.ids) is not None:
        return []
    return [f"side B: {words}, and side A does not end so"] if case.difference("ids") else []


def _explained(case: Case) -> list[str]:
    """Sentences on how kernels and widths account for the first node's movement."""
    found = []
    if case.width is not None and case.width.explained:
        found.append(case.width.words)
    if case.control is not None and case.control.agrees:
        found.append(case.control.words)
    attribution = case.attribution
    if attribution is not None and attribution.flips:
        if not set(attribution.flips) <= switches.WIDTH_SWITCHES:
            return found
        if attribution.kernels:
            found.append(f"with {', '.join(attribution.kernels)} off on both sides they answer"
                         " alike")  # fmt: skip
        if found:
            alone = " alone" if len(attribution.flips) == 1 else ""
            found.append(f"turned by {' and '.join(attribution.flips)}{alone}")
    return found


def _after_group(case: Case) -> str | None:
    """The verify decode right before the first difference, in words."""
    steps = [d.step for d in case.differences if d.step is not None and d.kind != "config"]
    group = last_group(case.b.groups or case.a.groups, min(steps)) if steps else None
    return spelled(group) if group is not None else None


def _unknown(case: Case) -> list[str]:
    found = []
    for side, failed in (("A", case.failed_a), ("B", case.failed_b)):
        if failed is not None:
            found.append(f"side {side} ended with an error: {failed}")
    if case.width is not None:
        found.append(case.width.words)
    if case.attribution is not None and not case.attribution.flips and case.attribution.tried:
        found.append("no set of switches gave side B's answer")
    return found or ["no rule has evidence for a class"]


_RULES: tuple[tuple[Class, Callable[[Case], list[str]]], ...] = (
    ("HARNESS", _harness),
    ("LOGIC", _illogical),
    ("CONFIG", _not_as_asked),
    ("STATE_ROLLBACK", _failure),
    ("WEIGHT_BYTES", _weights),
    ("CONFIG", _configuration),
    ("IDENTICAL", _identical),
    ("LOGIC", _wrong_rows),
    ("LOGIC", _loop),
    ("STATE_ROLLBACK", _state),
    ("NEAR_TIE_FLIP", _near_tie),
    ("NUMERIC", _numeric),
    ("LOGIC", _runaway),
)
