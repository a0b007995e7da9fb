"""One matrix product on the real kernels, outside any model: how a width is computed."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from sluice.errors import SystemFault
from sluice.llama import library

F32 = npt.NDArray[np.float32]
_GGML_F32, _GGML_I32 = 0, 26
_POOL_BYTES = 1 << 20  # graph, tensors' headers and the work buffer of a few MiB at most


def product(
    weights: bytes, type_number: int, shape: tuple[int, int], rows: F32, *, routed: bool
) -> F32:
    """``rows`` times the transpose of ``weights``, as ``ggml_mul_mat`` or ``ggml_mul_mat_id``.

    Args:
        weights: a matrix in its file format, row by row.
        type_number: its ``ggml_type``.
        shape: (elements a row, rows) of the matrix.
        rows: float32[n, elements a row].
        routed: through ``mul_mat_id`` with a single expert that every row is routed to.

    Returns:
        float32[n, rows of the matrix].
    """
    base, cpu = _libraries()
    n = len(rows)
    room = len(weights) + 4 * rows.size + 4 * n * shape[1] + 8 * n
    context = base.ggml_init(_InitParams(2 * room + (64 << 20), None, False))
    if not context:
        raise SystemFault("ggml_init gave no memory for the kernel self-check")
    try:
        if routed:
            w = base.ggml_new_tensor_3d(context, type_number, *shape, 1)
            x = base.ggml_new_tensor_3d(context, _GGML_F32, shape[0], 1, n)
            ids = base.ggml_new_tensor_2d(context, _GGML_I32, 1, n)
            ctypes.memset(base.ggml_get_data(ids), 0, 4 * n)
            y = base.ggml_mul_mat_id(context, w, x, ids)
        else:
            w = base.ggml_new_tensor_2d(context, type_number, *shape)
            x = base.ggml_new_tensor_2d(context, _GGML_F32, shape[0], n)
            y = base.ggml_mul_mat(context, w, x)
        ctypes.memmove(base.ggml_get_data(w), weights, len(weights))
        ctypes.memmove(base.ggml_get_data(x), np.ascontiguousarray(rows).ctypes.data, rows.nbytes)
        graph = base.ggml_new_graph(context)
        base.ggml_build_forward_expand(graph, y)
        status = cpu.ggml_graph_compute_with_ctx(context, graph, 1)
        if status != 0:
            raise SystemFault(f"the kernel self-check's graph returned {status}")
        out = ctypes.string_at(base.ggml_get_data(y), 4 * n * shape[1])
        return np.frombuffer(out, np.float32).reshape(n, shape[1])
    finally:
        base.ggml_free(context)


class _InitParams(ctypes.Structure):
    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


@functools.cache
def _libraries() -> tuple[ctypes.CDLL, ctypes.CDLL]:
    base = library.ggml_base()
    path = library.loaded("libggml-cpu")
    if path is None:
        raise SystemFault("libggml-cpu is not mapped under a name that Sluice knows")
    cpu = ctypes.CDLL(str(path))
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    signatures: tuple[tuple[Any, Any, list[Any]], ...] = (
        (base.ggml_init, pointer, [_InitParams]),
        (base.ggml_free, None, [pointer]),
        (base.ggml_get_data, pointer, [pointer]),
        (base.ggml_new_tensor_2d, pointer, [pointer, ctypes.c_int, size, size]),
        (base.ggml_new_tensor_3d, pointer, [pointer, ctypes.c_int, size, size, size]),
        (base.ggml_mul_mat, pointer, [pointer, pointer, pointer]),
        (base.ggml_mul_mat_id, pointer, [pointer, pointer, pointer, pointer]),
        (base.ggml_new_graph, pointer, [pointer]),
        (base.ggml_build_forward_expand, None, [pointer, pointer]),
        (cpu.ggml_graph_compute_with_ctx, ctypes.c_int, [pointer, pointer, ctypes.c_int]),
    )
    for function, result, arguments in signatures:
        function.restype = result
        function.argtypes = arguments
    return base, cpu
