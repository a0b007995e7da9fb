"""Headers that would end the process inside llama.cpp, and what is said instead.

The pure tests hold each rule on a changed copy of the bundled model's header; the ones that
open files in a process of their own show that no signal ends it.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGUFValueType

from sluice.errors import ModelError
from sluice.gguf.header import Header, TensorInfo
from sluice.gguf.limits import refuse_what_aborts

ARCH = "qwen35moe"


def changed(header: Header, **keys: Any) -> Header:
    renamed = {f"{ARCH}.{k.replace('__', '.')}": v for k, v in keys.items()}
    merged = {k: v for k, v in (dict(header.metadata) | renamed).items() if v is not None}
    return dataclasses.replace(header, metadata=merged)


def retyped(header: Header, name: str, kind: str) -> Header:
    info = dataclasses.replace(header.tensors[name], type_name=kind)
    return dataclasses.replace(header, tensors=dict(header.tensors) | {name: info})


def test_a_sound_model_passes(header: Header) -> None:
    refuse_what_aborts(header)


def of(header: Header, architecture: str, **keys: Any) -> Header:
    """A header of ``architecture`` with heads of 64, and ``keys``."""
    sound = {
        "block_count": 4,
        "embedding_length": 256,
        "attention__head_count": 4,
        "attention__head_count_kv": 2,
        "attention__key_length": 64,
        "attention__value_length": 64,
        "expert_count": 8,
        "expert_used_count": 2,
    }
    merged = {k: v for k, v in (sound | keys).items() if v is not None}
    named = {f"{architecture}.{k.replace('__', '.')}": v for k, v in merged.items()}
    metadata = {"general.architecture": architecture} | named
    return dataclasses.replace(header, metadata=metadata, tensors={})


LATENT = {
    "attention__head_count_kv": 1,
    "attention__kv_lora_rank": 64,
    "attention__key_length": 96,
    "attention__key_length_mla": 64,
    "rope__dimension_count": 32,
}

KDA = LATENT | {
    "attention__head_count_kv": [0, 0, 0, 1],
    "attention__value_length": 64,
    "expert_gating_func": 2,
    "kda__gate_lower_bound": -5.0,
}


@pytest.mark.parametrize(
    ("architecture", "keys"),
    [
        ("qwen3moe", {}),
        ("qwen3moe", {"attention__head_count_kv": [2] * 4, "expert_used_count": [2] * 4}),
        ("gpt-oss", {"attention__sliding_window_pattern": 2}),
        ("glm4moe", {"rope__dimension_count": 32}),
        ("gemma4", {"attention__sliding_window_pattern": [True, False, True, False]}),
        ("deepseek2", LATENT),
        ("bailingmoe3", KDA),
        ("deepseek2", {"rope__dimension_count": 32}),
        ("nemotron_h_moe", {"expert_used_count": [2, 2, 4, 2]}),
        ("lfm2moe", {"attention__head_count_kv": [0, 2, 0, 2], "expert_gating_func": 2}),
        ("step35", {"rope__dimension_count": 64}),
        ("gpt2", {"rope__dimension_count": 0, "expert_count": 0, "expert_used_count": 0}),
    ],
)  # fmt: skip
def test_a_sound_header_of_another_architecture_passes(
    header: Header, architecture: str, keys: dict[str, Any]
) -> None:
    refuse_what_aborts(of(header, architecture, **keys))


@pytest.mark.parametrize(
    ("architecture", "keys", "named"),
    [
        ("qwen3moe", {"rope__dimension_count": 32}, "rope.dimension_count, 32"),
        ("qwen3moe", {"rope__dimension_count": 0}, "key_length is 64, must be the rope"),
        ("qwen3moe", {"attention__head_count_kv": [2, 2, 0, 2]}, "head_count_kv is [2, 2, 0, 2]"),
        ("qwen3moe", {"expert_used_count": [2, 4, 2, 2]}, "[2, 4, 2, 2], must be one number"),
        ("qwen3vlmoe", {"rope__dimension_sections": [0] * 4}, "must be together 1 to 64"),
        ("gpt-oss", {"attention__key_length_swa": 32}, "key_length_swa is 32"),
        ("gpt-oss", {"attention__sliding_window_pattern": 1}, "such that a layer has a window"),
        ("maple", {"attention__sliding_window_pattern": [False] * 4}, "a layer has a window"),
        ("glm4moe", {"rope__dimension_count": 0}, "must be even, 2 to 64"),
        ("glm4moe", {"rope__dimension_count": 33}, "must be even, 2 to 64"),
        ("glm4moe", {"rope__dimension_sections": [64] * 4}, "must be together 0 to 64"),
        ("glm4moe", {"expert_gating_func": 5}, "expert_gating_func is 5, must be 0 to 4"),
        ("lfm2moe", {"expert_gating_func": None}, "expert_gating_func is None, must be 1 to 4"),
        ("lfm2moe", {"expert_gating_func": 2, "attention__head_count": 3}, "256 / key_length"),
        ("qwen2moe", {"attention__head_count": [3, 4, 4, 4]}, "head_count is [3, 4, 4, 4]"),
        ("jamba", {"attention__head_count": [3, 4, 4, 4]}, "256 / key_length"),
        ("gemma4", {"rope__dimension_count_swa": 65}, "rope.dimension_count_swa is 65"),
        ("deepseek2", LATENT | {"attention__head_count_kv": 2}, "head_count_kv is 2, must be 1"),
        ("deepseek2", LATENT | {"attention__key_length": 95}, "key_length is 95, must be 96"),
        ("deepseek2", LATENT | {"rope__dimension_count": 64}, "must be even, 2 to 63"),
        ("deepseek32", LATENT | {"expert_gating_func": 2}, "dimension_count is 32, must be at mo"),
        ("qwen3next", {"full_attention_interval": 0}, "full_attention_interval is 0"),
        ("bailingmoe3", KDA | {"kda__gate_lower_bound": 0.0}, "gate_lower_bound is 0.0, must be"),
        ("bailingmoe3", KDA | {"kda__gate_lower_bound": math.nan}, "gate_lower_bound is nan"),
        ("bailingmoe3", KDA | {"kda__safe_gate": False}, "safe_gate is False, must be true"),
        ("bailingmoe3", KDA | {"rope__dimension_sections": [64] * 4}, "together 0 to 32"),
        ("ernie4_5-moe", {}, "interleave_moe_layer_step is None, must be 1 or more"),
    ],
    ids=str,
)  # fmt: skip
def test_what_other_architectures_assert_is_refused_in_words(
    header: Header, architecture: str, keys: dict[str, Any], named: str
) -> None:
    with pytest.raises(ModelError) as refused:
        refuse_what_aborts(of(header, architecture, **keys))
    assert str(refused.value).startswith(f"{header.path}: malformed: {architecture}.")
    assert named in str(refused.value)


def test_a_sound_large_model_passes(header: Header) -> None:
    refuse_what_aborts(
        changed(header, block_count=512, expert_count=1024, expert_used_count=[4] * 512)
    )


def test_a_model_without_experts_passes(header: Header) -> None:
    refuse_what_aborts(changed(header, expert_count=None, expert_used_count=None))


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"block_count": 0}, "block_count is 0, must be 1 to 512"),
        ({"block_count": 513}, "block_count is 513"),
        ({"nextn_predict_layers": 255}, "nextn_predict_layers is 255, must be at most 5"),
        ({"expert_count": 1025}, "expert_count is 1025, must be at most 1024"),
        ({"expert_count": None}, "expert_used_count is 2, must be 0 to 0"),
        ({"expert_count": 1}, "expert_used_count is 2, must be 1 to 1"),
        ({"expert_used_count": 0}, "expert_used_count is 0, must be 1 to 8"),
        ({"expert_used_count": None}, "expert_used_count is None"),
        ({"expert_used_count": [2, 2, 9]}, "expert_used_count is [2, 2, 9]"),
        ({"expert_group_count": 8}, "expert_group_count is 8, must be below 8"),
        ({"expert_group_count": 3}, "expert_group_count is 3, must be a divisor of 8"),
        ({"expert_group_count": 4}, "expert_group_used_count is None, must be 1 to 3"),
        ({"expert_group_count": 4, "expert_group_used_count": 4}, "must be 1 to 3"),
        ({"rope__scaling__type": "linear-ish"}, "rope.scaling.type is 'linear-ish', must be one"),
        ({"attention__layer_norm_rms_epsilon": -1.0}, "layer_norm_rms_epsilon is -1.0"),
        ({"attention__layer_norm_rms_epsilon": math.nan}, "layer_norm_rms_epsilon is nan"),
        ({"rope__dimension_count": 0}, "rope.dimension_count is 0, must be even, 2 to"),
        ({"rope__dimension_count": 3}, "rope.dimension_count is 3"),
        ({"rope__dimension_count": 4096}, "rope.dimension_count is 4096"),
        ({"rope__dimension_sections": [0, 0, 0, 0]}, "rope.dimension_sections is [0, 0, 0, 0]"),
        ({"rope__dimension_sections": [0, 0, 0, 8]}, "rope.dimension_sections is [0, 0, 0, 8]"),
        ({"rope__dimension_sections": [1, -1, 0, 0]}, "rope.dimension_sections is [1, -1, 0, 0]"),
        ({"rope__dimension_sections": [4096, 0, 0, 0]}, "together 1 to"),
        ({"full_attention_interval": 0}, "full_attention_interval is 0, must be 1 or more"),
        ({"ssm__inner_size": 7}, "ssm.inner_size is 7, must be state_size × time_step_rank"),
        ({"ssm__group_count": 0}, "ssm.group_count is 0, must be a divisor of"),
        ({"ssm__group_count": 3}, "ssm.group_count is 3"),
    ],
    ids=str,
)
def test_what_llama_cpp_asserts_is_refused_in_words(
    header: Header, keys: dict[str, Any], named: str
) -> None:
    with pytest.raises(ModelError) as refused:
        refuse_what_aborts(changed(header, **keys))
    assert str(refused.value).startswith(f"{header.path}: malformed: {ARCH}.")
    assert named in str(refused.value)


@pytest.mark.parametrize("kind", ["F64", "I8", "I16", "I32", "I64", "Q8_1", "Q8_K"])
def test_a_weight_is_of_a_type_that_ggml_computes_with(header: Header, kind: str) -> None:
    with pytest.raises(ModelError, match=rf"blk\.0\.ffn_up_exps\.weight is of type {kind}"):
        refuse_what_aborts(retyped(header, "blk.0.ffn_up_exps.weight", kind))


@pytest.mark.parametrize(
    "name",
    ["output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ssm_a", "blk.0.ssm_dt.bias",
     "blk.0.ssm_conv1d.weight", "blk.4.nextn.enorm.weight"],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0"])
def test_what_is_added_or_scaled_is_f32(header: Header, name: str, kind: str) -> None:
    with pytest.raises(ModelError, match="take it as F32 only"):
        refuse_what_aborts(retyped(header, name, kind))


def test_a_table_of_whole_numbers_is_no_weight(header: Header) -> None:
    table = TensorInfo("blk.0.ffn_gate_tid2eid.weight", "I32", (8, 8), 0, 256)
    refuse_what_aborts(
        dataclasses.replace(header, tensors=dict(header.tensors) | {table.name: table})
    )


OPEN = """
import json, os, sys
from sluice.config import Config
from sluice.decoding.session import Session
from sluice.errors import SluiceError
for path, stream in [(p, s) for p in json.loads(sys.argv[1]) for s in (False, True)]:
    config = Config(model=path, ctx=256, ubatch=32, threads=1, moe_stream=stream, mtp=True)
    try:
        with Session(config) as session:
            session.generate([1, 2, 3], n=2).run()
            print("ran", stream, path)
    except SluiceError as err:
        print("refused", stream, type(err).__name__, err)
