"""``ggml_tensor``, read and written through its address.

The struct is public (ggml.h) and 336 bytes in the pinned build; :func:`check_layout` holds
every field that we use against the library's own accessors, or against what it wrote there
itself, before anything relies on it.
A graph is rebuilt into the same memory, so an address never identifies a node: its name does.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sluice.errors import SystemFault
from sluice.llama import ggml, library

_TYPE = 0  # int32, a ggml_type
_NE = 16  # int64[4] elements a dimension, after type (int32) and buffer (pointer)
_NB = 48  # size_t[4] strides in bytes
OP = 80  # int32, a ggml_op
_PARAMETERS = 84  # int32[16] of the operation
_SRC = 152  # ggml_tensor *[10]
_VIEW_SRC = 232
_DATA = 248
NAME = 256  # char[64]
_Name = ctypes.c_char * 64  # GGML_MAX_NAME
_STRUCT_BYTES = 336
_N_OPS_CHECKED = 64  # the operations that the check meets are among the first
_OBJECT_BYTES = 32  # ggml_object, which stands before every tensor of a context
_N_SRC = 10  # GGML_MAX_SRC
_POINTER = struct.Struct("=Q")
_FOUR = struct.Struct("=4q")
_EXPERTS = struct.Struct("=6q")
_PLAIN_GLUS = (0, 1, 2, 4, 5)  # GGML_GLU_OP_* but SWIGLU_OAI, which takes two numbers more
_DTYPES = {
    ggml.F32: "<f4",
    ggml.F16: "<f2",
    ggml.I32: "<i4",
    ggml.I64: "<i8",
    ggml.F64: "<f8",
    ggml.BF16: "<u2",
}


def name(address: int) -> str:
    """The node's name."""
    return raw_name(address).decode("ascii", "replace")


def name_starts_with(address: int, prefix: bytes) -> bool:
    """Whether the node's name begins with ``prefix``."""
    return raw_name(address).startswith(prefix)


def name_test(prefix: bytes) -> Callable[[int], bool]:
    """A test of a node's name, for the hook, which asks it of every node of a graph.

    ``prefix`` is 8 bytes (asserted): a name's first are compared as a number.
    """
    assert len(prefix) == 8
    number, first = int.from_bytes(prefix, sys.byteorder), ctypes.c_uint64.from_address
    return lambda address: first(address + NAME).value == number


def raw_name(address: int) -> bytes:
    """The node's name as it stands there: the quickest way to know a node, for the hook."""
    return _Name.from_address(address + NAME).value


def shape(address: int) -> tuple[int, ...]:
    """``ne``: elements a dimension, innermost first."""
    return _FOUR.unpack(ctypes.string_at(address + _NE, 32))


def strides(address: int) -> tuple[int, ...]:
    """``nb``: bytes a step of each dimension."""
    return _FOUR.unpack(ctypes.string_at(address + _NB, 32))


def data(address: int) -> int:
    """The address of the tensor's first byte."""
    return _pointer(address, _DATA)


def rebind(address: int, data_address: int) -> None:
    """Point the tensor at other memory; weights keep it for as long as the model lives."""
    ctypes.c_uint64.from_address(address + _DATA).value = data_address


class ExpertWeights:
    """The weights of a layer's experts at ``address``, to be pointed at slices elsewhere."""

    def __init__(self, address: int) -> None:
        self.address = address
        self._struct = (ctypes.c_char * _STRUCT_BYTES).from_address(address)
        self._last = shape(address)[3]
        self._element, self._row = strides(address)[:2]

    def bind(self, data_address: int, n: int, stride_bytes: int) -> None:
        """To ``n`` slices of their size that lie ``stride_bytes`` apart."""
        # ne[2] to nb[3] stand side by side.
        _EXPERTS.pack_into(
            self._struct, _NE + 16,
            n, self._last, self._element, self._row, stride_bytes, n * stride_bytes,
        )  # fmt: skip
        _POINTER.pack_into(self._struct, _DATA, data_address)


def source(address: int, index: int) -> int:
    """Address of source ``index``; 0 where it is not set."""
    return _pointer(address, _SRC + 8 * index)


def set_source(address: int, index: int, other: int) -> None:
    """Let the node take another tensor of the same shape."""
    ctypes.c_uint64.from_address(address + _SRC + 8 * index).value = other


