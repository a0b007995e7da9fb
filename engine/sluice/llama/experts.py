"""A few experts of one row, computed in a graph of ours by the operations that a model's has."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from sluice.llama import ggml, tensor
from sluice.llama.repeated import Buffer, RepeatedGraph


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """What experts are made of: ``down(glu(gate(x), up(x)))``.

    ``types`` are those of gate, up and down; ``glu`` is a ``ggml_glu_op``.
    """

    types: tuple[int, int, int]
    n_embd: int
    n_ff: int
    glu: int


Slices = tuple[int, int]
"""Where the first expert's slice of a weight lies, and the bytes from one to the next."""


class ExpertRows(RepeatedGraph):
    """The rows that ``n`` experts make of one input.

    Args:
        shape: of an expert.
        n: experts at once.
        n_slots: the most that they are taken from.
        threads: that compute.
    """

    def __init__(self, shape: ExpertShape, n: int, *, n_slots: int, threads: int) -> None:
        super().__init__(threads=threads)
        n_embd, n_ff = shape.n_embd, shape.n_ff
        self._n = n
        self._input, self._ids = Buffer(4 * n_embd), Buffer(4 * n)
        self._out, inner = Buffer(4 * n_embd * n), 4 * n_ff * n
        row = self.tensor(ggml.F32, n_embd, 1, self._input.address)
        ids = self.tensor(ggml.I32, n, 1, self._ids.address)
        sizes = ((n_embd, n_ff), (n_embd, n_ff), (n_ff, n_embd))
        gate, up, down = (
            int(self.base.ggml_new_tensor_3d(self.context, kind, *size, n_slots))
            for kind, size in zip(shape.types, sizes, strict=True)
        )
        self._weights = [tensor.ExpertWeights(weight) for weight in (gate, up, down)]
        multiply = self.base.ggml_mul_mat_id
        gated = self.node(
            self.base.ggml_glu_split,
            self.node(multiply, gate, row, ids, into=Buffer(inner)),
            self.node(multiply, up, row, ids, into=Buffer(inner)),
            shape.glu,
            into=Buffer(inner),
        )
        self.build(self.node(multiply, down, gated, ids, into=self._out))

    def rows(self, row: bytes, weights: Sequence[Slices], ids: Sequence[int]) -> list[int]:
        """Where the rows of ``n`` experts lie, float32[n_embd] each; until the next call.

        Args:
            row: float32[n_embd].
            weights: of gate, up and down.
            ids: of the experts, counted from the first slice on.
        """
        n_slots = max(ids) + 1
        for bound, (first, stride) in zip(self._weights, weights, strict=True):
            bound.bind(first, n_slots, stride)
        self._input.fill(row)
        self._ids.fill(struct.pack(f"={self._n}i", *ids))
        self.compute()
        size = len(self._out.raw) // self._n
        return [self._out.address + size * i for i in range(self._n)]


def spread(address: int, n_rows: int, missing: Sequence[int], rows: Sequence[int]) -> None:
    """Bring rows of a node into order, and fill the gaps.

    Args:
        address: of a node of float32[n_rows, n] whose first rows are all but those ``missing``.
        n_rows: of the node.
        missing: which rows are not there, ascending.
        rows: where those lie.
    """
    begin, size = tensor.data(address), tensor.strides(address)[1]
    there = [row for row in range(n_rows) if row not in missing]
    for i in range(len(there) - 1, missing[0] - 1, -1):  # from the last: none is written over
        ctypes.memmove(begin + size * there[i], begin + size * i, size)
    for row, source in zip(missing, rows, strict=True):
        ctypes.memmove(begin + size * row, source, size)
