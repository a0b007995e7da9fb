"""A model of random weights, about 0.6 GB, of the shape of a small qwen35moe.

Its layers are small beside its embedding and its head is wired to the embedding, so that the
head's drafts are right most of the time, as a trained head's are. It speaks no language.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type

from sluice.telemetry.files import atomic

N_VOCAB, N_EMBD, N_LAYER = 8192, 1024, 8
N_EXPERT, N_USED, N_FF = 64, 8, 512
N_HEAD, N_HEAD_KV, HEAD_DIM = 8, 2, 128
STATE, GROUPS, RANK, CONV = 128, 8, 8, 4
FULL_EVERY = 4
SEED = 36
SMALL = 0.004
"""Size of the layers' weights; the embedding's is 1."""

NOISE = 0.1
"""Of the head's projection, in the sizes of a row: what makes some drafts wrong."""

Array = npt.NDArray[np.generic]


def synthetic_model(folder: Path) -> Path:
    """The model's file in ``folder``, made on the first call."""
    out = folder / f"sluice-synthetic-{N_LAYER}x{N_EXPERT}-Q4_K-{SEED}.gguf"
    if not out.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with atomic(out) as part:
            _write(part)
    return out


def _write(path: Path) -> None:
    noise = np.random.default_rng(SEED)
    writer = gguf.GGUFWriter(path, "qwen35moe")
    _metadata(writer)

    def dense(name: str, *shape: int, size: float = SMALL, kind: Type = Type.Q8_0) -> None:
        values = size * noise.standard_normal(shape, dtype=np.float32)
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    def constant(name: str, n: int, value: float = 1.0) -> None:
        writer.add_tensor(name, np.full(n, value, np.float32))

    dense("token_embd.weight", N_VOCAB, N_EMBD, size=1.0)
    constant("output_norm.weight", N_EMBD)
    output = noise.standard_normal((N_VOCAB, N_EMBD), dtype=np.float32)
    output[0] = 0  # the end-of-generation token, never the largest
    writer.add_tensor("output.weight", gguf.quants.quantize(output, Type.Q8_0),
                      raw_dtype=Type.Q8_0)  # fmt: skip
    for layer in range(N_LAYER + 1):
        p = f"blk.{layer}."
        is_head = layer == N_LAYER
        constant(p + "attn_norm.weight", N_EMBD)
        constant(p + "post_attention_norm.weight", N_EMBD)
        if is_head or (layer + 1) % FULL_EVERY == 0:
            dense(p + "attn_q.weight", 2 * N_HEAD * HEAD_DIM, N_EMBD)
            dense(p + "attn_k.weight", N_HEAD_KV * HEAD_DIM, N_EMBD)
            dense(p + "attn_v.weight", N_HEAD_KV * HEAD_DIM, N_EMBD)
            dense(p + "attn_output.weight", N_EMBD, N_HEAD * HEAD_DIM)
            constant(p + "attn_q_norm.weight", HEAD_DIM)
            constant(p + "attn_k_norm.weight", HEAD_DIM)
        else:
            dense(p + "attn_qkv.weight", 2 * STATE * GROUPS + STATE * RANK, N_EMBD)
            dense(p + "attn_gate.weight", STATE * RANK, N_EMBD)
            dense(p + "ssm_conv1d.weight", 2 * STATE * GROUPS + STATE * RANK, CONV, kind=Type.F32)
            constant(p + "ssm_dt.bias", RANK)
            constant(p + "ssm_a", RANK, -1.0)
            dense(p + "ssm_beta.weight", RANK, N_EMBD)
            dense(p + "ssm_alpha.weight", RANK, N_EMBD)
            constant(p + "ssm_norm.weight", STATE)
            dense(p + "ssm_out.weight", N_EMBD, STATE * RANK)
        dense(p + "ffn_gate_inp.weight", N_EXPERT, N_EMBD, size=0.02, kind=Type.F32)
        for part, rows, width in (
            ("gate", N_FF, N_EMBD), ("up", N_FF, N_EMBD), ("down", N_EMBD, N_FF),
        ):  # fmt: skip
            blocks = _q4_k(noise, N_EXPERT, rows, width)
            writer.add_tensor(f"{p}ffn_{part}_exps.weight", blocks, raw_dtype=Type.Q4_K)
        constant(p + "ffn_gate_inp_shexp.weight", N_EMBD, 0.0)
        dense(p + "ffn_gate_shexp.weight", N_FF, N_EMBD)
        dense(p + "ffn_up_shexp.weight", N_FF, N_EMBD)
        dense(p + "ffn_down_shexp.weight", N_EMBD, N_FF)
        if is_head:
            values = NOISE / np.sqrt(2 * N_EMBD) * noise.standard_normal((N_EMBD, 2 * N_EMBD))
            values[:, :N_EMBD] += np.eye(N_EMBD)  # [of the embedding | of the hidden state]
            projection = gguf.quants.quantize(values.astype(np.float32), Type.Q8_0)
            writer.add_tensor(p + "nextn.eh_proj.weight", projection, raw_dtype=Type.Q8_0)
            for norm in ("enorm", "hnorm", "shared_head_norm"):
                constant(f"{p}nextn.{norm}.weight", N_EMBD)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _q4_k(noise: np.random.Generator, *shape: int) -> Array:
    """Random Q4_K blocks: 144 bytes for 256 values, the first four two float16 scales.

    The gguf package cannot quantise to this type. Scales of 6 bits and quants of 4 are random;
    the two scales make values of about the size of the other weights.
    """
    n_blocks = shape[-1] // 256
    raw = noise.integers(0, 256, (*shape[:-1], n_blocks, 144), dtype=np.uint8)
    scales = np.array([SMALL / 250, SMALL / 32], np.float16)  # times 6 and 4 bits, and the offset
    raw[..., :4] = scales.view(np.uint8)
    return raw.reshape(*shape[:-1], n_blocks * 144)


def _metadata(writer: gguf.GGUFWriter) -> None:
    writer.add_block_count(N_LAYER + 1)
    writer.add_uint32("qwen35moe.nextn_predict_layers", 1)
    writer.add_context_length(4096)
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
    writer.add_expert_used_count(N_USED)
    writer.add_expert_feed_forward_length(N_FF)
    writer.add_expert_shared_feed_forward_length(N_FF)
    writer.add_uint32("qwen35moe.ssm.conv_kernel", CONV)
    writer.add_uint32("qwen35moe.ssm.state_size", STATE)
    writer.add_uint32("qwen35moe.ssm.group_count", GROUPS)
    writer.add_uint32("qwen35moe.ssm.time_step_rank", RANK)
    writer.add_uint32("qwen35moe.ssm.inner_size", STATE * RANK)
    writer.add_uint32("qwen35moe.full_attention_interval", FULL_EVERY)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    writer.add_token_list([f"t{i:05d}" for i in range(N_VOCAB)])
    writer.add_token_types([1] * N_VOCAB)
    writer.add_token_merges([f"t{i:04d} {i % 10}" for i in range(N_VOCAB - 256)])
    writer.add_eos_token_id(0)
