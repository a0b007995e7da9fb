"""What a triage found: plain frozen values, JSON-able with :meth:`Finding.as_dict`.

Side A is the reference and side B the suspect wherever the two are not alike.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Literal

SCHEMA = "sluice-finding/1"

Kind = Literal[
    "config", "prompt", "ids", "text", "groups", "routing", "expert_bytes", "logits", "end"
]
"""What differs. ``config`` includes the fingerprint, ``groups`` is what was drafted and accepted,
``end`` why or after how many tokens a run ended."""

Class = Literal[
    "IDENTICAL",
    "NEAR_TIE_FLIP",
    "NUMERIC",
    "WEIGHT_BYTES",
    "STATE_ROLLBACK",
    "LOGIC",
    "CONFIG",
    "HARNESS",
    "UNKNOWN",
]

CLASSES: dict[Class, str] = {
    "IDENTICAL": "every compared value is the same, to the last bit",
    "NEAR_TIE_FLIP": "arithmetic of another batch width swapped two tokens that were nearly tied",
    "NUMERIC": "logits moved and no token did",
    "WEIGHT_BYTES": "a weight in use is not what the file, or the other file, holds",
    "STATE_ROLLBACK": "state went wrong after drafts were rejected or accepted",
    "LOGIC": "the decode loop took, dropped or repeated a token that the logits do not give",
    "CONFIG": "the two runs were not asked, or did not do, the same thing",
    "HARNESS": "the evidence itself is incomplete or contradicts itself",
    "UNKNOWN": "nothing that was tried explains the difference",
}
"""Every class and what it says, for reports."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One side of the comparison.

    ``label`` is what a report calls it (a file, or the settings). ``config`` is empty where
    nothing is known of it. ``ran`` says that the triage ran this side again. ``failed`` is the
    message of the error that ended its run, if one did.
    """

    label: str
    config: dict[str, Any]
    fingerprint: dict[str, str]
    text: str
    n_tokens: int
    ran: bool
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting or a part of the fingerprint that the sides do not share."""

    name: str
    a: Any
    b: Any


@dataclass(frozen=True, slots=True)
class Choice:
    """What one side had at one step.

    ``ids`` and ``logits`` are the two largest of the row, largest first; ``margin`` is their
    difference in logits and ``margin_ulp`` the number of float32 values from one to the other.
    ``texts`` are what the two ids stand for, where a vocabulary is at hand.
    """

    id: int
    text: str | None
    ids: tuple[int, int] | None = None
    texts: tuple[str, str] | None = None
    logits: tuple[float, float] | None = None
    margin: float | None = None
    margin_ulp: int | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of one kind.

    Args:
        kind: what differs.
        words: one sentence.
        step: index of the generated token; ``None`` where no step is concerned (config, or a
            prompt position).
        position: in the sequence, prompt included; of the differing prompt id for ``prompt``.
        character: offset into the text at which the texts part (for ``ids`` and ``text``), or
            at which the step's token begins.
        a, b: the tokens and their top two, where the step has one on that side.
        movement: largest difference of one logit between the rows of this step, where rows
            are at hand; ``movement_ulp`` the largest in float32 values.
        first_moved_step: the first step whose logits differ, at or before ``step``.
        settings: what differs, for ``config``.
    """

    kind: Kind
    words: str
    step: int | None = None
    position: int | None = None
    character: int | None = None
    a: Choice | None = None
    b: Choice | None = None
    movement: float | None = None
    movement_ulp: int | None = None
    first_moved_step: int | None = None
    settings: tuple[Setting, ...] = ()


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One step of both runs, for plots along the run; ``None`` beyond a run's end.

    ``moved`` says that the logits differ; ``movement`` by how much at most, where rows are at
    hand. ``text`` is what the step's token stands for, where a vocabulary is at hand.
    """

    step: int
    id_a: int | None
    id_b: int | None
    text_a: str | None
    text_b: str | None
    margin_a: float | None
    margin_b: float | None
    moved: bool | None
    movement: float | None = None


@dataclass(frozen=True, slots=True)
class NodeDifference:
    """A graph node whose bytes differ between the sides, at one position of the sequence.

    Args:
        context: ``target`` or ``head``.
        layer: ``None`` for nodes outside the layers (embeddings, final norm, logits).
        name: the node's name without its layer.
        op: ggml's operation.
        type_name: of its values.
        weight: the weight tensor that the operation takes, and ``weight_type``; ``None`` if none.
        shape_a, shape_b: ``ne``, innermost first.
        rows_a, rows_b: rows of the decodes that computed it.
        row_a, row_b: the batch row that was matched, ``None`` where the node has no rows.
        position: of the row's token in the sequence; ``step`` is the step whose logits that row
            leads to, ``None`` within the prompt.
        max_ulp: largest difference in float32 values, ``None`` where no values were captured
            or they are not floating point.
        max_abs: largest absolute difference; infinite where one side is not a number.
        n_differing, n_values: elements of the row.
    """

    context: str
    layer: int | None
    name: str
    op: str
    type_name: str
    weight: str | None
    weight_type: str | None
    shape_a: tuple[int, ...]
    shape_b: tuple[int, ...]
    rows_a: int
    rows_b: int
    row_a: int | None
    row_b: int | None
    position: int
    step: int | None
    max_ulp: int | None = None
    max_abs: float | None = None
    n_differing: int | None = None
    n_values: int | None = None

    @property
    def where(self) -> str:
        """``layer 3 ffn_moe_out``, for sentences."""
        return self.name if self.layer is None else f"layer {self.layer} {self.name}"