"""


def test_no_such_file_ends_the_process(
    rewrite: Callable[..., Path], child: Callable[..., Any], tmp_path: Path
) -> None:
    u32, f32, array = GGUFValueType.UINT32, GGUFValueType.FLOAT32, GGUFValueType.ARRAY
    keys = {
        "block_count": (0, u32),
        "nextn_predict_layers": (99, u32),
        "expert_count": (1, u32),
        "expert_used_count": (0, u32),
        "attention.layer_norm_rms_epsilon": (math.nan, f32),
        "rope.dimension_count": (3, u32),
        "rope.dimension_sections": ([0] * 4, array, GGUFValueType.INT32),
        "full_attention_interval": (0, u32),
        "ssm.inner_size": (7, u32),
    }
    paths = [
        rewrite(tmp_path / f"{i}.gguf", keys={f"{ARCH}.{name}": value})
        for i, (name, value) in enumerate(keys.items())
    ]
    half = np.ones(256, np.float16), gguf.GGMLQuantizationType.F16
    paths.append(rewrite(tmp_path / "norm.gguf", tensors={"output_norm.weight": half}))
    ended = child(OPEN, json.dumps([str(p) for p in paths]))
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert len(lines) == 2 * len(paths)
    for line in lines:
        assert " ModelError " in line or " RequestError " in line, line


FLIP = """
import os, random, resource, signal, sys
from pathlib import Path
from sluice.config import Config
from sluice.decoding.session import Session
from sluice.errors import SluiceError
from sluice.gguf.header import read_header
from sluice.llama import library

