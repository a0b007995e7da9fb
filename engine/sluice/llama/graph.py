"""A graph of one operation, computed on the real kernels outside any model."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from sluice.errors import SystemFault
from sluice.llama import ggml

F32 = npt.NDArray[np.float32]
_SLACK_BYTES = 64 << 20  # headers, the graph, and the work buffer of the computation


class Graph:
    """Tensors of one computation; make it with :func:`opened`."""

    def __init__(self, context: int, base: ctypes.CDLL, cpu: ctypes.CDLL) -> None:
        self.context = context
        self.base = base
        self._cpu = cpu

    def tensor(self, type_number: int, *shape: int) -> int:
        """A new tensor of one to three dimensions, innermost first; its address."""
        padded = (*shape, 1, 1)[:3]
        return int(self.base.ggml_new_tensor_3d(self.context, type_number, *padded))

    def fill(self, tensor: int, raw: bytes) -> None:
        """Copy ``raw`` over the tensor's first bytes."""
        ctypes.memmove(self.base.ggml_get_data(tensor), raw, len(raw))

    def compute(self, node: int, n_values: int, threads: int = 1) -> F32:
        """Compute ``node`` and return its first ``n_values`` float32 values, a copy.

        Raises:
            SystemFault: ggml reports a failure.
        """
        graph = self.base.ggml_new_graph(self.context)
        self.base.ggml_build_forward_expand(graph, node)
        status = self._cpu.ggml_graph_compute_with_ctx(self.context, graph, threads)
        if status != 0:
            raise SystemFault(f"the kernel self-check's graph returned {status}")
        raw = ctypes.string_at(self.base.ggml_get_data(node), 4 * n_values)
        return np.frombuffer(raw, np.float32)


@contextlib.contextmanager
def opened(room_bytes: int) -> Iterator[Graph]:
    """A graph with room for tensors of ``room_bytes`` together.

    Raises:
        SystemFault: no memory, or a build whose libraries are under other names.
    """
    base, cpu = ggml.base(), ggml.cpu()
    context = base.ggml_init(ggml.InitParams(2 * room_bytes + _SLACK_BYTES, None, False))
    if not context:
        raise SystemFault("ggml_init gave no memory for the kernel self-check")
    try:
        yield Graph(context, base, cpu)
    finally:
        base.ggml_free(context)
