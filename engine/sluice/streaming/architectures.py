"""The architectures whose experts are streamed: one row each.

A row says what llama.cpp's loader and graph of that architecture have in common for every
model of it. Counts (layers, experts, experts a token, bytes) are read from the file, never
from here. Every row has been run resident and streamed, to the same logits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

SPLIT = frozenset({"gate", "up", "down"})
FUSED = frozenset({"gate_up", "down"})
UNGATED = frozenset({"up", "down"})

SHARED = "shared experts"
LEADING = "leading dense layers"
BETWEEN = "dense layers between"
BESIDE = "a dense layer beside the experts"
BIASES = "expert biases"
SCALES = "expert scales"
LATENT = "latent projections"

SWIGLU = "ffn_moe_swiglu"
CLAMPED = "ffn_moe_swiglu_limited"

_ROUTER = re.compile(r"ffn_moe_topk-(\d+)")


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a streamer must know of an architecture.

    Args:
        name: ``general.architecture``.
        stored: the sets of parts that a layer's experts may come in.
        resident: what stays in memory beside the router, attention and embeddings, in words.
        activations: names, less the layer, that the node may have whose output is the
            down-projection's input: where ``--overlap`` stops for down's experts. The capture
            finds it in the graph, by its place alone (see :class:`Capture`); the names are what
            it is held against.
    """

    name: str
    stored: tuple[frozenset[str], ...] = (SPLIT,)
    resident: tuple[str, ...] = ()
    activations: tuple[str, ...] = (SWIGLU,)


_EITHER = (SPLIT, FUSED)

ROWS = (
    Architecture("afmoe", resident=(SHARED, LEADING)),
    Architecture("arctic", resident=(BESIDE,)),
    Architecture("bailingmoe", resident=(SHARED,)),
    Architecture("bailingmoe2", resident=(SHARED, LEADING)),
    Architecture("bailingmoe3", resident=(SHARED, LEADING), activations=(SWIGLU, CLAMPED)),
    Architecture("cohere2moe", _EITHER, (SHARED, LEADING)),
    Architecture("dbrx"),
    Architecture("deepseek", resident=(SHARED, LEADING)),
    Architecture("deepseek2", _EITHER, (SHARED, LEADING)),
    Architecture("deepseek32", resident=(SHARED, LEADING)),
    Architecture("dots1", resident=(SHARED, LEADING)),
    Architecture("ernie4_5-moe", resident=(SHARED, LEADING, BETWEEN)),
    Architecture("exaone-moe", resident=(SHARED, LEADING)),
    Architecture("gemma4", _EITHER, (BESIDE, SCALES), ("ffn_moe_geglu",)),
    Architecture("glm-dsa", resident=(SHARED, LEADING)),
    Architecture("glm4moe", resident=(SHARED, LEADING)),
    Architecture("gpt-oss", resident=(BIASES,), activations=("ffn_moe_swiglu_oai",)),
    Architecture("granite_swa", _EITHER, (SHARED,)),
    Architecture("granitehybrid", resident=(SHARED,)),
    Architecture("granitemoe", resident=(SHARED,)),
    Architecture("grok", resident=(BESIDE,), activations=("ffn_moe_geglu",)),
    Architecture("hunyuan-moe", resident=(SHARED,)),
    Architecture("hy_v3", _EITHER, (SHARED, LEADING)),
    Architecture("jamba", resident=(BETWEEN,)),
    Architecture("kimi-linear", resident=(SHARED, LEADING)),
    Architecture("laguna", resident=(SHARED, LEADING)),
    Architecture("lfm2moe", resident=(LEADING,)),
    Architecture("llama", resident=(SHARED,)),
    Architecture("llama4", resident=(SHARED, BETWEEN)),
    Architecture("maple", activations=(SWIGLU, CLAMPED)),
    Architecture("mellum"),
    Architecture("mimo2", resident=(LEADING,)),
    Architecture("minimax-01"),
    Architecture("minimax-m2"),
    Architecture("mistral3", resident=(SHARED,)),
    Architecture("mistral4", _EITHER, (SHARED, LEADING)),
    Architecture("nemotron_h_moe", (UNGATED,), (SHARED, LATENT), ("ffn_moe_relu_sqr",)),
    Architecture("olmoe"),
    Architecture("phimoe"),
    Architecture("qwen2moe", resident=(SHARED,)),
    Architecture("qwen35moe", _EITHER, (SHARED,)),
    Architecture("qwen3moe"),
    Architecture("qwen3next", _EITHER, (SHARED,)),
    Architecture("qwen3vlmoe"),
    Architecture("smallthinker", activations=("ffn_moe_reglu",)),
    Architecture("step35", resident=(SHARED, LEADING), activations=(SWIGLU, CLAMPED)),
)
# Not here, on purpose: grovemoe routes twice a layer under one name, the second time to chunked
# experts (ffn_*_chexps), and both tensors would have to be streamed by different indices.

ARCHITECTURES: Mapping[str, Architecture] = {row.name: row for row in ROWS}
"""By ``general.architecture``."""


def router_layer(name: str) -> int | None:
    """The layer whose routed experts the graph node ``name`` holds; ``None`` for another node.

    The whole name counts: a copy of a router's output, in floating point, is called
    ``ffn_moe_topk-3 (copy)``.
    """
    match = _ROUTER.fullmatch(name)
    return int(match[1]) if match else None