@dataclass(frozen=True, slots=True)
class SliceDifference:
    """A weight whose bytes are not what they should be.

    ``against`` says what it was held against: ``file`` (memory against the model's file, while
    streaming) or ``other file`` (the two models' files). ``expert`` is ``None`` for a weight that
    is not an expert's. ``offset`` is the slice's place in the file of side ``side`` in bytes,
    ``first_byte`` the first differing byte within the slice, ``n_bytes`` how many differ.
    ``holds`` says whose bytes were found there instead, where that can be told.
    """

    side: str
    file: str
    tensor: str
    layer: int | None
    part: str | None
    expert: int | None
    offset: int
    size_bytes: int
    first_byte: int
    n_bytes: int
    against: str
    step: int | None = None
    holds: str | None = None


@dataclass(frozen=True, slots=True)
class Localisation:
    """The graph nodes of both runs, held against each other row by row.

    Args:
        first: in order of position, then of the graph: everything before it agrees.
        last_agreed: the node before ``first`` in the graph, ``layer 3 ffn_norm``.
        nodes: every differing node at ``first``'s position, in graph order (a heat map of
            layers by nodes).
        n_compared: rows of nodes that were held against each other.
        n_unmatched: rows of nodes that only one side has (other graph shapes).
        slices: weights that are not the file's bytes, by side and first use.
        observing_changed: a sentence where observing a side changed its bits, else ``None``.
        note: why nothing was localised, where that is so.
    """

    first: NodeDifference | None
    last_agreed: str | None
    nodes: tuple[NodeDifference, ...]
    n_compared: int
    n_unmatched: int
    slices: tuple[SliceDifference, ...] = ()
    observing_changed: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Control:
    """Both sides again with every width-dependent kernel off.

    Args:
        agrees: whether they then answer alike; ``None`` where it could not be run.
        words: one sentence.
        step: the first step at which they still differ, and ``localisation`` where.
        after: the verify decode before that step, in words; ``n_rejected`` of its drafts were
            rejected.
    """

    agrees: bool | None
    words: str
    step: int | None = None
    localisation: Localisation | None = None
    after: str | None = None
    n_rejected: int = 0


@dataclass(frozen=True, slots=True)
class Arm:
    """One run of an attribution: the switches that were given side B's value, and what came.

    ``outcome`` is ``a`` (answers as side A does), ``b`` (as side B does), ``other``, or
    ``failed``; ``detail`` is a failure's message or where it leaves side A.
    """

    switches: tuple[str, ...]
    outcome: Literal["a", "b", "other", "failed"]
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Attribution:
    """Which switches turn side A's answer into side B's.

    Args:
        tried: every switch that differs, with both values.
        arms: every run, in order.
        flips: the smallest set found that gives side B's answer; empty where none did.
        kernels: the smallest set of kernel switches that, off on both sides, make the sides
            answer alike: the kernels through which the flip acts.
        kernels_tried: whether that was tried; without, ``kernels`` is empty and says nothing.
        level: what an answer is: ``ids`` or ``logits``.
        note: what could not be tried, or why nothing was.
    """

    tried: tuple[Setting, ...]
    arms: tuple[Arm, ...]
    flips: tuple[str, ...]
    kernels: tuple[str, ...] = ()
    kernels_tried: bool = False
    level: Literal["ids", "logits"] = "ids"
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Classification:
    """The class, and one sentence for each piece of evidence for it."""

    name: Class
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """Everything that a triage found.

    Args:
        a, b: the sides.
        classification: the verdict.
        difference: the first difference that is not of the configuration, or the
            configuration's where that is all; ``None`` for identical runs.
        differences: the first of every kind that differs, in the order of comparison.
        steps: the runs along each other.
        localisation, attribution: ``None`` where they were not asked for or cannot be had.
        control: the sides without width-dependent kernels; run where their settings differ.
        notes: what could not be done, and why.
    """

    a: Subject
    b: Subject
    classification: Classification
    difference: Difference | None
    differences: tuple[Difference, ...]
    steps: tuple[StepTrace, ...]
    localisation: Localisation | None = None
    attribution: Attribution | None = None
    control: Control | None = None
    notes: tuple[str, ...] = ()

    @property
    def where(self) -> NodeDifference | None:
        """The first differing node, without the arithmetic of batch widths where that was told."""
        for one in (self.control, self):
            if one is not None and one.localisation is not None and one.localisation.first:
                return one.localisation.first
        return None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, with the schema first."""
        return {"schema": SCHEMA} | dataclasses.asdict(self)

    def to_json(self) -> str:
        """One JSON object, LF line ends; what is not finite is written as a string."""
        return json.dumps(_finite(self.as_dict()), indent=1, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and value - value != 0:
        return repr(value)
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return value
