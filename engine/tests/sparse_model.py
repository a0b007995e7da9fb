"""Writes a sparse gguf of a real model's shape: all of its header, none of its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from sluice.gguf.header import read_header


@dataclass(frozen=True, slots=True)
class Shape:
    """Qwen3.6-35B-A3B's, unless said otherwise."""

    n_vocab: int = 151_936
    n_embd: int = 2048
    n_layer: int = 40
    n_expert: int = 256
    n_ff: int = 512
    n_head: int = 16
    n_head_kv: int = 2
    head_dim: int = 256
    state: int = 128
    groups: int = 16
    rank: int = 32
    conv: int = 4


QWEN = Shape()


def write_sparse(
    path: Path, shape: Shape = QWEN, *, with_head: bool, fills_dense: bool = False
) -> int:
    """Q6_K and Q8_0 experts of zeros that take no disk; returns the file's apparent bytes.

    With ``fills_dense`` all other weights are random, and the model can be run.
    """
    writer = gguf.GGUFWriter(path, "qwen35moe")
    s = shape
    _metadata(writer, s, with_head)
    f32, q8, q6 = (
        gguf.GGMLQuantizationType.F32,
        gguf.GGMLQuantizationType.Q8_0,
        gguf.GGMLQuantizationType.Q6_K,
    )

    def add(name: str, shape: tuple[int, ...], kind: gguf.GGMLQuantizationType) -> None:
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        size = int(np.prod(shape)) // block * block_bytes
        byte_shape = (*shape[:-1], shape[-1] // block * block_bytes)
        writer.add_tensor_info(name, byte_shape, np.dtype(np.uint8), size, raw_dtype=kind)

    add("token_embd.weight", (s.n_vocab, s.n_embd), q8)
    add("output_norm.weight", (s.n_embd,), f32)
    add("output.weight", (s.n_vocab, s.n_embd), q8)
    for i in range(s.n_layer + with_head):
        is_full = i >= s.n_layer or (i + 1) % 4 == 0
        p = f"blk.{i}."
        add(p + "attn_norm.weight", (s.n_embd,), f32)
        add(p + "post_attention_norm.weight", (s.n_embd,), f32)
        if is_full:
            add(p + "attn_q.weight", (2 * s.n_head * s.head_dim, s.n_embd), q8)
            add(p + "attn_k.weight", (s.n_head_kv * s.head_dim, s.n_embd), q8)
            add(p + "attn_v.weight", (s.n_head_kv * s.head_dim, s.n_embd), q8)
            add(p + "attn_output.weight", (s.n_embd, s.n_head * s.head_dim), q8)
            add(p + "attn_q_norm.weight", (s.head_dim,), f32)
            add(p + "attn_k_norm.weight", (s.head_dim,), f32)
        else:
            add(p + "attn_qkv.weight", (2 * s.state * s.groups + s.state * s.rank, s.n_embd), q8)
            add(p + "attn_gate.weight", (s.state * s.rank, s.n_embd), q8)
            add(p + "ssm_conv1d.weight", (2 * s.state * s.groups + s.state * s.rank, s.conv), f32)
            add(p + "ssm_dt.bias", (s.rank,), f32)
            add(p + "ssm_a", (s.rank,), f32)
            add(p + "ssm_beta.weight", (s.rank, s.n_embd), q8)
            add(p + "ssm_alpha.weight", (s.rank, s.n_embd), q8)
            add(p + "ssm_norm.weight", (s.state,), f32)
            add(p + "ssm_out.weight", (s.n_embd, s.state * s.rank), q8)
        add(p + "ffn_gate_inp.weight", (s.n_expert, s.n_embd), f32)
        add(p + "ffn_gate_exps.weight", (s.n_expert, s.n_ff, s.n_embd), q6)
        add(p + "ffn_up_exps.weight", (s.n_expert, s.n_ff, s.n_embd), q6)
        add(p + "ffn_down_exps.weight", (s.n_expert, s.n_embd, s.n_ff), q8)
        add(p + "ffn_gate_inp_shexp.weight", (s.n_embd,), f32)
        add(p + "ffn_gate_shexp.weight", (s.n_ff, s.n_embd), q8)
        add(p + "ffn_up_shexp.weight", (s.n_ff, s.n_embd), q8)
        add(p + "ffn_down_shexp.weight", (s.n_embd, s.n_ff), q8)
        if i >= s.n_layer:
            add(p + "nextn.eh_proj.weight", (s.n_embd, 2 * s.n_embd), q8)
            for norm in ("enorm", "hnorm", "shared_head_norm"):
                add(f"{p}nextn.{norm}.weight", (s.n_embd,), f32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    size = writer.fout[0].tell()
    writer.close()
    end = -(-size // 32) * 32 + sum(
        -(-t.nbytes // 32) * 32 for shard in writer.tensors for t in shard.values()
    )
    with path.open("r+b") as file:
        file.truncate(end)
    if fills_dense:
        _fill(path)
    return end


def _fill(path: Path) -> None:
    noise = np.random.default_rng(7)
    with path.open("r+b") as file:
        for info in read_header(path).tensors.values():
            if "_exps." in info.name:
                continue
            rows = noise.standard_normal(info.shape[::-1], np.float32)
            if info.name.endswith("norm.weight"):
                rows = 1 + 0.1 * rows
            elif info.name.endswith("ssm_a"):
                rows = -abs(rows)
            elif not info.name.startswith("token_embd"):
                rows *= np.float32(info.shape[0] ** -0.5)
            kind = gguf.GGMLQuantizationType[info.type_name.upper()]
            file.seek(info.offset)
            file.write(gguf.quants.quantize(rows, kind).tobytes())


def _metadata(writer: gguf.GGUFWriter, s: Shape, with_head: bool) -> None:
    writer.add_block_count(s.n_layer + with_head)
    if with_head:
        writer.add_uint32("qwen35moe.nextn_predict_layers", 1)
    writer.add_context_length(262_144)
    writer.add_embedding_length(s.n_embd)
    writer.add_head_count(s.n_head)
    writer.add_head_count_kv(s.n_head_kv)
    writer.add_key_length(s.head_dim)
    writer.add_value_length(s.head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(64)
    writer.add_array("qwen35moe.rope.dimension_sections", [11, 11, 10, 0])
    writer.add_rope_freq_base(1e7)
    writer.add_expert_count(s.n_expert)
    writer.add_expert_used_count(8)
    writer.add_expert_feed_forward_length(s.n_ff)
    writer.add_expert_shared_feed_forward_length(s.n_ff)
    writer.add_uint32("qwen35moe.ssm.conv_kernel", s.conv)
    writer.add_uint32("qwen35moe.ssm.state_size", s.state)
    writer.add_uint32("qwen35moe.ssm.group_count", s.groups)
    writer.add_uint32("qwen35moe.ssm.time_step_rank", s.rank)
    writer.add_uint32("qwen35moe.ssm.inner_size", s.state * s.rank)
    writer.add_uint32("qwen35moe.full_attention_interval", 4)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    tokens = [f"t{i:06d}" for i in range(s.n_vocab)]
    writer.add_token_list(tokens)
    writer.add_token_types([1] * s.n_vocab)
    writer.add_token_merges([f"t{i:05d} {i % 10}" for i in range(s.n_vocab - 256)])
    writer.add_eos_token_id(0)
