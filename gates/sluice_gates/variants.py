"""Faulty and reduced copies of a model file, made with the gguf package alone.

Every function takes the master and the path to write (shards: their folder), writes atomically
and returns the path.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, GGUFValueType, GGUFWriter, ReaderTensor
from gguf.quants import quantize

SEED = 20_250
NEXTN_KEY = "{arch}.nextn_predict_layers"
BLOCKS_KEY = "{arch}.block_count"
# The reader's own fields, and the key that the writer adds by itself.
NOT_COPIED = frozenset(
    {"GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture"}
)
Tensors = npt.NDArray[np.generic]


def without_nextn(master: Path, out: Path) -> Path:
    """The trunk alone: no nextn key, no tensor of the head's block, one block fewer.

    llama.cpp opens it and counts 0 nextn layers, whatever `load_mtp` says. An MTP context of it
    is a null pointer and a warning: "context type MTP requested but model doesn't contain MTP
    layers".
    """
    reader = GGUFReader(master)
    arch, block, heads = _head_block(reader)
    changed = {BLOCKS_KEY.format(arch=arch): block, NEXTN_KEY.format(arch=arch): None}
    dropped = tuple(f"blk.{block + i}." for i in range(heads))
    kept = [tensor for tensor in reader.tensors if not tensor.name.startswith(dropped)]
    return _copy(reader, out, changed, kept)


def nextn_key_without_tensors(master: Path, out: Path) -> Path:
    """Metadata that promises a head whose `nextn` tensors are not there.

    llama.cpp refuses it, with `load_mtp` and without: "check_tensor_dims: tensor
    'blk.N.nextn.eh_proj.weight' not found".
    """
    reader = GGUFReader(master)
    _head_block(reader)
    kept = [tensor for tensor in reader.tensors if ".nextn." not in tensor.name]
    return _copy(reader, out, {}, kept)


def garbage_head(master: Path, out: Path) -> Path:
    """The head's weights replaced by seeded noise of the same types and ordinary sizes.

    llama.cpp opens and runs it with finite values: the drafts are wrong and the text is not.
    Works for every type that the gguf package can quantise (F32, F16, BF16, Q8_0, Q4_0, ...).
    """
    reader = GGUFReader(master)
    _, block, _ = _head_block(reader)
    noise = np.random.default_rng(SEED)

    def replaced(tensor: ReaderTensor) -> Tensors:
        if not tensor.name.startswith(f"blk.{block}."):
            return tensor.data
        return _garbage(tensor, noise)

    return _copy(reader, out, {}, list(reader.tensors), replaced)


def cut_short(master: Path, out: Path) -> Path:
    """The file ends in the middle of its tensor data, as after a broken download.

    llama.cpp refuses it, with `load_mtp` and without: "tensor '...' data is not within the file
    bounds, model is corrupted or incomplete".
    """
    size = master.stat().st_size
    start = int(GGUFReader(master).data_offset)
    with _atomic(out) as part:
        part.write_bytes(master.read_bytes()[: start + (size - start) // 2])
    return out


def not_a_gguf(master: Path, out: Path) -> Path:
    """The master's bytes under another magic.

    llama.cpp refuses it: "invalid magic characters: 'ZZZZ', expected 'GGUF'".
    """
    with _atomic(out) as part:
        part.write_bytes(b"ZZZZ" + master.read_bytes()[4:])
    return out


def sharded(master: Path, folder: Path, n: int) -> Path:
    """The same tensors over ``n`` files, in the order of the master; the path of the first.

    Some layer's experts are in two shards. The gguf package's own writer splits them, as its
    converters do: only the first shard has the model's keys.
    """
    reader = GGUFReader(master)
    names = [tensor.name for tensor in reader.tensors]
    size = _tensors_a_shard(names, n)
    with tempfile.TemporaryDirectory(prefix=".part", dir=folder) as part:
        writer = GGUFWriter(
            Path(part) / f"{master.stem}.gguf", _architecture(reader), split_max_tensors=size
        )
        _write(writer, reader, {}, list(reader.tensors), lambda tensor: tensor.data)
        made = sorted(Path(part).iterdir())
        # The first one last: where it is, all are.
        for file in reversed(made):
            os.replace(file, folder / file.name)
    return folder / made[0].name


def _tensors_a_shard(names: list[str], n: int) -> int:
    """Of the counts that make ``n`` shards, the first that cuts through a layer's experts."""
    for size in range(-(-len(names) // n), len(names)):
        shards: dict[str, set[int]] = {}
        for i, name in enumerate(names):
            if name.endswith("_exps.weight"):
                shards.setdefault(name.split(".ffn_")[0], set()).add(i // size)
        if -(-len(names) // size) == n and any(len(found) > 1 for found in shards.values()):
            return size
    raise ValueError(f"no cut into {n} shards goes through the experts of a layer")


def _head_block(reader: GGUFReader) -> tuple[str, int, int]:
    """Architecture, index of the head's first block (the trunk's count), number of heads."""
    arch = _architecture(reader)
    heads = reader.fields.get(NEXTN_KEY.format(arch=arch))
    if heads is None or heads.contents() == 0:
        raise ValueError("the master has no draft head")
    blocks = reader.fields[BLOCKS_KEY.format(arch=arch)].contents()
    return arch, blocks - heads.contents(), heads.contents()


def _garbage(tensor: ReaderTensor, noise: np.random.Generator) -> Tensors:
    shape = [int(n) for n in reversed(tensor.shape)]
    values = noise.standard_normal(shape, dtype=np.float32)
    if len(shape) == 1:
        # Norm weights: around one, so that the sizes stay those of a working head.
        values = 1.0 + 0.25 * values
    else:
        values /= np.sqrt(shape[-1], dtype=np.float32)
    if tensor.tensor_type == gguf.GGMLQuantizationType.F32:
        return values
    return np.asarray(quantize(values, tensor.tensor_type))


@contextmanager
def _atomic(out: Path) -> Iterator[Path]:
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        yield part
        os.replace(part, out)
    finally:
        part.unlink(missing_ok=True)


def _copy(
    reader: GGUFReader,
    out: Path,
    changed: dict[str, int | None],
    tensors: list[ReaderTensor],
    data: Callable[[ReaderTensor], Tensors] = lambda tensor: tensor.data,
) -> Path:
    """Write `reader`'s keys (`changed`: another value, None for none) and `tensors` to `out`."""
    with _atomic(out) as part:
        _write(GGUFWriter(part, _architecture(reader)), reader, changed, tensors, data)
    return out


def _write(
    writer: GGUFWriter,
    reader: GGUFReader,
    changed: dict[str, int | None],
    tensors: list[ReaderTensor],
    data: Callable[[ReaderTensor], Tensors],
) -> None:
    writer.data_alignment = reader.alignment
    for key, field in reader.fields.items():
        value = changed.get(key, field.contents())
        if key in NOT_COPIED or value is None:
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(key, value, kind, inner)
    for tensor in tensors:
        writer.add_tensor(tensor.name, data(tensor), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _architecture(reader: GGUFReader) -> str:
    return str(reader.fields["general.architecture"].contents())