library.start()
path, seed, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
good = path.read_bytes()[:read_header(path).files[0].header_bytes]
chance = random.Random(seed)
signals = []
with path.open("r+b") as file:
    for i in range(count):
        places = {chance.randrange(4, len(good)) for _ in range(chance.choice((1, 1, 2)))}
        flipped = {p: chance.choice((0, 255, good[p] ^ 1 << chance.randrange(8))) for p in places}
        for place, value in flipped.items():
            file.seek(place); file.write(bytes([value]))
        file.flush()
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            try:
                config = Config(model=str(path), ctx=256, ubatch=32, threads=1,
                                moe_stream=i % 2 == 0, mtp=i % 4 < 2)
                with Session(config) as session:
                    session.generate([1, 2, 3], n=2).run()
            except SluiceError:
                os._exit(1)
            except BaseException:
                os._exit(2)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        for place in places:
            file.seek(place); file.write(good[place:place + 1])
        print(status if os.WIFSIGNALED(status) else os.WEXITSTATUS(status), flipped)
"""


def test_flipped_bytes_never_end_the_process(
    model: Path, child: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(model.read_bytes())
    ended = child(FLIP, path, 7, 60)
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert len(lines) == 60
    outcomes = [int(line.split()[0]) for line in lines]
    assert not [line for line in lines if line[:2] not in ("0 ", "1 ")]
    assert outcomes.count(0) > 5
    assert outcomes.count(1) > 5
