"""The part of ggml's C interface that Sluice calls and llama_cpp does not bind."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from sluice.errors import SystemFault
from sluice.llama import library

F32, F16, Q8_0, I32, I64, F64, BF16 = 0, 1, 8, 26, 27, 28, 30  # GGML_TYPE_*


class InitParams(ctypes.Structure):
    """``ggml_init_params``."""

    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


class Plan(ctypes.Structure):
    """``ggml_cplan``."""

    _fields_ = (
        ("work_size", ctypes.c_size_t),
        ("work_data", ctypes.c_void_p),
        ("n_threads", ctypes.c_int),
        ("threadpool", ctypes.c_void_p),
        ("abort_callback", ctypes.c_void_p),
        ("abort_callback_data", ctypes.c_void_p),
        ("use_ref", ctypes.c_bool),
    )


@functools.cache
def base() -> ctypes.CDLL:
    """libggml-base with its signatures.

    Raises:
        SystemFault: this build has no such library.
    """
    lib = library.ggml_base()
    pointer, integer, size, real = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float
    _declare(
        (lib.ggml_init, pointer, [InitParams]),
        (lib.ggml_free, None, [pointer]),
        (lib.ggml_new_tensor_3d, pointer, [pointer, integer, size, size, size]),
        (lib.ggml_view_1d, pointer, [pointer, pointer, size, ctypes.c_size_t]),
        (lib.ggml_tensor_overhead, ctypes.c_size_t, []),
        (lib.ggml_set_name, pointer, [pointer, ctypes.c_char_p]),
        (lib.ggml_get_name, ctypes.c_char_p, [pointer]),
        (lib.ggml_get_data, pointer, [pointer]),
        (lib.ggml_nbytes, ctypes.c_size_t, [pointer]),
        (lib.ggml_element_size, ctypes.c_size_t, [pointer]),
        (lib.ggml_op_desc, ctypes.c_char_p, [pointer]),
        (lib.ggml_op_name, ctypes.c_char_p, [ctypes.c_int]),
        (lib.ggml_type_name, ctypes.c_char_p, [integer]),
        (lib.ggml_mul_mat, pointer, [pointer, pointer, pointer]),
        (lib.ggml_mul_mat_id, pointer, [pointer, pointer, pointer, pointer]),
        (lib.ggml_flash_attn_ext, pointer, [*[pointer] * 5, real, real, real]),
        (lib.ggml_top_k, pointer, [pointer, pointer, integer]),
        (lib.ggml_get_rows, pointer, [pointer, pointer, pointer]),
        (lib.ggml_rms_norm, pointer, [pointer, pointer, real]),
        (lib.ggml_mul, pointer, [pointer, pointer, pointer]),
        (lib.ggml_glu_split, pointer, [pointer, pointer, pointer, integer]),
        (lib.ggml_new_graph, pointer, [pointer]),
        (lib.ggml_new_graph_custom, pointer, [pointer, ctypes.c_size_t, ctypes.c_bool]),
        (lib.ggml_graph_overhead_custom, ctypes.c_size_t, [ctypes.c_size_t, ctypes.c_bool]),
        (lib.ggml_build_forward_expand, None, [pointer, pointer]),
    )
    return lib


@functools.cache
def cpu() -> ctypes.CDLL:
    """libggml-cpu as this process has loaded it, with its signatures.

    Raises:
        SystemFault: it is not loaded under a name that Sluice knows.
    """
    path = library.loaded("libggml-cpu")
    if path is None:
        raise SystemFault("libggml-cpu is not mapped under a name that Sluice knows")
    lib = ctypes.CDLL(str(path))
    pointer = ctypes.c_void_p
    _declare(
        (lib.ggml_graph_compute_with_ctx, ctypes.c_int, [pointer, pointer, ctypes.c_int]),
        (lib.ggml_graph_plan, Plan, [pointer, ctypes.c_int, pointer]),
        (lib.ggml_graph_compute, ctypes.c_int, [pointer, pointer]),
    )
    return lib


def _declare(*signatures: tuple[Any, Any, list[Any]]) -> None:
    for function, result, arguments in signatures:
        function.restype = result
        function.argtypes = arguments
