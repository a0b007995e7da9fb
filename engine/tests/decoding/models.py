"""Small files for the kernels: weights of a few types, and no graph that could run them."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from sluice.gguf.header import Header, read_header


def weights_only(path: Path) -> Header:
    """A gguf with a router, a projection, an output matrix and routed experts."""
    noise = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "qwen35moe")
    writer.add_embedding_length(64)
    writer.add_head_count(2)
    q8 = gguf.GGMLQuantizationType.Q8_0

    def add(name: str, *shape: int, kind: gguf.GGMLQuantizationType = q8) -> None:
        values = noise.standard_normal(shape, dtype=np.float32)
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    add("token_embd.weight", 96, 64)
    add("output.weight", 96, 64)
    add("output_norm.weight", 64, kind=gguf.GGMLQuantizationType.F32)
    add("blk.0.ffn_gate_inp.weight", 8, 64, kind=gguf.GGMLQuantizationType.F32)
    add("blk.0.ffn_up_exps.weight", 8, 32, 64)
    add("blk.0.attn_k.weight", 32, 64)
    add("blk.0.attn_v.weight", 32, 64)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_header(path)
