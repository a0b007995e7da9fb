"""Writes a sparse gguf of a real model's shape: all of its header, none of its weights."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

N_VOCAB = 151_936
N_EMBD, N_LAYER, N_EXPERT, N_FF = 2048, 40, 256, 512
N_HEAD, N_HEAD_KV, HEAD_DIM = 16, 2, 256
STATE, GROUPS, RANK, CONV = 128, 16, 32, 4


def write_sparse_35b(path: Path, *, with_head: bool) -> int:
    """Qwen3.6-35B-A3B's shape with Q6_K and Q8_0 experts; returns the file's apparent bytes."""
    writer = gguf.GGUFWriter(path, "qwen35moe")
    _metadata(writer, with_head)
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

    add("token_embd.weight", (N_VOCAB, N_EMBD), q8)
    add("output_norm.weight", (N_EMBD,), f32)
    add("output.weight", (N_VOCAB, N_EMBD), q8)
    for i in range(N_LAYER + with_head):
        is_full = i >= N_LAYER or (i + 1) % 4 == 0
        p = f"blk.{i}."
        add(p + "attn_norm.weight", (N_EMBD,), f32)
        add(p + "post_attention_norm.weight", (N_EMBD,), f32)
        if is_full:
            add(p + "attn_q.weight", (2 * N_HEAD * HEAD_DIM, N_EMBD), q8)
            add(p + "attn_k.weight", (N_HEAD_KV * HEAD_DIM, N_EMBD), q8)
            add(p + "attn_v.weight", (N_HEAD_KV * HEAD_DIM, N_EMBD), q8)
            add(p + "attn_output.weight", (N_EMBD, N_HEAD * HEAD_DIM), q8)
            add(p + "attn_q_norm.weight", (HEAD_DIM,), f32)
            add(p + "attn_k_norm.weight", (HEAD_DIM,), f32)
        else:
            add(p + "attn_qkv.weight", (2 * STATE * GROUPS + STATE * RANK, N_EMBD), q8)
            add(p + "attn_gate.weight", (STATE * RANK, N_EMBD), q8)
            add(p + "ssm_conv1d.weight", (2 * STATE * GROUPS + STATE * RANK, CONV), f32)
            add(p + "ssm_dt.bias", (RANK,), f32)
            add(p + "ssm_a", (RANK,), f32)
            add(p + "ssm_beta.weight", (RANK, N_EMBD), q8)
            add(p + "ssm_alpha.weight", (RANK, N_EMBD), q8)
            add(p + "ssm_norm.weight", (STATE,), f32)
            add(p + "ssm_out.weight", (N_EMBD, STATE * RANK), q8)
        add(p + "ffn_gate_inp.weight", (N_EXPERT, N_EMBD), f32)
        add(p + "ffn_gate_exps.weight", (N_EXPERT, N_FF, N_EMBD), q6)
        add(p + "ffn_up_exps.weight", (N_EXPERT, N_FF, N_EMBD), q6)
        add(p + "ffn_down_exps.weight", (N_EXPERT, N_EMBD, N_FF), q8)
        add(p + "ffn_gate_inp_shexp.weight", (N_EMBD,), f32)
        add(p + "ffn_gate_shexp.weight", (N_FF, N_EMBD), q8)
        add(p + "ffn_up_shexp.weight", (N_FF, N_EMBD), q8)
        add(p + "ffn_down_shexp.weight", (N_EMBD, N_FF), q8)
        if i >= N_LAYER:
            add(p + "nextn.eh_proj.weight", (N_EMBD, 2 * N_EMBD), q8)
            for norm in ("enorm", "hnorm", "shared_head_norm"):
                add(f"{p}nextn.{norm}.weight", (N_EMBD,), f32)
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
    return end


def _metadata(writer: gguf.GGUFWriter, with_head: bool) -> None:
    writer.add_block_count(N_LAYER + with_head)
    if with_head:
        writer.add_uint32("qwen35moe.nextn_predict_layers", 1)
    writer.add_context_length(262_144)
    writer.add_embedding_length(N_EMBD)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD_KV)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(64)
    writer.add_array("qwen35moe.rope.dimension_sections", [11, 11, 10, 0])
    writer.add_rope_freq_base(1e7)
    writer.add_expert_count(N_EXPERT)
    writer.add_expert_used_count(8)
    writer.add_expert_feed_forward_length(N_FF)
    writer.add_expert_shared_feed_forward_length(N_FF)
    writer.add_uint32("qwen35moe.ssm.conv_kernel", CONV)
    writer.add_uint32("qwen35moe.ssm.state_size", STATE)
    writer.add_uint32("qwen35moe.ssm.group_count", GROUPS)
    writer.add_uint32("qwen35moe.ssm.time_step_rank", RANK)
    writer.add_uint32("qwen35moe.ssm.inner_size", STATE * RANK)
    writer.add_uint32("qwen35moe.full_attention_interval", 4)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    tokens = [f"t{i:06d}" for i in range(N_VOCAB)]
    writer.add_token_list(tokens)
    writer.add_token_types([1] * N_VOCAB)
    writer.add_token_merges([f"t{i:05d} {i % 10}" for i in range(N_VOCAB - 256)])
    writer.add_eos_token_id(0)
