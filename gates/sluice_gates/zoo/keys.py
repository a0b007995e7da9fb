"""Metadata and beginnings of layers that several rows share."""

from __future__ import annotations

from typing import Any

from sluice_gates.zoo.tensors import HEAD_DIM, N_FF, attention, norm

SIGMOID = 2  # LLAMA_EXPERT_GATING_FUNC_TYPE_SIGMOID
BY_HEAD = (HEAD_DIM, HEAD_DIM)
CHOICE = "exp_probs_b.bias"
FFN_NORM = (norm("ffn_norm"),)
POST_NORM = (norm("post_attention_norm"),)
SHARED_FF = {"expert_shared_feed_forward_length": N_FF}
SHARED_ONE = {"expert_shared_count": 1}
GATED = {"expert_gating_func": SIGMOID, "expert_weights_norm": True, "expert_weights_scale": 1.5}
IN_GROUPS = {"expert_group_count": 4, "expert_group_used_count": 2}
WINDOW: dict[str, Any] = {"attention.sliding_window": 32}
SECTIONS = {"rope.dimension_sections": [11, 11, 10, 0]}
ONE_DENSE = {"leading_dense_block_count": 1}

PLAIN = attention() + FFN_NORM
NORMED = attention(norms=BY_HEAD) + FFN_NORM
