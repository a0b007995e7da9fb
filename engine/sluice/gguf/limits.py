"""What llama.cpp asserts of a model's header, held here first.

A failed assertion ends the process and cannot be caught. Found by changing every value and
every tensor type of a header, one at a time, and opening and running what came of it: of a real
qwen35moe model, and of tiny models of the architectures named below.
"""

from __future__ import annotations

import re
from typing import Any

from sluice.errors import ModelError
from sluice.gguf.header import Header

LAYERS_MAX = 512  # LLAMA_MAX_LAYERS
EXPERTS_MAX = 1024  # LLAMA_MAX_EXPERTS
ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")
GATINGS_MAX = 4  # LLAMA_EXPERT_GATING_FUNC_TYPE_SQRT_SOFTPLUS

# What the loaders and graphs of these architectures assert of the widths of a head. In a graph
# that rotates, an odd width is an assertion too, and a width of 0 never returns.
_LATENT = frozenset({"deepseek2", "deepseek32", "glm-dsa", "mistral4", "bailingmoe3"})
_ROTATES_THE_WHOLE_HEAD = frozenset({
    "arctic", "bailingmoe", "cohere2moe", "dbrx", "deepseek", "dots1", "ernie4_5-moe",
    "exaone-moe", "gpt-oss", "granite_swa", "granitemoe", "grok", "hunyuan-moe", "hy_v3", "llama",
    "llama4", "mellum", "mistral3", "olmoe", "qwen2moe", "qwen3moe", "qwen3vlmoe", "smallthinker",
})  # fmt: skip
_ROTATES_A_PART = frozenset({
    "afmoe", "bailingmoe2", "gemma4", "glm4moe", "laguna", "lfm2moe", "maple", "mimo2",
    "minimax-01", "minimax-m2", "phimoe", "qwen35moe", "qwen3next",
})  # fmt: skip
_ONE_SHAPE_OF_HEADS = _ROTATES_THE_WHOLE_HEAD | _LATENT - {"bailingmoe3"} | frozenset({
    "afmoe", "bailingmoe2", "glm4moe", "maple", "minimax-01", "minimax-m2", "phimoe",
})  # fmt: skip
_HEADS_AS_WIDE_AS_THE_EMBEDDING = frozenset({
    "arctic", "bailingmoe2", "dbrx", "deepseek", "grok", "jamba", "lfm2moe", "olmoe", "phimoe",
    "qwen2moe",
})  # fmt: skip
_ALWAYS_WINDOWED = frozenset({
    "cohere2moe", "exaone-moe", "gemma4", "gpt-oss", "granite_swa", "maple", "mimo2", "step35",
})  # fmt: skip
_SOMETIMES_WINDOWED = frozenset({"afmoe", "laguna", "llama4", "mellum", "smallthinker"})
_DELTA_NETS = frozenset({"qwen35moe", "qwen3next"})
_SECTIONED = frozenset({"qwen35moe", "qwen3vlmoe"})
_GATED_BY_THE_KEY = frozenset({
    "bailingmoe2", "bailingmoe3", "deepseek32", "dots1", "exaone-moe", "kimi-linear", "lfm2moe",
    "minimax-m2", "smallthinker",
})  # fmt: skip
_MANY_COUNTS_OF_EXPERTS = frozenset({"nemotron_h", "nemotron_h_moe"})

_NEVER_WEIGHTS = {"F64", "I8", "I16", "I32", "I64", "Q8_1", "Q8_K"}
_TABLES = re.compile(r"tid2eid")  # an int32 look-up table, not a weight
_ADDED_OR_SCALED = re.compile(r"(norm\.weight|\.bias|ssm_a|ssm_d|ssm_conv1d\.weight)$")


def refuse_what_aborts(header: Header) -> None:
    """Refuse a header that would end the process inside llama.cpp.

    Raises:
        ModelError: names the file, the key or tensor, and the value.
    """
    _check_counts(header)
    _check_numbers(header)
    _check_types(header)
    _check_heads(header)
    _check_rotation(header)
    _check_window(header)
    if header.architecture in _LATENT:
        _check_latent(header)
    if header.architecture in _DELTA_NETS:
        _check_delta_net(header)
    if header.architecture == "bailingmoe3":
        bound = _value(header, "kda.gate_lower_bound")
        fits = not isinstance(bound, float) or bound < 0  # llama.cpp names a key that is missing
        _hold(header, "kda.gate_lower_bound", fits, "below 0")
        _hold(header, "kda.safe_gate", _value(header, "kda.safe_gate") is not False, "true")


