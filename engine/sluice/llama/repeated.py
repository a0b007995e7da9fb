"""A small graph of ours that is computed again and again, on the calling thread.

For work so small that numpy's own work around it would cost more. Its tensors lie in memory that
is given to them: buffers of ours, or weights where the model has them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Generic, TypeVar

from sluice.errors import SystemFault
from sluice.llama import ggml, tensor

_N_NODES = 8
_TENSORS_BYTES = 8192


class Buffer:
    """Zeroed memory for a tensor; ``raw`` is written and read, ``address`` is where it lies."""

    def __init__(self, size_bytes: int) -> None:
        self.raw = (ctypes.c_char * size_bytes)()
        self.address = ctypes.addressof(self.raw)

    def fill(self, raw: bytes) -> None:
        """Copy ``raw`` over the first bytes.

        Raises:
            ValueError: it is longer.
        """
        if len(raw) > len(self.raw):
            raise ValueError(f"{len(raw)} bytes for a buffer of {len(self.raw)}")
        ctypes.memmove(self.address, raw, len(raw))


class Input:
    """A graph's tensor of float32[rows, n] that another matrix is given to before every pass."""

    def __init__(self, made: int, rows: int, n: int) -> None:
        self.tensor = made
        self._shape = rows, n
        self._own = Buffer(4 * rows * n)

    def take(self, matrix: tensor.Matrix) -> None:
        """Compute on ``matrix``, which stays where it is until then if a graph has it.

        Raises:
            ValueError: it has another shape.
        """
        if isinstance(matrix, tensor.Rows):
            if (matrix.n, matrix.width) != self._shape:
                raise ValueError(f"{matrix.n} rows of {matrix.width} for {self._shape}")
            tensor.rebind(self.tensor, matrix.address)
        else:
            self._own.fill(matrix.tobytes())
            tensor.rebind(self.tensor, self._own.address)


class RepeatedGraph:
    """Make tensors, :meth:`build` once, then :meth:`compute`.

    Args:
        threads: that compute it, the calling one counted.

    Raises:
        SystemFault: no memory, or a build whose libraries are under other names.
    """

    def __init__(self, *, threads: int = 1) -> None:
        self._threads = threads
        self.base, self._cpu = ggml.base(), ggml.cpu()
        room = self.base.ggml_graph_overhead_custom(_N_NODES, False) + _TENSORS_BYTES
        self.context = self.base.ggml_init(ggml.InitParams(room, None, True))
        if not self.context:
            raise SystemFault("ggml_init gave no memory for a graph of a few nodes")
        self._kept: list[Buffer] = []

    def tensor(self, type_number: int, n: int, rows: int, address: int) -> int:
        """A new matrix of ``rows`` rows of ``n`` elements that lies at ``address``."""
        made = int(self.base.ggml_new_tensor_3d(self.context, type_number, n, rows, 1))
        tensor.rebind(made, address)
        return made

    def input(self, n: int, rows: int) -> Input:
        """A new matrix of ``rows`` rows of ``n`` elements, float32, to be given."""
        return Input(self.tensor(ggml.F32, n, rows, 0), rows, n)

    def node(self, operation: Callable[..., int], *arguments: int | float, into: Buffer) -> int:
        """The tensor that ``operation`` makes of ``arguments``, to be computed ``into``."""
        made = int(operation(self.context, *arguments))
        if self.base.ggml_nbytes(made) > len(into.raw):
            raise SystemFault("a graph of ours was given too little memory")
        tensor.rebind(made, into.address)
        self._kept.append(into)
        return made

    def build(self, last: int) -> None:
        """Everything that ``last`` needs is what :meth:`compute` computes."""
        self._graph = self.base.ggml_new_graph_custom(self.context, _N_NODES, False)
        self.base.ggml_build_forward_expand(self._graph, last)
        self._plan = self._cpu.ggml_graph_plan(self._graph, self._threads, None)
        self._work = Buffer(max(self._plan.work_size, 1))
        self._plan.work_data = self._work.address
        self._call = ctypes.byref(self._plan)

    def compute(self) -> None:
        """Raises SystemFault where ggml reports a failure."""
        status = self._cpu.ggml_graph_compute(self._graph, self._call)
        if status != 0:
            raise SystemFault(f"a graph of ours returned {status}")

    def close(self) -> None:
        """Free the graph."""
        self.base.ggml_free(self.context)


G = TypeVar("G", bound=RepeatedGraph)


class Graphs(Generic[G]):
    """A graph for each shape of the work, made when it is first needed by ``make(*shape)``."""

    def __init__(self, make: Callable[..., G]) -> None:
        self._make = make
        self._made: dict[tuple[int, ...], G] = {}

    def __len__(self) -> int:
        return len(self._made)

    def of(self, *shape: int) -> G:
        """The one for ``shape``."""
        graph = self._made.get(shape)
        if graph is None:
            graph = self._made[shape] = self._make(*shape)
        return graph

    def close(self) -> None:
        """Free them all; they are made again when they are needed."""
        for graph in self._made.values():
            graph.close()
        self._made.clear()
