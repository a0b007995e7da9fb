"""``ggml_tensor``, read and written through its address.

The struct is public (ggml.h) and 336 bytes in the pinned build; :func:`check_layout` holds
every field that we use against the library's own accessors before anything relies on it.
A graph is rebuilt into the same memory, so an address never identifies a node: its name does.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sluice.errors import SystemFault
from sluice.llama import library

_NE = 16  # int64[4] elements a dimension, after type (int32) and buffer (pointer)
_NB = 48  # size_t[4] strides in bytes
_SRC = 152  # ggml_tensor *[10]
_DATA = 248
_NAME = 256  # char[64]
_N_SRC = 3  # sources that can be a weight of an expert matmul or its bias
_POINTER = struct.Struct("=Q")
_FOUR = struct.Struct("=4q")
_I32 = 26  # GGML_TYPE_I32


def name(address: int) -> str:
    """The node's name."""
    return ctypes.string_at(address + _NAME).decode("ascii", "replace")


def name_starts_with(address: int, prefix: bytes) -> bool:
    """Whether the node's name begins with ``prefix``; the hook's hot path."""
    return ctypes.string_at(address + _NAME, len(prefix)) == prefix


def shape(address: int) -> tuple[int, ...]:
    """``ne``: elements a dimension, innermost first."""
    return _FOUR.unpack(ctypes.string_at(address + _NE, 32))


def strides(address: int) -> tuple[int, ...]:
    """``nb``: bytes a step of each dimension."""
    return _FOUR.unpack(ctypes.string_at(address + _NB, 32))


def data(address: int) -> int:
    """The address of the tensor's first byte."""
    return int(_POINTER.unpack(ctypes.string_at(address + _DATA, 8))[0])


def rebind(address: int, data_address: int) -> None:
    """Point the tensor at other memory; weights keep it for as long as the model lives."""
    ctypes.c_uint64.from_address(address + _DATA).value = data_address


def sources(address: int) -> list[int]:
    """Addresses of the first sources that are set."""
    raw = ctypes.string_at(address + _SRC, 8 * _N_SRC)
    return [a for (a,) in _POINTER.iter_unpack(raw) if a]


def routing(address: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """The routed experts of ``ffn_moe_topk``: a strided int32 view of [rows, top_k].

    Returns:
        The ids gathered row by row, int32[rows, top_k], and what a reader that took the view
        for contiguous would see, same shape (the seam of a fault).
    """
    top_k, rows = shape(address)[:2]
    row_bytes = strides(address)[1]
    begin = data(address)
    size = (rows - 1) * row_bytes + 4 * top_k
    memory = memoryview((ctypes.c_char * size).from_address(begin)).cast("B")
    view: npt.NDArray[np.int32] = np.ndarray(
        (rows, top_k), dtype=np.int32, buffer=memory, strides=(row_bytes, 4)
    )
    flat: npt.NDArray[np.int32] = np.ndarray((rows, top_k), dtype=np.int32, buffer=memory)
    return view, flat


def check_layout() -> None:
    """Hold our offsets against the library's accessors on a tensor that it made.

    Raises:
        SystemFault: a field is elsewhere; nothing may read or write tensors then.
    """
    lib = library.ggml_base()
    address, free = _sample_tensor(lib)
    try:
        lib.ggml_get_name.restype = ctypes.c_char_p
        lib.ggml_get_name.argtypes = [ctypes.c_void_p]
        lib.ggml_nbytes.restype = ctypes.c_size_t
        lib.ggml_nbytes.argtypes = [ctypes.c_void_p]
        lib.ggml_element_size.restype = ctypes.c_size_t
        lib.ggml_element_size.argtypes = [ctypes.c_void_p]
        lib.ggml_get_data.restype = ctypes.c_void_p
        lib.ggml_get_data.argtypes = [ctypes.c_void_p]
        element, total = lib.ggml_element_size(address), lib.ggml_nbytes(address)
        expected = (element, 5 * element, 35 * element, 105 * element)
        fits = (
            name(address) == lib.ggml_get_name(address).decode() == "sluice.layout"
            and shape(address) == (5, 7, 3, 1)
            and strides(address) == expected
            and total == expected[3]
            and data(address) == (lib.ggml_get_data(address) or 0)
        )
        rebind(address, 0x5A5A5A5A5A50)
        fits = fits and lib.ggml_get_data(address) == 0x5A5A5A5A5A50
    finally:
        free()
    if not fits:
        raise SystemFault(
            f"llama-cpp-python {library.version()}: ggml_tensor is laid out differently from"
            " what Sluice reads; install the pinned llama-cpp-python"
        )


class _InitParams(ctypes.Structure):
    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


def _sample_tensor(lib: ctypes.CDLL) -> tuple[int, Callable[[], object]]:
    lib.ggml_init.restype = ctypes.c_void_p
    lib.ggml_init.argtypes = [_InitParams]
    lib.ggml_new_tensor_3d.restype = ctypes.c_void_p
    lib.ggml_new_tensor_3d.argtypes = [ctypes.c_void_p, ctypes.c_int, *[ctypes.c_int64] * 3]
    lib.ggml_set_name.restype = ctypes.c_void_p
    lib.ggml_set_name.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    lib.ggml_free.argtypes = [ctypes.c_void_p]
    context = lib.ggml_init(_InitParams(1 << 16, None, True))
    address = lib.ggml_new_tensor_3d(context, _I32, 5, 7, 3)
    lib.ggml_set_name(address, b"sluice.layout")
    return int(address), lambda: lib.ggml_free(context)
