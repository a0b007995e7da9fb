"""Rows with grouped-query attention in every layer."""

from __future__ import annotations

from typing import Any

from gguf import GGMLQuantizationType as Type

from sluice_gates.zoo.keys import (
    BY_HEAD,
    CHOICE,
    FFN_NORM,
    GATED,
    IN_GROUPS,
    NORMED,
    ONE_DENSE,
    PLAIN,
    POST_NORM,
    SECTIONS,
    SHARED_FF,
    SHARED_ONE,
    SIGMOID,
    WINDOW,
)
from sluice_gates.zoo.row import Row
from sluice_gates.zoo.tensors import (
    HEAD_DIM,
    N_EMBD,
    N_FF,
    N_HEAD,
    N_HEAD_KV,
    Tensor,
    attention,
    bias,
    constant,
    dense,
    experts,
    norm,
    shared,
    weight,
)
from sluice_gates.zoo.tokenizer import N_VOCAB

_biased = attention(biased=True)


def _gemma4(parts: str) -> list[tuple[Tensor, ...]]:
    norms = ("post_attention_norm", "ffn_norm", "post_ffw_norm", "pre_ffw_norm_2",
             "post_ffw_norm_1", "post_ffw_norm_2")  # fmt: skip
    tail = (
        *(norm(name) for name in norms),
        *dense(),
        *experts(parts, scaled=True),
        Tensor("ffn_gate_inp.scale", (N_EMBD,), mean=1.0, size=0.1),
        constant("layer_output_scale.weight", 1),
    )
    return [attention(norms=BY_HEAD) + tail] * 4


GEMMA4: dict[str, Any] = WINDOW | {
    "attention.sliding_window_pattern": [True, True, False, True],
    "attention.key_length_swa": HEAD_DIM,
    "attention.value_length_swa": HEAD_DIM,
    "rope.dimension_count_swa": HEAD_DIM,
    "embedding_length_per_layer_input": 0,
    "final_logit_softcapping": 30.0,
}

