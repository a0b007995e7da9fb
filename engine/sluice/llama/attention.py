"""Flash attention on the real kernels, outside any model: how a width is computed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sluice.llama import ggml
from sluice.llama.graph import F32, opened

F16 = npt.NDArray[np.float16]


def flash_attention(queries: F32, keys: F16, values: F16, *, threads: int = 1) -> F32:
    """Attention of one head as ``ggml_flash_attn_ext``, every position visible.

    Args:
        queries: float32[n, width of a key].
        keys, values: float16[cached positions, width].
        threads: compute threads.

    Returns:
        float32[n, width of a value].
    """
    n, width = queries.shape
    n_values = n * values.shape[1]
    with opened(queries.nbytes + keys.nbytes + values.nbytes + 4 * n_values) as graph:
        q = graph.tensor(ggml.F32, width, n)
        k = graph.tensor(ggml.F16, width, len(keys))
        v = graph.tensor(ggml.F16, values.shape[1], len(values))
        for tensor, array in ((q, queries), (k, keys), (v, values)):
            graph.fill(tensor, np.ascontiguousarray(array).tobytes())
        scale = 1.0 / float(np.sqrt(width))
        y = graph.base.ggml_flash_attn_ext(graph.context, q, k, v, None, scale, 0.0, 0.0)
        return graph.compute(y, n_values, threads).reshape(n, values.shape[1])
