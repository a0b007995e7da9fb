"""Findings made by hand, for the reports."""

from __future__ import annotations

import dataclasses

from sluice.triage.finding import (
    Arm,
    Attribution,
    Choice,
    Classification,
    Difference,
    Finding,
    Localisation,
    NodeDifference,
    Setting,
    SliceDifference,
    StepTrace,
    Subject,
)

PRINT = {"llama_cpp_python": "0.0", "numerics": "default"}


def subject(label: str, text: str, **config: object) -> Subject:
    return Subject(label, {"ubatch": 512} | config, PRINT, text, 3, ran=True)


def node(layer: int | None, name: str, ulp: int | None = 2) -> NodeDifference:
    return NodeDifference(
        context="target", layer=layer, name=name, op="MUL_MAT", type_name="F32",
        weight=f"blk.{layer}.w", weight_type="F32", shape_a=(8, 1), shape_b=(8, 4),
        rows_a=1, rows_b=4, row_a=0, row_b=2, position=9, step=1, max_ulp=ulp, max_abs=1.5e-7,
        n_differing=3, n_values=8,
    )  # fmt: skip


def step(index: int, margin: float, movement: float | None, *texts: str) -> StepTrace:
    return StepTrace(index, index, index + 1, texts[0], texts[1], margin, margin / 2,
                     moved=movement is None or movement > 0, movement=movement)  # fmt: skip


DIFFERENCE = Difference(
    kind="ids",
    words="token 7 / 9",
    step=2,
    position=11,
    character=6,
    a=Choice(7, " the", (7, 9), (" the", " a<b>"), (5.25, 5.125), 0.125, 16),
    b=Choice(9, " a<b>", (9, 7), (" a<b>", " the"), (5.1875, 5.125), 0.0625, 8),
    movement=0.2,
    movement_ulp=40,
    first_moved_step=1,
)
SLICE = SliceDifference(
    side="B", file="m.gguf", tensor="blk.0.ffn_up_exps.weight", layer=0, part="up", expert=3,
    offset=4096, size_bytes=512, first_byte=17, n_bytes=1, against="file",
)  # fmt: skip
FLIP = Finding(
    a=subject("plain", "def a the"),
    b=subject("ubatch 1", "def a a<b>", ubatch=1),
    classification=Classification("NEAR_TIE_FLIP", ("the margin is within the movement",)),
    difference=DIFFERENCE,
    differences=(
        Difference("config", "ubatch", settings=(Setting("ubatch", 512, 1),)),
        DIFFERENCE,
    ),
    steps=(
        step(0, 1.0, 0.0, "def", "def"),
        step(1, 0.5, None, " a", " a"),
        step(2, 0.125, 0.2, " the", " a<b>"),
    ),
    localisation=Localisation(
        first=node(0, "ffn_moe_logits"),
        last_agreed="layer 0 ffn_norm",
        nodes=(node(0, "ffn_moe_logits"), node(1, "ffn_moe_out", 900), node(None, "result", None)),
        n_compared=120,
        n_unmatched=0,
        slices=(SLICE,),
    ),
    attribution=Attribution(
        tried=(Setting("ubatch", 512, 1),),
        arms=(Arm((), "a"), Arm(("ubatch",), "b", "step 2")),
        flips=("ubatch",),
        kernels=("sgemm",),
    ),
    notes=("one note",),
)
ALIKE = Finding(
    a=subject("one", ""),
    b=subject("other", ""),
    classification=Classification("IDENTICAL", ()),
    difference=None,
    differences=(),
    steps=(),
)


def failed(words: str) -> Finding:
    """Side B ended by an error."""
    return dataclasses.replace(FLIP, b=dataclasses.replace(FLIP.b, failed=words))
