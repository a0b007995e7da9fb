from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize

from sluice.errors import SystemFault
from sluice.llama import ggml, library, tensor
from sluice.llama.embedding import NormedEmbedding, NormedRow
from sluice.llama.graph import opened
from sluice.llama.repeated import Buffer

EPSILON = 1e-5
F32 = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def weights(model: Path) -> tuple[ReaderTensor, ReaderTensor]:
    found = {one.name: one for one in GGUFReader(model).tensors}
    return found["token_embd.weight"], found["blk.0.attn_norm.weight"]


@pytest.fixture
def embedding(weights: tuple[ReaderTensor, ReaderTensor]) -> Iterator[NormedEmbedding]:
    library.start()
    with opened(16 << 20) as graph:
        addresses = []
        for one in weights:
            addresses.append(graph.tensor(int(one.tensor_type), *map(int, one.shape)))
            graph.fill(addresses[-1], one.data.tobytes())
        made = NormedEmbedding(*addresses, EPSILON)
        yield made
        made.close()


@pytest.fixture(scope="module")
def n_vocab(weights: tuple[ReaderTensor, ReaderTensor]) -> int:
    return int(weights[0].shape[1])


def wanted(weights: tuple[ReaderTensor, ReaderTensor], tokens: Sequence[int]) -> F32:
    table, norm = (dequantize(one.data, one.tensor_type) for one in weights)
    return normed(table[list(tokens)], norm)


def normed(rows: F32, norm: F32) -> F32:
    wide = rows.astype(np.float64)
    scale = 1 / np.sqrt((wide**2).mean(axis=1, keepdims=True) + EPSILON)
    return (wide * scale * norm).astype(np.float32)


@pytest.mark.parametrize("tokens", [[0], [17], [5, 5, 300, 1], list(range(100, 116))], ids=str)
def test_rows_are_the_tables_under_the_norm(
    embedding: NormedEmbedding, weights: tuple[ReaderTensor, ReaderTensor], tokens: list[int]
) -> None:
    found = embedding.rows(tokens).copy()
    assert found.dtype == np.float32
    assert found.shape == (len(tokens), int(weights[0].shape[0]))
    assert np.allclose(found, wanted(weights, tokens), rtol=1e-5, atol=1e-6)


def test_the_last_row_and_one_after_another(
    embedding: NormedEmbedding, weights: tuple[ReaderTensor, ReaderTensor], n_vocab: int
) -> None:
    first = embedding.rows([n_vocab - 1]).copy()
    second = embedding.rows([3]).copy()
    pair = embedding.rows([3, n_vocab - 1]).copy()
    assert np.allclose(first, wanted(weights, [n_vocab - 1]), rtol=1e-5, atol=1e-6)
    assert np.array_equal(pair, np.concatenate([second, first]))


@pytest.mark.parametrize("where", [0, 1])
def test_an_id_that_has_no_row_is_a_fault(
    embedding: NormedEmbedding, n_vocab: int, where: int
) -> None:
    for bad in (-1, n_vocab, 2**31 - 1):
        tokens = [4, 4]
        tokens[where] = bad
        with pytest.raises(SystemFault, match=rf"tokens .*: the embedding has {n_vocab} rows"):
            embedding.rows(tokens)


def test_it_can_be_used_after_it_was_freed(embedding: NormedEmbedding) -> None:
    before = embedding.rows([7, 8]).copy()
    embedding.close()
    embedding.close()
    assert np.array_equal(embedding.rows([7, 8]).copy(), before)


def test_the_table_is_quantised(weights: tuple[ReaderTensor, ReaderTensor]) -> None:
    """Else the tests above would show less than they seem to."""
    library.start()
    with opened(16 << 20) as graph:
        table = graph.tensor(int(weights[0].tensor_type), *map(int, weights[0].shape))
        assert tensor.type_name(table) == "q8_0"


# A row that is given.


@pytest.fixture
def norm(weights: tuple[ReaderTensor, ReaderTensor]) -> F32:
    return dequantize(weights[1].data, weights[1].tensor_type)


@pytest.fixture
def normed_row(norm: F32) -> Iterator[NormedRow]:
    library.start()
    with opened(1 << 20) as graph:
        address = graph.tensor(ggml.F32, len(norm))
        graph.fill(address, norm.tobytes())
        made = NormedRow(address, EPSILON)
        yield made
        made.close()


def row_of(norm: F32, seed: int, scale: float = 1) -> F32:
    noise = np.random.default_rng(seed).standard_normal((1, len(norm)), np.float32)
    return noise * np.float32(scale)


@pytest.mark.parametrize("scale", [1, 30, 1e-3])
def test_a_row_under_the_norm(normed_row: NormedRow, norm: F32, scale: float) -> None:
    row = row_of(norm, 1, scale)
    found = normed_row.row(row).copy()
    assert found.dtype == np.float32
    assert found.shape == (1, len(norm))
    assert np.allclose(found, normed(row, norm), rtol=1e-5, atol=1e-6)


def test_a_row_that_a_graph_has_is_taken_where_it_is(normed_row: NormedRow, norm: F32) -> None:
    memory = Buffer(4 * len(norm))
    where = tensor.Rows(memory.address, 1, len(norm))
    for seed in (2, 3):
        row = row_of(norm, seed)
        memory.fill(row.tobytes())
        assert np.allclose(normed_row.row(where).copy(), normed(row, norm), rtol=1e-5, atol=1e-6)
        assert np.array_equal(where.copy(), row)  # nothing is written there


def test_a_row_is_the_next_calls_from_then_on(normed_row: NormedRow, norm: F32) -> None:
    one, other = row_of(norm, 4), row_of(norm, 5)
    first = normed_row.row(one)
    kept = first.copy()
    second = normed_row.row(other)
    assert np.allclose(kept, normed(one, norm), rtol=1e-5, atol=1e-6)
    assert np.allclose(second.copy(), normed(other, norm), rtol=1e-5, atol=1e-6)
    assert np.array_equal(first.copy(), second.copy())
    assert np.array_equal(normed_row.row(one).copy(), kept)
