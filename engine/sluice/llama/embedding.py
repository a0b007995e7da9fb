"""Rows under a layer's norm: tokens' embeddings, as if nothing came before, or a graph's own."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial

from sluice.errors import SystemFault
from sluice.llama import ggml, tensor
from sluice.llama.repeated import Buffer, Graphs, RepeatedGraph


class NormedEmbedding:
    """``rms_norm(table[token]) * norm``.

    Args:
        table: address of the embedding's weight, of any type that ggml takes rows from.
        norm: address of a norm's weight, float32[n_embd].
        epsilon: of the norm.
    """

    def __init__(self, table: int, norm: int, epsilon: float) -> None:
        self._n_embd, self._n_vocab = tensor.shape(table)[:2]
        self._graphs = Graphs(partial(_Graph, table, norm, epsilon))  # by number of rows

    def rows(self, tokens: Sequence[int]) -> tensor.Rows:
        """float32[n, n_embd], until the next call.

        Raises:
            SystemFault: a token that the table has no row for.
        """
        n = len(tokens)
        if min(tokens) < 0 or max(tokens) >= self._n_vocab:
            raise SystemFault(f"tokens {list(tokens)}: the embedding has {self._n_vocab} rows")
        graph = self._graphs.of(n)
        graph.tokens.fill(struct.pack(f"={n}i", *tokens))
        graph.compute()
        return tensor.Rows(graph.out.address, n, self._n_embd)

    def close(self) -> None:
        """Free what it computes with."""
        self._graphs.close()


class NormedRow:
    """``rms_norm(row) * norm``.

    Args:
        norm: address of a norm's weight, float32[n_embd].
        epsilon: of the norm.
    """

    def __init__(self, norm: int, epsilon: float) -> None:
        self._graphs = Graphs(partial(_RowGraph, norm, epsilon))

    def row(self, row: tensor.Matrix) -> tensor.Rows:
        """float32[1, n_embd] of float32[1, n_embd], until the next call."""
        graph = self._graphs.of()
        graph.row.take(row)
        graph.compute()
        return tensor.Rows(graph.out.address, 1, graph.n_embd)

    def close(self) -> None:
        """Free what it computes with."""
        self._graphs.close()


class _RowGraph(RepeatedGraph):
    def __init__(self, norm: int, epsilon: float) -> None:
        super().__init__()
        self.n_embd = tensor.shape(norm)[0]
        self.row, self.out = self.input(self.n_embd, 1), Buffer(4 * self.n_embd)
        _build_norm(self, self.row.tensor, norm, epsilon, self.out)


class _Graph(RepeatedGraph):
    def __init__(self, table: int, norm: int, epsilon: float, n: int) -> None:
        super().__init__()
        n_embd, n_vocab = tensor.shape(table)[:2]
        self.tokens, self.out = Buffer(4 * n), Buffer(4 * n * n_embd)
        rows = self.tensor(tensor.type_number(table), n_embd, n_vocab, tensor.data(table))
        ids = self.tensor(ggml.I32, n, 1, self.tokens.address)
        taken = self.node(self.base.ggml_get_rows, rows, ids, into=Buffer(4 * n * n_embd))
        _build_norm(self, taken, norm, epsilon, self.out)


def _build_norm(graph: RepeatedGraph, rows: int, norm: int, epsilon: float, out: Buffer) -> None:
    """Build ``graph`` to compute the norm of ``rows``."""
    weight = graph.tensor(ggml.F32, tensor.shape(norm)[0], 1, tensor.data(norm))
    normed = graph.node(graph.base.ggml_rms_norm, rows, epsilon, into=Buffer(len(out.raw)))
    graph.build(graph.node(graph.base.ggml_mul, normed, weight, into=out))
