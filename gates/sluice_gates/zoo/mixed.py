"""Rows whose attention is latent, or whose layers are partly recurrent or convolve."""

from __future__ import annotations

from typing import Any

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
)
from sluice_gates.zoo.row import Row
from sluice_gates.zoo.tensors import (
    CONV,
    GROUPS,
    HEAD_DIM,
    INDEX_DIM,
    INDEX_HEADS,
    KV_LORA,
    N_EMBD,
    N_FF,
    N_HEAD,
    N_HEAD_KV,
    NOPE_DIM,
    Q_LORA,
    RANK,
    ROPE_DIM,
    SCAN_INNER,
    SCAN_RANK,
    SCAN_STATE,
    STATE,
    Tensor,
    attention,
    delta_attention,
    delta_net,
    dense,
    experts,
    indexer,
    latent_attention,
    lightning_attention,
    mamba,
    mamba2,
    norm,
    shared,
    short_convolution,
    weight,
)

DELTA: dict[str, Any] = {
    "ssm.conv_kernel": CONV,
    "ssm.state_size": STATE,
    "ssm.group_count": GROUPS,
    "ssm.time_step_rank": RANK,
    "ssm.inner_size": STATE * RANK,
}

SCAN: dict[str, Any] = {
    "ssm.conv_kernel": CONV,
    "ssm.state_size": SCAN_STATE,
    "ssm.group_count": 1,
    "ssm.time_step_rank": SCAN_RANK,
    "ssm.inner_size": SCAN_INNER,
}

LATENT: dict[str, Any] = {
    "attention.head_count_kv": 1,
    "attention.kv_lora_rank": KV_LORA,
    "attention.key_length": KV_LORA + ROPE_DIM,
    "attention.value_length": KV_LORA,
    "attention.key_length_mla": NOPE_DIM + ROPE_DIM,
    "attention.value_length_mla": HEAD_DIM,
    "rope.dimension_count": ROPE_DIM,
}

_latent = latent_attention() + FFN_NORM

_linear35 = delta_net(
    beta_and_alpha=(weight("ssm_beta", RANK, N_EMBD), weight("ssm_alpha", RANK, N_EMBD))
)

_linear3 = delta_net(beta_and_alpha=(weight("ssm_ba", 2 * RANK, N_EMBD),))

_full35 = attention(norms=BY_HEAD, gated_q=True)

_scan = mamba() + FFN_NORM

_scan2 = mamba2()

_deepseek2 = [
    _latent + dense(),
    *[_latent + experts(selection_bias=CHOICE) + shared()] * 3,
]

DEEPSEEK2 = LATENT | SHARED_ONE | ONE_DENSE | IN_GROUPS | GATED | {
    "attention.q_lora_rank": Q_LORA
}  # fmt: skip

_sparse = [
    _latent + indexer() + dense(),
    *[_latent + indexer() + experts(selection_bias=CHOICE) + shared()] * 3,
]

SPARSE = LATENT | SHARED_ONE | ONE_DENSE | GATED | {
    "attention.q_lora_rank": Q_LORA,
    "attention.indexer.head_count": INDEX_HEADS,
    "attention.indexer.key_length": INDEX_DIM,
    "attention.indexer.top_k": 16,
}  # fmt: skip


def _nemotron(width: int) -> list[tuple[Tensor, ...]]:
    norms = (norm("attn_norm"),)
    routed = norms + experts("up down", selection_bias=CHOICE, width=width)
    if width != N_EMBD:
        routed += (
            weight("ffn_latent_down", width, N_EMBD),
            weight("ffn_latent_up", N_EMBD, width),
        )
    moe = routed + shared(parts="up down")
    return [_scan2, moe, attention(), moe]


NEMOTRON = SCAN | SHARED_FF | SHARED_ONE | GATED | {
    "attention.head_count_kv": [0, 0, N_HEAD_KV, 0],
    "feed_forward_length": [0, N_FF, 0, N_FF],
}  # fmt: skip

MIXED = (
    Row(
        "qwen35moe",
        [_linear35 + POST_NORM + experts() + shared(gated=True)] * 3
        + [_full35 + POST_NORM + experts() + shared(gated=True)],
        DELTA | SHARED_FF | SECTIONS,
    ),
    Row(
        "qwen3next",
        [_linear3 + POST_NORM + experts() + shared(gated=True)] * 3
        + [_full35 + POST_NORM + experts() + shared(gated=True)],
        DELTA | SHARED_FF,
    ),
    Row("deepseek2", _deepseek2, DEEPSEEK2),
    Row("mistral4", _deepseek2, DEEPSEEK2),
    Row("deepseek32", _sparse, SPARSE),
    Row("glm-dsa", _sparse, SPARSE),
    Row(
        "lfm2moe",
        [short_convolution() + FFN_NORM + dense()]
        + [NORMED + experts(selection_bias=CHOICE)]
        + [short_convolution() + FFN_NORM + experts(selection_bias=CHOICE)] * 2,
        ONE_DENSE
        | GATED
        | {"shortconv.l_cache": 3, "attention.head_count_kv": [0, N_HEAD_KV, 0, 0]},
        (norm("token_embd_norm"),),
    ),
    Row(
        "bailingmoe3",
        [delta_attention() + FFN_NORM + dense()]
        + [delta_attention() + FFN_NORM + experts(selection_bias=CHOICE) + shared()] * 2
        + [
            latent_attention(q_lora=False, gate=N_HEAD)
            + FFN_NORM
            + experts(selection_bias=CHOICE)
            + shared()
        ],
        LATENT
        | SHARED_ONE
        | ONE_DENSE
        | GATED
        | {
            "attention.head_count_kv": [0, 0, 0, 1],
            "ssm.conv_kernel": CONV,
            "kda.head_dim": HEAD_DIM,
            "kda.gate_lower_bound": -5.0,
        },
    ),
    Row(
        "kimi-linear",
        [
            delta_attention(low_rank=True) + FFN_NORM + tail
            for tail in (dense(), *[experts(selection_bias=CHOICE) + shared()] * 2)
        ]
        + [latent_attention(q_lora=False) + FFN_NORM + experts(selection_bias=CHOICE) + shared()],
        LATENT
        | SHARED_ONE
        | ONE_DENSE
        | GATED
        | {
            "attention.head_count_kv": [0, 0, 0, 1],
            "ssm.conv_kernel": CONV,
            "kda.head_dim": HEAD_DIM,
        },
    ),
    Row(
        "granitehybrid",
        [_scan2 + FFN_NORM + experts() + shared()] * 3 + [PLAIN + experts() + shared()],
        SCAN | SHARED_FF | {"attention.head_count_kv": [0, 0, 0, N_HEAD_KV]},
    ),
    Row(
        "jamba",
        [_scan + dense(), _scan + experts(), PLAIN + dense(), _scan + experts()],
        SCAN | {"attention.head_count_kv": [0, 0, N_HEAD_KV, 0]},
    ),
    Row("nemotron_h_moe", _nemotron(N_EMBD), NEMOTRON),
    Row(
        "nemotron_h_moe-latent",
        _nemotron(N_EMBD // 2),
        NEMOTRON | {"moe_latent_size": N_EMBD // 2},
        arch="nemotron_h_moe",
    ),
    Row(
        "minimax-01",
        [lightning_attention() + FFN_NORM + experts()] * 3 + [PLAIN + experts()],
        {"residual_scale": 1.0, "full_attention_interval": 4},
    ),
)
