"""Experts of one row computed by themselves give the bytes that all of them together give."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from sluice.llama import ggml, library, tensor
from sluice.llama.experts import ExpertRows, ExpertShape, Slices, spread
from sluice.llama.graph import opened

N_EMBD, N_FF, N_EXPERT = 64, 96, 5
ROUTED = (3, 0, 4, 1)
SWIGLU, GEGLU = 2, 1
Raw = npt.NDArray[np.uint8]
TYPES = {"F32": ggml.F32, "Q8_0": ggml.Q8_0}


@pytest.fixture(autouse=True)
def started() -> None:
    library.start()


class Experts:
    """Gate, up and down of every expert, in memory, and a row that they take."""

    def __init__(self, kind: str) -> None:
        noise = np.random.default_rng(5)
        self.row = noise.standard_normal(N_EMBD, np.float32).tobytes()
        self.kind = TYPES[kind]
        self.raw: list[Raw] = []
        for rows, columns in ((N_FF, N_EMBD), (N_FF, N_EMBD), (N_EMBD, N_FF)):
            values = noise.standard_normal((N_EXPERT, rows, columns), np.float32)
            raw = quantize(values, GGMLQuantizationType[kind]).view(np.uint8)
            self.raw.append(np.ascontiguousarray(raw.reshape(N_EXPERT, -1)))

    def slices(self) -> list[Slices]:
        return [(int(raw.ctypes.data), raw.shape[1]) for raw in self.raw]

    def shape(self, glu: int) -> ExpertShape:
        return ExpertShape((self.kind,) * 3, N_EMBD, N_FF, glu)

    def together(self, routed: Sequence[int], glu: int) -> list[bytes]:
        """The row of each of ``routed``, by one graph over all experts."""
        n = len(routed)
        with opened(1 << 20) as graph:
            base, context = graph.base, graph.context
            sizes = ((N_EMBD, N_FF), (N_EMBD, N_FF), (N_FF, N_EMBD))
            weights = [graph.tensor(self.kind, *size, N_EXPERT) for size in sizes]
            for weight, raw in zip(weights, self.raw, strict=True):
                graph.fill(weight, raw.tobytes())
            row, ids = graph.tensor(ggml.F32, N_EMBD, 1, 1), graph.tensor(ggml.I32, n, 1)
            graph.fill(row, self.row)
            graph.fill(ids, np.array(routed, np.int32).tobytes())
            gate, up = (base.ggml_mul_mat_id(context, w, row, ids) for w in weights[:2])
            gated = base.ggml_glu_split(context, gate, up, glu)
            down = int(base.ggml_mul_mat_id(context, weights[2], gated, ids))
            found = graph.compute(down, n * N_EMBD).tobytes()
        return [found[4 * N_EMBD * i : 4 * N_EMBD * (i + 1)] for i in range(n)]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("glu", [SWIGLU, GEGLU])
@pytest.mark.parametrize("kind", list(TYPES))
def test_some_experts_give_the_rows_that_they_give_among_all(
    kind: str, glu: int, threads: int
) -> None:
    experts = Experts(kind)
    right = dict(zip(ROUTED, experts.together(ROUTED, glu), strict=True))
    assert len(set(right.values())) == len(ROUTED)
    for n in (1, 2, 3):
        graph = ExpertRows(experts.shape(glu), n, n_slots=N_EXPERT, threads=threads)
        for ids in itertools.permutations(ROUTED, n):
            rows = graph.rows(experts.row, experts.slices(), ids)
            assert [_row_at(address) for address in rows] == [right[i] for i in ids]
        graph.close()


def test_slices_may_begin_anywhere_and_lie_apart() -> None:
    experts = Experts("Q8_0")
    right = experts.together([2, 4], SWIGLU)
    apart = [np.zeros((N_EXPERT, raw.shape[1] + 512), np.uint8) for raw in experts.raw]
    for raw, wide in zip(experts.raw, apart, strict=True):
        wide[:, : raw.shape[1]] = raw
    slices = [(int(wide[2].ctypes.data), wide.shape[1]) for wide in apart]
    graph = ExpertRows(experts.shape(SWIGLU), 2, n_slots=N_EXPERT, threads=1)
    assert [_row_at(a) for a in graph.rows(experts.row, slices, [0, 2])] == right
    graph.close()


@pytest.mark.parametrize("missing", [[0], [4], [1, 3], [0, 1], [3, 4], [0, 2, 4], [2]])
def test_rows_are_brought_into_order_around_what_was_missing(missing: list[int]) -> None:
    n_rows, n = 5, 8
    right = np.arange(n_rows * n, dtype=np.float32).reshape(n_rows, n)
    held = np.full((n_rows, n), np.nan, np.float32)
    there = [i for i in range(n_rows) if i not in missing]
    held[: len(there)] = right[there]
    rows = [int(right[i].ctypes.data) for i in missing]
    with opened(1 << 12) as graph:
        node = graph.tensor(ggml.F32, n, n_rows)
        graph.fill(node, held.tobytes())
        spread(node, n_rows, missing, rows)
        assert np.array_equal(tensor.values(node).reshape(n_rows, n), right)


def _row_at(address: int) -> bytes:
    return tensor.Rows(address, 1, N_EMBD).copy().tobytes()
