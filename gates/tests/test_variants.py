"""Each variant of the bundled model differs from it in the one thing that it says."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize

from sluice_gates import variants

MASTER = Path(__file__).parents[1] / "models" / "sluice-python-11m-Q8_0.gguf"
NEXTN = "qwen35moe.nextn_predict_layers"
BLOCKS = "qwen35moe.block_count"
HEAD = "blk.4."
EVERY = [
    variants.without_nextn,
    variants.nextn_key_without_tensors,
    variants.garbage_head,
    variants.cut_short,
    variants.not_a_gguf,
]


@pytest.fixture(scope="module")
def master() -> GGUFReader:
    return GGUFReader(MASTER)


def same_tensors(master: GGUFReader, made: GGUFReader) -> set[str]:
    """Names of the tensors that are in both, of one type, byte for byte."""
    mine = {tensor.name: tensor for tensor in master.tensors}
    return {
        tensor.name
        for tensor in made.tensors
        if tensor.tensor_type == mine[tensor.name].tensor_type
        and np.array_equal(tensor.data, mine[tensor.name].data)
    }


def values(reader: GGUFReader) -> dict[str, object]:
    """Every key with its value, the reader's own counts left out."""
    return {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}


def test_without_nextn_keeps_the_trunk_alone(master: GGUFReader, tmp_path: Path) -> None:
    made = GGUFReader(variants.without_nextn(MASTER, tmp_path / "m.gguf"))
    expected = values(master)
    del expected[NEXTN]
    expected[BLOCKS] = 4
    assert values(made) == expected
    trunk = {tensor.name for tensor in master.tensors if not tensor.name.startswith(HEAD)}
    assert {tensor.name for tensor in made.tensors} == trunk
    assert same_tensors(master, made) == trunk


def test_without_nextn_twice_is_refused(tmp_path: Path) -> None:
    made = variants.without_nextn(MASTER, tmp_path / "m.gguf")
    with pytest.raises(ValueError, match="no draft head"):
        variants.without_nextn(made, tmp_path / "n.gguf")
    assert not (tmp_path / "n.gguf").exists()


def test_key_without_tensors_keeps_every_key(master: GGUFReader, tmp_path: Path) -> None:
    made = GGUFReader(variants.nextn_key_without_tensors(MASTER, tmp_path / "m.gguf"))
    assert values(made) == values(master)
    kept = {tensor.name for tensor in master.tensors if ".nextn." not in tensor.name}
    assert {tensor.name for tensor in made.tensors} == kept
    assert len(kept) == len(master.tensors) - 4
    assert same_tensors(master, made) == kept


def test_garbage_changes_the_head_and_nothing_else(master: GGUFReader, tmp_path: Path) -> None:
    made = GGUFReader(variants.garbage_head(MASTER, tmp_path / "m.gguf"))
    assert values(made) == values(master)
    assert [t.name for t in made.tensors] == [t.name for t in master.tensors]
    trunk = {tensor.name for tensor in master.tensors if not tensor.name.startswith(HEAD)}
    assert same_tensors(master, made) == trunk
    for mine, other in zip(master.tensors, made.tensors, strict=True):
        assert mine.tensor_type == other.tensor_type
        assert list(mine.shape) == list(other.shape)
        assert np.isfinite(dequantize(other.data, other.tensor_type)).all()


def test_cut_short_ends_inside_the_tensor_data(master: GGUFReader, tmp_path: Path) -> None:
    raw, made = MASTER.read_bytes(), variants.cut_short(MASTER, tmp_path / "m.gguf").read_bytes()
    assert raw.startswith(made)
    assert master.data_offset < len(made) < len(raw)


def test_not_a_gguf_has_another_magic(tmp_path: Path) -> None:
    made = variants.not_a_gguf(MASTER, tmp_path / "m.gguf")
    with pytest.raises(ValueError, match="magic"):
        GGUFReader(made)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_shards_hold_every_tensor_once(master: GGUFReader, tmp_path: Path, n: int) -> None:
    first = variants.sharded(MASTER, tmp_path, n)
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == [
        f"{MASTER.stem}-{i:05d}-of-{n:05d}.gguf" for i in range(1, n + 1)
    ]
    assert first == files[0]
    readers = [GGUFReader(path) for path in files]
    names = [tensor.name for reader in readers for tensor in reader.tensors]
    assert names == [tensor.name for tensor in master.tensors]
    assert set().union(*(same_tensors(master, reader) for reader in readers)) == set(names)
    split = {"split.count": n, "split.tensors.count": len(names)}
    assert values(readers[0]) == values(master) | split | {"split.no": 0}
    for i, reader in enumerate(readers[1:], 1):
        assert values(reader) == split | {"split.no": i}


def test_a_layers_experts_are_in_two_shards(tmp_path: Path) -> None:
    variants.sharded(MASTER, tmp_path, 2)
    layers = [
        {t.name.split(".")[1] for t in GGUFReader(path).tensors if "_exps." in t.name}
        for path in sorted(tmp_path.iterdir())
    ]
    assert layers[0] & layers[1]


def test_shards_that_cut_no_layer_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no cut into 1 shards"):
        variants.sharded(MASTER, tmp_path, 1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("make", EVERY, ids=lambda make: make.__name__)
def test_the_same_bytes_twice_over_an_older_file(
    make: Callable[[Path, Path], Path], tmp_path: Path
) -> None:
    out = tmp_path / "m.gguf"
    out.write_bytes(b"older")
    assert make(MASTER, out) == out
    first = hashlib.sha256(out.read_bytes()).digest()
    make(MASTER, out)
    assert hashlib.sha256(out.read_bytes()).digest() == first
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]
