"""One matrix product on the real kernels, outside any model: how a width is computed."""

from __future__ import annotations

import numpy as np

from sluice.llama import ggml
from sluice.llama.graph import F32, opened


def product(
    weights: bytes,
    type_number: int,
    shape: tuple[int, int],
    rows: F32,
    *,
    routed: bool,
    threads: int = 1,
) -> F32:
    """``rows`` times the transpose of ``weights``, as ``ggml_mul_mat`` or ``ggml_mul_mat_id``.

    Args:
        weights: a matrix in its file format, row by row.
        type_number: its ``ggml_type``.
        shape: (elements a row, rows) of the matrix.
        rows: float32[n, elements a row].
        routed: through ``mul_mat_id`` with a single expert that every row is routed to.
        threads: compute threads.

    Returns:
        float32[n, rows of the matrix].
    """
    n = len(rows)
    with opened(len(weights) + 4 * rows.size + 4 * n * shape[1] + 8 * n) as graph:
        w = graph.tensor(type_number, *shape)
        if routed:
            x = graph.tensor(ggml.F32, shape[0], 1, n)
            ids = graph.tensor(ggml.I32, 1, n)
            graph.fill(ids, bytes(4 * n))
            y = graph.base.ggml_mul_mat_id(graph.context, w, x, ids)
        else:
            x = graph.tensor(ggml.F32, shape[0], n)
            y = graph.base.ggml_mul_mat(graph.context, w, x)
        graph.fill(w, weights)
        graph.fill(x, np.ascontiguousarray(rows).tobytes())
        return graph.compute(y, n * shape[1], threads).reshape(n, shape[1])
