"""Rows times a weight of the model, and the order of what comes out."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from sluice.errors import SystemFault
from sluice.llama import ggml
from sluice.llama.repeated import Buffer, Graphs, RepeatedGraph
from sluice.llama.tensor import Matrix

F32 = npt.NDArray[np.float32]
_BLOCK = 32  # elements that share a scale in Q8_0
_LARGEST = np.float32(np.finfo(np.float16).max)  # a scale beyond it would be infinite


class Projection:
    """The transpose of ``weight``, to be multiplied by rows.

    Args:
        weight: float32[n_out, n_in], contiguous; kept.
        is_rough: multiply by a copy in Q8_0, a quarter of the bytes, where rows are whole blocks.

    Raises:
        SystemFault: it is something else.
    """

    def __init__(self, weight: F32, *, is_rough: bool = False) -> None:
        if weight.dtype != np.float32 or not weight.flags.c_contiguous:
            raise SystemFault("a projection takes contiguous weights of float32")
        self._n_out, n_in = weight.shape
        kind, self._kept = ggml.F32, weight.view(np.uint8)
        if is_rough and n_in % _BLOCK == 0:
            kind = ggml.Q8_0
            self._kept = quantize(np.clip(weight, -_LARGEST, _LARGEST), GGMLQuantizationType.Q8_0)
        address = self._kept.ctypes.data
        # By rows, and how many are the largest.
        self._graphs = Graphs(partial(_Graph, kind, address, (self._n_out, n_in)))

    def scores(self, rows: Matrix) -> F32:
        """float32[n, n_out] of float32[n, n_in]: a view that the next call overwrites."""
        graph = self._computed(rows, 0)
        scores: F32 = np.frombuffer(memoryview(graph.scores.raw), np.float32)
        return scores.reshape(len(rows), -1)

    def largest(self, rows: Matrix, n: int) -> list[list[int]]:
        """The ``n`` outputs that are largest in each row, the largest first."""
        graph = self._computed(rows, min(n, self._n_out))  # ggml aborts on more
        return [graph.largest_of(row) for row in range(len(rows))]

    def close(self) -> None:
        """Free what it computes with."""
        self._graphs.close()

    def _computed(self, rows: Matrix, n: int) -> _Graph:
        graph = self._graphs.of(len(rows), n)
        graph.rows.take(rows)
        graph.compute()
        return graph


class _Graph(RepeatedGraph):
    def __init__(
        self, kind: int, address: int, shape: tuple[int, int], n_rows: int, n: int
    ) -> None:
        super().__init__()
        n_out, n_in = shape
        self.rows = self.input(n_in, n_rows)
        self.scores, chosen = Buffer(4 * n_rows * n_out), Buffer(4 * n_rows * n)
        matrix = self.tensor(kind, n_in, n_out, address)
        scores = self.node(self.base.ggml_mul_mat, matrix, self.rows.tensor, into=self.scores)
        self.build(self.node(self.base.ggml_top_k, scores, n, into=chosen) if n else scores)
        # Not arrays: Python is quicker with so few values.
        self._scores = memoryview(self.scores.raw).cast("B").cast("f")
        self._chosen = memoryview(chosen.raw).cast("B").cast("i")
        self._n, self._n_out = n, n_out

    def largest_of(self, row: int) -> list[int]:
        """What ``top_k`` gives in no order, in order."""
        chosen = self._chosen[self._n * row : self._n * (row + 1)].tolist()
        scores = self._scores[self._n_out * row : self._n_out * (row + 1)]
        chosen.sort(key=scores.__getitem__, reverse=True)
        return chosen
