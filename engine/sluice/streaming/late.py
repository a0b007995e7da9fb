"""Experts that are computed after the others of their layer, when they have been read.

Where a few of the experts that a row routes to are still to be read, their layer's matmuls need
not wait: they compute the others' rows, one behind the other, and a graph of ours computes what is
missing, by the same operations, before anything takes the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from sluice.llama import tensor as node
from sluice.llama.aside import keeps_threads
from sluice.llama.experts import ExpertRows, ExpertShape, Slices, spread
from sluice.seams import Seams
from sluice.streaming.capture import Capture, Chain
from sluice.streaming.layout import ExpertLayout, ExpertTensor
from sluice.streaming.slots import SlotMemory
from sluice.streaming.standin import StandIn


class LateExperts:
    """Computes them, a row's at a time.

    Args:
        standin: whose matmuls compute the others.
        layout: of the model.
        found: addresses of each weight that a graph takes.
        chains: what a layer's experts are made of, where they can be computed later.
        threads: that compute.
        seams: see :mod:`sluice.seams`.

    :attr:`last` is the node, by layer, whose rows are completed.
    """

    def __init__(
        self,
        standin: StandIn,
        layout: ExpertLayout,
        found: Mapping[str, Set[int]],
        chains: Mapping[int, Chain],
        *,
        threads: int,
        seams: Seams,
    ) -> None:
        self._standin = standin
        self._memory: SlotMemory = standin.memory
        self._threads = threads if keeps_threads() else 1
        self._seams = seams
        self._weights: dict[int, list[Slices]] = {}
        self.last = {layer: chain.last for layer, chain in chains.items()}
        self._shapes: dict[int, tuple[ExpertShape, int]] = {}  # and the slots there are
        for layer, chain in chains.items():
            tensors = {tensor.part: tensor for tensor in layout.layers[layer]}
            mine = [tensors[part] for part in chain.parts]
            self._weights[layer] = [
                (self._memory.address(t, 0), self._memory.stride(t)) for t in mine
            ]
            self._shapes[layer] = _shape(mine, found, chain.glu), self._memory.n_slots_max(layer)
        self._graphs: dict[tuple[ExpertShape, int, int], ExpertRows] = {}
        self._layer = -1
        self._routed: list[int] = []
        self._late: list[int] = []  # places in the row

    def takes(self, layer: int, n: int, n_experts: int) -> bool:
        """Whether ``n`` of a row's ``n_experts`` in ``layer`` can be late, and are worth it.

        Most of a row's experts are better waited for part by part: there is more to compute then.
        """
        return layer in self._shapes and 0 < 2 * n <= n_experts

    def place(self, layer: int, routed: Sequence[int], late: Set[int]) -> None:
        """Let the layer's matmuls compute all that it ``routed`` to but those that are ``late``."""
        self._layer, self._routed = layer, list(routed)
        self._late = [i for i, expert in enumerate(routed) if expert in late]
        others = [expert for expert in routed if expert not in late]
        self._standin.place(layer, others, len(others), keeps_input=True)

    def completes(self, name: str) -> bool:
        """Whether the rows of the node ``name`` are to be completed."""
        return bool(self._late) and name == self.last[self._layer]

    def complete(self, address: int) -> None:
        """All has been read: complete the rows of ``address``, the layer's last matmul."""
        layer, late = self._layer, self._late
        self._late = []
        if not self._seams.computes_late(layer):
            return
        ids, low, _ = self._memory.ids(layer, [self._routed[i] for i in late])
        weights = [(first + low * stride, stride) for first, stride in self._weights[layer]]
        rows = self._graph(layer, len(late)).rows(self._standin.input, weights, ids)
        spread(address, len(self._routed), late, rows)

    def forget(self) -> None:
        """After an error: no row is to be completed any more."""
        self._late = []

    def close(self) -> None:
        """Free what it computes with."""
        for graph in self._graphs.values():
            graph.close()
        self._graphs.clear()

    def _graph(self, layer: int, n: int) -> ExpertRows:
        shape, n_slots = self._shapes[layer]
        key = shape, n_slots, n
        graph = self._graphs.get(key)
        if graph is None:
            graph = ExpertRows(shape, n, n_slots=n_slots, threads=self._threads)
            self._graphs[key] = graph
        return graph


def late_experts(
    standin: StandIn | None, layout: ExpertLayout, capture: Capture, *, threads: int, seams: Seams
) -> LateExperts | None:
    """``None`` where no expert can be late: without slots, or of another kind."""
    if standin is None or not capture.chains:
        return None
    found, chains = capture.found, capture.chains
    return LateExperts(standin, layout, found, chains, threads=threads, seams=seams)


def _shape(tensors: Sequence[ExpertTensor], found: Mapping[str, Set[int]], glu: int) -> ExpertShape:
    addresses = [next(iter(found[tensor.name])) for tensor in tensors]
    gate, up, down = (node.type_number(address) for address in addresses)
    n_embd, n_ff = node.shape(addresses[0])[:2]
    return ExpertShape((gate, up, down), n_embd, n_ff, glu)
