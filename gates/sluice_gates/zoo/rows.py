"""The table: one row a model. A new architecture is a few lines in one of its two halves."""

from __future__ import annotations

import dataclasses

from sluice_gates.zoo.grouped import GROUPED
from sluice_gates.zoo.keys import NORMED
from sluice_gates.zoo.mixed import MIXED
from sluice_gates.zoo.row import Row
from sluice_gates.zoo.tensors import N_EMBD, N_EXPERT, N_FF, experts, weight


def _fused(row: Row) -> Row:
    """The same model with the experts' gate and up in one tensor."""
    wide = weight("ffn_gate_up_exps", N_EXPERT, 2 * N_FF, N_EMBD)
    layers = [
        tuple(wide if t.name == "ffn_gate_exps.weight" else t for t in layer
              if t.name != "ffn_up_exps.weight")
        for layer in row.layers
    ]  # fmt: skip
    return dataclasses.replace(row, name=f"{row.name}-fused", layers=layers, arch=row.name)


_FUSED = ("qwen35moe", "qwen3next", "deepseek2", "mistral4", "cohere2moe", "hy_v3")

_ONE_TENSOR_A_PART = (*GROUPED, *MIXED)

ROWS = (*_ONE_TENSOR_A_PART, *(_fused(row) for row in _ONE_TENSOR_A_PART if row.name in _FUSED))
"""Models that Sluice streams."""

UNSTREAMED = (
    Row(
        "grovemoe",
        [NORMED + experts() + experts(suffix="chexps", n=N_EXPERT // 2)] * 2,
        {
            "expert_chunk_feed_forward_length": N_FF,
            "expert_group_scale": 0.05,
            "experts_per_group": 2,
        },
    ),
)
"""Models that llama.cpp runs and Sluice refuses to stream."""