def _check_counts(header: Header) -> None:
    layers, experts = header.number("block_count"), header.number("expert_count")
    used = _largest(header, "expert_used_count")
    groups, groups_used = (
        header.number("expert_group_count"),
        header.number("expert_group_used_count"),
    )
    if _value(header, "block_count") is not None:
        _hold(header, "block_count", 1 <= layers <= LAYERS_MAX, f"1 to {LAYERS_MAX}")
    _hold(header, "nextn_predict_layers", 0 <= header.n_nextn <= layers, f"at most {layers}")
    _hold(header, "expert_count", 0 <= experts <= EXPERTS_MAX, f"at most {EXPERTS_MAX}")
    fits = 1 <= used <= experts if experts else used == 0
    _hold(header, "expert_used_count", fits, f"{min(1, experts)} to {experts}, the expert_count")
    fits = groups < experts if experts else groups == 0
    _hold(header, "expert_group_count", fits, f"below {experts}, the expert_count")
    if groups > 1:
        _hold(header, "expert_group_count", experts % groups == 0, f"a divisor of {experts}")
        fits = 0 < groups_used < groups
        _hold(header, "expert_group_used_count", fits, f"1 to {groups - 1}")
    if header.architecture not in _MANY_COUNTS_OF_EXPERTS:
        _hold(header, "expert_used_count", _is_one(header, "expert_used_count"), "one number")
    gating, least = header.number("expert_gating_func"), 0
    if header.architecture in _GATED_BY_THE_KEY:
        least = 1
    fits = least <= gating <= GATINGS_MAX
    _hold(header, "expert_gating_func", fits, f"{least} to {GATINGS_MAX}")
    if header.architecture == "ernie4_5-moe":
        step = header.number("interleave_moe_layer_step")
        _hold(header, "interleave_moe_layer_step", step > 0, "1 or more")


def _check_numbers(header: Header) -> None:
    scaling = _value(header, "rope.scaling.type")
    if isinstance(scaling, str):
        words = ", ".join(ROPE_SCALINGS)
        _hold(header, "rope.scaling.type", scaling in ROPE_SCALINGS, f"one of {words}")
    for key in ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"):
        value = _value(header, key)
        if isinstance(value, float):  # a NaN is not at least 0 either
            _hold(header, key, value >= 0, "0 or more")


def _check_types(header: Header) -> None:
    for info in header.tensors.values():
        place = f"{header.path_of(info)}: {info.name} is of type {info.type_name}"
        if info.type_name in _NEVER_WEIGHTS and not _TABLES.search(info.name):
            raise ModelError(f"{place}, which ggml cannot compute with; convert the model again")
        if info.type_name != "F32" and _ADDED_OR_SCALED.search(info.name):
            raise ModelError(
                f"{place}, and ggml's CPU kernels take it as F32 only; convert the model again"
            )


def _check_heads(header: Header) -> None:
    if header.architecture in _ONE_SHAPE_OF_HEADS:
        for key in ("attention.head_count", "attention.head_count_kv"):
            _hold(header, key, _is_one(header, key), "one number")
    if header.architecture in _HEADS_AS_WIDE_AS_THE_EMBEDDING:
        heads, wide = _largest(header, "attention.head_count"), header.number("embedding_length")
        fits = heads * _head_width(header, "key") == wide and _is_one(
            header, "attention.head_count"
        )
        _hold(header, "attention.head_count", fits, f"embedding_length {wide} / key_length")