class Ids:
    """An int32 tensor of our own, in the place of the routed experts' ids.

    Args:
        rows, top_k: the most that it will hold.
    """

    def __init__(self, rows: int, top_k: int) -> None:
        self._values = (ctypes.c_int32 * (rows * top_k))()
        self._struct = ctypes.create_string_buffer(_STRUCT_BYTES)
        self.address = ctypes.addressof(self._struct)
        self._originals: dict[int, int] = {}  # by node

    def stand_in_for(self, node_address: int, index: int) -> None:
        """Become source ``index`` of a node, with that source's type, buffer and flags."""
        original = source(node_address, index)
        if original == self.address:  # a graph that is used again
            return
        self._originals[node_address] = original
        ne, nb = shape(self.address), strides(self.address)
        ctypes.memmove(self.address, original, _STRUCT_BYTES)
        _FOUR.pack_into(self._struct, _NE, *ne)
        _FOUR.pack_into(self._struct, _NB, *nb)
        _POINTER.pack_into(self._struct, _VIEW_SRC, 0)
        _POINTER.pack_into(self._struct, _DATA, ctypes.addressof(self._values))
        set_source(node_address, index, self.address)

    def give_way(self, node_address: int, index: int) -> None:
        """Leave a node's source ``index`` to what was there, if it is ours."""
        if source(node_address, index) == self.address:
            set_source(node_address, index, self._originals[node_address])

    def fill(self, ids: Sequence[int], top_k: int) -> None:
        """Hold ``ids``, ``top_k`` of each row after those of the row before.

        Raises:
            SystemFault: they are more than there is room for.
        """
        n, rows = len(ids), len(ids) // top_k
        if n > len(self._values):
            raise SystemFault(
                f"a pass routes {rows} rows to {top_k} experts each, {n} ids, and there is"
                f" room for {len(self._values)}; use --cache-memory pages"
            )
        self._values[:n] = list(ids)
        row, whole = 4 * top_k, 4 * n
        _FOUR.pack_into(self._struct, _NE, top_k, rows, 1, 1)
        _FOUR.pack_into(self._struct, _NB, 4, row, whole, whole)


def sources(address: int) -> list[int]:
    """Addresses of the sources that are set, in order."""
    return [a for a in _sources(address) if a]


def type_number(address: int) -> int:
    """The element type, a ``ggml_type``."""
    return _number(address, _TYPE)


def type_name(address: int) -> str:
    """ggml's name of the element type, ``f32``."""
    return str(ggml.base().ggml_type_name(_number(address, _TYPE)).decode())


def op(address: int) -> str:
    """ggml's name of the operation that computes the node, ``MUL_MAT`` or ``SILU``."""
    return str(ggml.base().ggml_op_desc(address).decode())


def op_number(address: int) -> int:
    """The operation that computes the node, a ``ggml_op``."""
    return _number(address, OP)


def glu(address: int) -> int | None:
    """The ``ggml_glu_op`` of a node that gates one source by another; ``None`` for other nodes.

    Of the operations that nothing but their sources decides.
    """
    if ggml.base().ggml_op_name(op_number(address)) != b"GLU" or len(sources(address)) != 2:
        return None
    kind, is_swapped = struct.unpack("=2i", ctypes.string_at(address + _PARAMETERS, 8))
    return kind if not is_swapped and kind in _PLAIN_GLUS else None


def values(address: int) -> npt.NDArray[np.generic] | None:
    """The tensor's elements, outermost dimension first: a writable view, valid in the hook.

    BF16 shows as its bits. ``None`` for block types, and where there is nothing.
    """
    dtype = _DTYPES.get(_number(address, _TYPE))
    ne, nb, begin = shape(address), strides(address), data(address)
    if dtype is None or not begin or min(ne) < 1:
        return None
    size = sum((n - 1) * step for n, step in zip(ne, nb, strict=True)) + np.dtype(dtype).itemsize
    memory = memoryview((ctypes.c_char * size).from_address(begin)).cast("B")
    return np.ndarray(ne[::-1], dtype=dtype, buffer=memory, strides=nb[::-1])


@dataclass(frozen=True, slots=True)
class Rows:
    """float32[``n``, ``width``] where a graph has them, one row behind the other.

    The memory is the graph's: valid until it goes on.
    """

    address: int
    n: int
    width: int

    def __len__(self) -> int:
        return self.n

    def copy(self) -> npt.NDArray[np.float32]:
        """The same as an array of our own."""
        raw = ctypes.string_at(self.address, 4 * self.n * self.width)
        return np.frombuffer(raw, np.float32).reshape(self.n, self.width)


Matrix = npt.NDArray[np.float32] | Rows
"""Rows of float32: an array of ours, or where a graph has them."""