GEMMA4_OUTSIDE = (norm("output_norm"), constant("rope_freqs.weight", HEAD_DIM // 2))


def _granite_swa(parts: str) -> list[tuple[Tensor, ...]]:
    # Its shared experts' gate and up are one tensor of the name of up.
    shared_experts = (
        weight("ffn_up_shexp", 2 * N_FF, N_EMBD),
        weight("ffn_down_shexp", N_EMBD, N_FF),
    )
    return [attention(sinks=True) + FFN_NORM + experts(parts) + shared_experts] * 4


GRANITE_SWA = WINDOW | SHARED_FF | {
    "attention.sliding_window_pattern": [True, False] * 2,
    "logit_scale": 1.0,
    "attention.scale": 0.125,
}  # fmt: skip

GROUPED = (
    Row("qwen2moe", [_biased + FFN_NORM + experts() + shared(gated=True)] * 4, SHARED_FF),
    Row("qwen3moe", [NORMED + experts()] * 4),
    Row("qwen3vlmoe", [NORMED + experts()] * 4, SECTIONS),
    Row("gemma4", _gemma4("gate_up down"), GEMMA4, GEMMA4_OUTSIDE, 1 / 16),
    Row("gemma4-split", _gemma4("gate up down"), GEMMA4, GEMMA4_OUTSIDE, 1 / 16, arch="gemma4"),
    Row(
        "gpt-oss",
        [
            attention(biased=True, output_biased=True, sinks=True)
            + POST_NORM
            + experts(kind=Type.MXFP4, biased=True)
        ]
        * 4,
        WINDOW,
    ),
    Row(
        "glm4moe",
        [_biased + POST_NORM + dense()]
        + [_biased + POST_NORM + experts(selection_bias=CHOICE) + shared()] * 3,
        SHARED_ONE | ONE_DENSE | GATED | {"rope.dimension_count": HEAD_DIM // 2},
    ),
    Row(
        "deepseek",
        [PLAIN + dense()] + [PLAIN + experts() + shared()] * 3,
        SHARED_ONE | ONE_DENSE,
    ),
    Row("bailingmoe", [PLAIN + experts() + shared()] * 4, SHARED_ONE | GATED),
    Row(
        "bailingmoe2",
        [attention(norms=BY_HEAD, fused=True) + FFN_NORM + dense()]
        + [
            attention(norms=BY_HEAD, fused=True)
            + FFN_NORM
            + experts(selection_bias=CHOICE)
            + shared()
        ]
        * 3,
        SHARED_ONE | ONE_DENSE | GATED | IN_GROUPS,
    ),
    Row("llama", [PLAIN + experts()] * 4),
    Row("mistral3", [PLAIN + experts()] * 4),
    Row(
        "olmoe",
        [attention(heads_kv=N_HEAD, norms=(N_EMBD, N_EMBD)) + FFN_NORM + experts()] * 4,
        {"attention.head_count_kv": N_HEAD},
    ),
    Row(
        "phimoe",
        [
            attention(biased=True, output_biased=True)
            + FFN_NORM
            + (bias("attn_norm", N_EMBD), bias("ffn_norm", N_EMBD))
            + experts()
        ]
        * 4,
        outside=(
            norm("output_norm"),
            bias("output_norm", N_EMBD),
            bias("output", N_VOCAB, size=0.01),
        ),
    ),
    Row(
        "granitemoe",
        [PLAIN + experts() + shared()] * 4,
        SHARED_FF | {"logit_scale": 1.0, "attention.scale": 0.125},
    ),
    Row(
        "dots1",
        [attention(heads_kv=N_HEAD, norms=BY_HEAD) + FFN_NORM + dense()]
        + [
            attention(heads_kv=N_HEAD, norms=BY_HEAD)
            + FFN_NORM
            + experts(selection_bias=CHOICE)
            + shared()
        ]
        * 3,
        SHARED_ONE | ONE_DENSE | GATED | {"attention.head_count_kv": N_HEAD},
    ),
    Row(
        "ernie4_5-moe",
        [PLAIN + dense()] + [PLAIN + experts(selection_bias=CHOICE) + shared()] * 3,
        SHARED_FF | ONE_DENSE | {"interleave_moe_layer_step": 1},
    ),
    Row("hunyuan-moe", [NORMED + experts() + shared()] * 4, SHARED_FF),
    Row(
        "minimax-m2",
        [
            attention(norms=(N_HEAD * HEAD_DIM, N_HEAD_KV * HEAD_DIM))
            + FFN_NORM
            + experts(selection_bias=CHOICE)
        ]
        * 4,
        GATED,
    ),
    Row(
        "afmoe",
        [
            attention(norms=BY_HEAD, gate=N_HEAD * HEAD_DIM)
            + POST_NORM
            + FFN_NORM
            + (norm("post_ffw_norm"),)
            + tail
            for tail in (dense(), *[experts(selection_bias=CHOICE) + shared()] * 3)
        ],
        SHARED_ONE | ONE_DENSE | GATED | WINDOW,
        embedding=1 / 16,
    ),
    Row(
        "grok",
        [(*PLAIN, norm("attn_output_norm"), norm("layer_output_norm"), *experts())] * 4,
        {"embedding_scale": 1.0},
    ),
    Row(
        "dbrx",
        [(*attention(fused=True), norm("attn_output_norm"), *experts())] * 4,
        {"attention.clamp_kqv": 8.0},
    ),
    Row(
        "llama4",
        [PLAIN + dense(), PLAIN + experts() + shared()] * 2,
        {"interleave_moe_layer_step": 2},
    ),
    Row(
        "arctic",
        [PLAIN + dense(N_EMBD) + (norm("ffn_norm_exps"),) + experts()] * 4,
    ),
    Row("smallthinker", [PLAIN + experts()] * 4, {"expert_gating_func": SIGMOID}),
    Row(
        "exaone-moe",
        [NORMED + dense()] + [NORMED + experts(selection_bias=CHOICE) + shared()] * 3,
        SHARED_ONE | ONE_DENSE | GATED | WINDOW,
    ),
    Row(
        "laguna",
        [
            attention(norms=BY_HEAD, gate=N_HEAD) + FFN_NORM + tail
            for tail in (dense(), *[experts(selection_bias=CHOICE) + shared()] * 3)
        ],
        SHARED_ONE | ONE_DENSE | GATED | WINDOW,
    ),
    Row("mellum", [NORMED + experts()] * 4, WINDOW),
    Row(
        "maple",
        [NORMED + experts()] * 4,
        WINDOW
        | {
            "attention.sliding_window_pattern": [True, False, True, False],
            "swiglu_clamp_exp": [7.0] * 4,
        },
    ),
    Row(
        "step35",
        [NORMED + dense()] + [NORMED + experts(selection_bias=CHOICE) + shared()] * 3,
        WINDOW | SHARED_FF | GATED | {"attention.sliding_window_pattern": [True, False] * 2},
    ),
    Row(
        "mimo2",
        [
            attention(sinks=True) + FFN_NORM + tail
            for tail in (dense(), *[experts(selection_bias=CHOICE)] * 3)
        ],
        WINDOW | {"attention.sliding_window_pattern": [True, False] * 2},
    ),
    Row(
        "cohere2moe",
        [attention() + dense()] + [attention() + experts() + shared()] * 3,
        WINDOW | ONE_DENSE | SHARED_FF | SHARED_ONE | GATED | {"logit_scale": 1.0},
    ),
    Row(
        "hy_v3",
        [NORMED + dense()] + [NORMED + experts(selection_bias="exp_probs_b") + shared()] * 3,
        SHARED_FF | GATED,
    ),
    Row("granite_swa", _granite_swa("gate_up down"), GRANITE_SWA),
    Row("granite_swa-split", _granite_swa("gate up down"), GRANITE_SWA, arch="granite_swa"),
)
