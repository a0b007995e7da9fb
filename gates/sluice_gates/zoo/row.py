"""One row of the zoo: an architecture, as its metadata and its tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice_gates.zoo.tensors import (
    HEAD_DIM,
    N_EMBD,
    N_EXPERT,
    N_FF,
    N_HEAD,
    N_HEAD_KV,
    N_USED,
    Tensors,
    norm,
)

COMMON: Mapping[str, Any] = {
    "context_length": 4096,
    "embedding_length": N_EMBD,
    "feed_forward_length": N_FF,
    "attention.head_count": N_HEAD,
    "attention.head_count_kv": N_HEAD_KV,
    "attention.key_length": HEAD_DIM,
    "attention.value_length": HEAD_DIM,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.layer_norm_epsilon": 1e-6,
    "rope.dimension_count": HEAD_DIM,
    "rope.freq_base": 10000.0,
    "expert_count": N_EXPERT,
    "expert_used_count": N_USED,
    "expert_feed_forward_length": N_FF,
}


@dataclass(frozen=True, slots=True)
class Row:
    """A model of the zoo.

    Args:
        name: of the model; the architecture's own, and a word more where there are two.
        layers: the tensors of each layer, named within it.
        keys: metadata of the architecture that differs from, or adds to, what all rows have;
            whole numbers are written as uint32, and as int32 in lists.
        outside: tensors outside the layers, beside the embedding and the output.
        embedding: standard deviation of the embedding.
        arch: the architecture, where it is not the name.
    """

    name: str
    layers: Sequence[Tensors]
    keys: Mapping[str, Any] = field(default_factory=dict)
    outside: Tensors = (norm("output_norm"),)
    embedding: float = 1.0
    arch: str = ""

    @property
    def architecture(self) -> str:
        """``general.architecture``."""
        return self.arch or self.name

    @property
    def metadata(self) -> dict[str, Any]:
        """Every key of the architecture, without its prefix; ``None`` takes a common one away."""
        merged = {**COMMON, "block_count": len(self.layers), **self.keys}
        return {key: value for key, value in merged.items() if value is not None}
