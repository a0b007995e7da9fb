"""Writes a row of the table as a gguf: seeded weights, and a tokenizer that takes any ASCII."""

from __future__ import annotations

import math
import zlib
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType as Value

from sluice_gates.zoo.row import Row
from sluice_gates.zoo.tensors import N_EMBD, Tensor, Tensors, weight
from sluice_gates.zoo.tokenizer import N_VOCAB, write_tokenizer

SEED = 36

Array = npt.NDArray[np.generic]


def write_model(path: Path, row: Row) -> None:
    """Write ``row`` to ``path``; the same row gives the same bytes."""
    writer = gguf.GGUFWriter(path, row.architecture)
    for key, value in row.metadata.items():
        _add(writer, f"{row.architecture}.{key}", value)
    write_tokenizer(writer)
    for tensor in _whole(row):
        writer.add_tensor(tensor.name, _values(tensor), raw_dtype=tensor.kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _whole(row: Row) -> Tensors:
    embedding = Tensor("token_embd.weight", (N_VOCAB, N_EMBD), Type.Q8_0, size=row.embedding)
    output = weight("output", N_VOCAB, N_EMBD)
    layers = (
        Tensor(f"blk.{i}.{t.name}", t.shape, t.kind, t.mean, t.size)
        for i, layer in enumerate(row.layers)
        for t in layer
    )
    return (embedding, output, *row.outside, *layers)


def _values(tensor: Tensor) -> Array:
    # Arithmetic on raw bits only: the same on every platform and version.
    chance = np.random.default_rng((SEED, zlib.crc32(tensor.name.encode())))
    values = chance.random(tensor.shape, dtype=np.float32)
    values -= np.float32(0.5)
    values *= np.float32(tensor.size * math.sqrt(12))
    values += np.float32(tensor.mean)
    if tensor.name == "output.weight":
        values[0] = 0  # the end-of-generation token, never the largest
    made: Array = values if tensor.kind == Type.F32 else gguf.quants.quantize(values, tensor.kind)
    return made


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        kind = Value.BOOL if isinstance(value[0], bool) else None
        kind = kind or (Value.FLOAT32 if isinstance(value[0], float) else Value.INT32)
        writer.add_key_value(key, list(value), Value.ARRAY, sub_type=kind)