def rows(address: int, *, most: int) -> Matrix | None:
    """float32[n, elements a row] of a matrix; ``None`` where n is 0 or over ``most``.

    Where they are, if they lie one behind the other; else a copy. Further dimensions are rows, too.

    Raises:
        SystemFault: the values are no float32.
    """
    ne, nb = shape(address), strides(address)
    n = ne[1] * ne[2] * ne[3]
    if not (0 < n <= most and ne[0] > 0):
        return None
    if _number(address, _TYPE) != ggml.F32:
        raise SystemFault(f"{name(address)}: its values are {type_name(address)}, not float32")
    if nb != (4, 4 * ne[0], 4 * ne[0] * ne[1], 4 * ne[0] * ne[1] * ne[2]):
        return np.array(values(address), np.float32).reshape(n, ne[0])
    return Rows(data(address), n, ne[0])


def first_row(address: int) -> bytes:
    """The first row of a node of float32, a copy."""
    return ctypes.string_at(data(address), 4 * shape(address)[0])


def _sources(address: int) -> list[int]:
    raw = ctypes.string_at(address + _SRC, 8 * _N_SRC)
    return [a for (a,) in _POINTER.iter_unpack(raw)]


def _pointer(address: int, offset: int) -> int:
    return int(_POINTER.unpack(ctypes.string_at(address + offset, 8))[0])


def _number(address: int, offset: int) -> int:
    return ctypes.c_int32.from_address(address + offset).value


def routing(address: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """The routed experts of ``ffn_moe_topk``, a strided view of int32[rows, top_k]; a copy.

    Returns:
        The ids gathered row by row, int32[rows, top_k], and what a reader that took the view
        for contiguous would see, same shape (the seam of a fault).
    """
    top_k, rows = shape(address)[:2]
    row_bytes = strides(address)[1]
    begin = data(address)
    if rows == 0:  # the last layer's, in a pass that no logits are asked of
        empty: npt.NDArray[np.int32] = np.empty((0, top_k), np.int32)
        return empty, empty
    size = (rows - 1) * row_bytes + 4 * top_k
    copy = ctypes.string_at(begin, size)
    view: npt.NDArray[np.int32] = np.ndarray(
        (rows, top_k), dtype=np.int32, buffer=copy, strides=(row_bytes, 4)
    )
    flat: npt.NDArray[np.int32] = np.ndarray((rows, top_k), dtype=np.int32, buffer=copy)
    return view, flat


def routed(address: int) -> list[list[int]]:
    """The routed experts of ``ffn_moe_topk``, ``top_k`` a row: a copy, empty without rows."""
    top_k, rows = shape(address)[:2]
    if rows == 1:  # numpy does so few slower, when its code has left the processor's caches
        return [list(struct.unpack(f"={top_k}i", ctypes.string_at(data(address), 4 * top_k)))]
    found: list[list[int]] = routing(address)[0].tolist()
    return found


def check_layout() -> None:
    """Hold our offsets against the library's accessors on tensors that it made.

    Raises:
        SystemFault: a field is elsewhere; nothing may read or write tensors then.
    """
    lib = ggml.base()
    (address, inputs, ids, product, view, gated), free = _sample_tensors(lib)
    try:
        element, total = lib.ggml_element_size(address), lib.ggml_nbytes(address)
        expected = (element, 5 * element, 35 * element, 105 * element)
        fits = (
            name(address) == lib.ggml_get_name(address).decode() == "sluice.layout"
            and shape(address) == (5, 7, 3, 1)
            and strides(address) == expected
            and total == expected[3]
            and data(address) == (lib.ggml_get_data(address) or 0)
            and _sources(product) == [address, inputs, ids] + [0] * (_N_SRC - 3)
            and _number(address, _TYPE) == ggml.I32
            and _pointer(view, _VIEW_SRC) == address
            and all(0 <= op_number(a) < _N_OPS_CHECKED for a in (product, view))
            and lib.ggml_op_name(op_number(product)) == b"MUL_MAT_ID"
            and lib.ggml_op_name(op_number(view)) == b"VIEW"
            and glu(gated) == _PLAIN_GLUS[2]
            and glu(product) is None
            and lib.ggml_tensor_overhead() == _STRUCT_BYTES + _OBJECT_BYTES
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


def _sample_tensors(lib: ctypes.CDLL) -> tuple[tuple[int, ...], Callable[[], object]]:
    """A named tensor, what routes rows to it, that product, a view, a gate; and what frees them."""
    context = lib.ggml_init(ggml.InitParams(1 << 16, None, True))
    first, rows, ids = (
        int(lib.ggml_new_tensor_3d(context, ggml.I32, *shape))
        for shape in ((5, 7, 3), (5, 2, 4), (2, 4, 1))
    )
    lib.ggml_set_name(first, b"sluice.layout")
    routed = int(lib.ggml_mul_mat_id(context, first, rows, ids))
    view = int(lib.ggml_view_1d(context, first, 5, 0))
    gated = int(lib.ggml_glu_split(context, routed, routed, _PLAIN_GLUS[2]))
    return (first, rows, ids, routed, view, gated), lambda: lib.ggml_free(context)