def _check_rotation(header: Header) -> None:
    width = _head_width(header, "key")
    rotated = header.number("rope.dimension_count", width)
    if header.architecture in _ROTATES_THE_WHOLE_HEAD:
        keys = ["attention.key_length", "attention.value_length"]
        if header.architecture == "gpt-oss":
            keys += [f"{key}_swa" for key in keys]
        for key in keys:
            whole = header.number(key, rotated)
            _hold(header, key, whole == rotated, f"the rope.dimension_count, {rotated}")
        fits = width == rotated and rotated > 0 and rotated % 2 == 0
        _hold(header, "rope.dimension_count", fits, f"even, the key_length {width}")
    elif header.architecture in _ROTATES_A_PART:
        for suffix in ("", "_swa"):
            width = header.number(f"attention.key_length{suffix}", width)
            rotated = header.number(f"rope.dimension_count{suffix}", min(rotated, width))
            fits = 0 < rotated <= width and rotated % 2 == 0
            _hold(header, f"rope.dimension_count{suffix}", fits, f"even, 2 to {width}")
    sections = _value(header, "rope.dimension_sections")
    if (
        header.architecture in _ROTATES_THE_WHOLE_HEAD | _ROTATES_A_PART | _LATENT
        and isinstance(sections, list)
        and all(isinstance(n, int) for n in sections)
    ):
        # Latent attention rotates a piece of the key by itself.
        width = rotated if header.architecture in _LATENT else _head_width(header, "key")
        least = 1 if header.architecture in _SECTIONED else 0
        fits = all(n >= 0 for n in sections) and least <= sum(sections[:3]) <= sum(sections)
        fits = fits and sum(sections) <= width
        _hold(header, "rope.dimension_sections", fits, f"together {least} to {width}")


def _check_window(header: Header) -> None:
    windowed = header.architecture in _ALWAYS_WINDOWED or (
        header.architecture in _SOMETIMES_WINDOWED and header.number("attention.sliding_window") > 0
    )
    pattern = _value(header, "attention.sliding_window_pattern")
    if windowed:
        no_layer = isinstance(pattern, list) and not any(pattern)
        fits = not no_layer and pattern != 1
        _hold(header, "attention.sliding_window_pattern", fits, "such that a layer has a window")


def _check_latent(header: Header) -> None:
    rotated, rank = header.number("rope.dimension_count"), header.number("attention.kv_lora_rank")
    width = header.number("attention.key_length_mla", _head_width(header, "key"))
    fits = 0 < rotated < width and rotated % 2 == 0
    _hold(header, "rope.dimension_count", fits, f"even, 2 to {width - 1}")
    if header.architecture in ("deepseek32", "glm-dsa"):
        indexed = header.number("attention.indexer.key_length")
        _hold(header, "rope.dimension_count", rotated <= indexed, f"at most {indexed}")
    if _value(header, "attention.key_length_mla") is not None:
        for name, width in (("key_length", rank + rotated), ("value_length", rank)):
            fits = _head_width(header, name.removesuffix("_length")) == width
            _hold(header, f"attention.{name}", fits, str(width))
        key = "attention.head_count_kv"
        _hold(header, key, _largest(header, key) == 1, "1")


def _check_delta_net(header: Header) -> None:
    interval = header.number("full_attention_interval", 4)
    _hold(header, "full_attention_interval", interval > 0, "1 or more")
    state, rank = header.number("ssm.state_size"), header.number("ssm.time_step_rank")
    inner = header.number("ssm.inner_size")
    _hold(
        header,
        "ssm.inner_size",
        inner == state * rank,
        f"state_size × time_step_rank = {state * rank}",
    )
    n_key_heads = header.number("ssm.group_count")
    fits = n_key_heads > 0 and rank % n_key_heads == 0
    _hold(header, "ssm.group_count", fits, f"a divisor of {rank}, the time_step_rank")


def _value(header: Header, key: str) -> Any:
    return header.metadata.get(f"{header.architecture}.{key}")


def _head_width(header: Header, part: str) -> int:
    heads = max(_largest(header, "attention.head_count"), 1)
    return header.number(f"attention.{part}_length", header.number("embedding_length") // heads)


def _is_one(header: Header, key: str) -> bool:
    value = _value(header, key)
    return not isinstance(value, list) or len(set(map(repr, value))) <= 1


def _largest(header: Header, key: str) -> int:
    value = _value(header, key)
    if isinstance(value, list):
        return max((n for n in value if isinstance(n, int)), default=0)
    return header.number(key)


def _hold(header: Header, key: str, holds: bool, wanted: str) -> None:
    if not holds:
        raise ModelError(
            f"{header.path}: malformed: {header.architecture}.{key} is {_value(header, key)!r},"
            f" must be {wanted}; convert the model again"
        )
