"""Write a checkpoint as a gguf file that llama.cpp opens as qwen35moe."""

from __future__ import annotations

import argparse
import ctypes
import os
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import numpy.typing as npt
from network import Network, Shape
from tokenizer import Vocabulary
from torch import Tensor
from train import restore

ARCH = "qwen35moe"
Array = npt.NDArray[np.float32]


def rope_sections(shape: Shape) -> list[int]:
    """Pairs of each text axis; they must cover all pairs, else llama.cpp leaves some unrotated."""
    pairs = shape.rope_dim // 2
    return [(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3, 0]


def array(tensor: Tensor) -> Array:
    """A tensor as a contiguous float32 array."""
    return np.ascontiguousarray(tensor.detach().float().numpy())


def tensors(network: Network) -> dict[str, Array]:
    """Every tensor of the file by llama.cpp's name; numpy shapes are gguf's reversed."""
    found: dict[str, Array] = {}
    blocks = {f"blocks.{i}.": f"blk.{i}." for i in range(network.shape.n_layer)}
    blocks["head."] = f"blk.{network.shape.n_layer}."
    nextn = {"enorm", "hnorm", "eh_proj", "shared_head_norm"}
    for name, value in network.state_dict().items():
        prefix = next((p for p in blocks if name.startswith(p)), "")
        rest = name.removeprefix(prefix).removesuffix(".weight")
        rest = rest.removeprefix("mixer.").removeprefix("experts.")
        data = array(value)
        if prefix == "head." and rest in nextn:
            rest = f"nextn.{rest}"
        if rest == "a_log":
            found[f"{blocks[prefix]}ssm_a"] = -np.exp(data)
            continue
        if rest == "ffn_gate_inp_shexp":
            data = data.reshape(-1)
        suffix = ".bias" if rest == "ssm_dt" else ".weight"
        found[f"{blocks.get(prefix, '')}{rest}{suffix}"] = data
    return found


def write_vocabulary(writer: gguf.GGUFWriter, vocabulary: Vocabulary) -> None:
    """The tokenizer's keys."""
    kinds = [gguf.TokenType.NORMAL] * len(vocabulary.tokens)
    kinds[vocabulary.end_of_text] = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(vocabulary.merges)
    # Without a key of its own llama.cpp takes id 11 for the start token.
    writer.add_bos_token_id(vocabulary.end_of_text)
    writer.add_eos_token_id(vocabulary.end_of_text)
    writer.add_eot_token_id(vocabulary.end_of_text)
    writer.add_pad_token_id(vocabulary.end_of_text)
    writer.add_add_bos_token(False)


def write_shape(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """The hyperparameters that llama.cpp's loader reads for qwen35moe."""
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer + 1)
    writer.add_nextn_predict_layers(1)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(shape.eps)
    writer.add_rope_dimension_count(shape.rope_dim)
    writer.add_rope_dimension_sections(rope_sections(shape))
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_expert_count(shape.n_expert)
    writer.add_expert_used_count(shape.n_expert_used)
    writer.add_expert_feed_forward_length(shape.n_ff)
    writer.add_expert_shared_feed_forward_length(shape.n_ff_shared)
    writer.add_ssm_conv_kernel(shape.conv_kernel)
    writer.add_ssm_inner_size(shape.value_width)
    writer.add_ssm_state_size(shape.state_dim)
    writer.add_ssm_time_step_rank(shape.value_heads)
    writer.add_ssm_group_count(shape.key_heads)
    writer.add_full_attention_interval(shape.full_attention_interval)


def export(network: Network, vocabulary: Vocabulary, out: Path, name: str) -> Path:
    """Write `out` as an F32 gguf file, atomically."""
    part = out.with_name(out.name + ".part")
    writer = gguf.GGUFWriter(part, ARCH)
    writer.add_name(name)
    writer.add_license("PSF-2.0")
    writer.add_description("Trained on the CPython standard library, for Sluice's gates.")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    write_shape(writer, network.shape)
    write_vocabulary(writer, vocabulary)
    for key, data in tensors(network).items():
        writer.add_tensor(key, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(part, out)
    return out


def quantise(source: Path, out: Path, kind: int) -> Path:
    """Let llama.cpp quantise `source` (an F32 file) to the file type `kind` (llama_ftype)."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = kind
    params.nthread = 1
    part = out.with_name(out.name + ".part")
    failed = llama_cpp.llama_model_quantize(
        str(source).encode(), str(part).encode(), ctypes.byref(params)
    )
    if failed:
        raise SystemExit(f"llama_model_quantize failed on {source}")
    os.replace(part, out)
    return out


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="folder that train.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="the F32 file")
    parser.add_argument("--q8-0", type=Path, help="also write this Q8_0 file")
    parser.add_argument("--name", default="sluice-python-11m")
    chosen = parser.parse_args()
    vocabulary = Vocabulary.load(chosen.run / "vocabulary.json")
    export(restore(chosen.run / "checkpoint.pt"), vocabulary, chosen.out, chosen.name)
    if chosen.q8_0:
        quantise(chosen.out, chosen.q8_0, int(gguf.LlamaFileType.MOSTLY_Q8_0))


if __name__ == "__main__":
    main()
