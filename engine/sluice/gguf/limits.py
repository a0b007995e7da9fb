"""What llama.cpp asserts of a model's header, held here first.

A failed assertion ends the process and cannot be caught. Found by changing every value and
every tensor type of a real header, one at a time, and opening and running what came of it.
"""

from __future__ import annotations

import re
from typing import Any

from sluice.errors import ModelError
from sluice.gguf.header import Header

LAYERS_MAX = 512  # LLAMA_MAX_LAYERS
EXPERTS_MAX = 1024  # LLAMA_MAX_EXPERTS
ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")

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
    if header.architecture == "qwen35moe":
        _check_qwen35moe(header)


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


def _check_qwen35moe(header: Header) -> None:
    heads = max(_largest(header, "attention.head_count"), 1)
    width = header.number("attention.key_length", header.number("embedding_length") // heads)
    rotated = header.number("rope.dimension_count", width)
    fits = 0 < rotated <= width and rotated % 2 == 0
    _hold(header, "rope.dimension_count", fits, f"even, 2 to {width}")
    sections = _value(header, "rope.dimension_sections")
    if isinstance(sections, list) and all(isinstance(n, int) for n in sections):
        fits = all(n >= 0 for n in sections) and 0 < sum(sections[:3]) <= sum(sections) <= width
        _hold(header, "rope.dimension_sections", fits, f"together 1 to {width}")
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
