"""Lets a graph's matmuls over experts take their weights from slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from sluice.llama import tensor as node
from sluice.llama.node_filter import NodeFilter
from sluice.streaming.layout import ExpertLayout
from sluice.streaming.slots import SlotMemory


class StandIn:
    """Slots in the place of experts: binds a layer's weights, and exchanges its matmuls' ids.

    Args:
        memory: where the experts stand.
        layout: what is cached.
        found: addresses of each weight that a graph takes.
        rows, top_k: of the widest pass.
        shown: what the eval hook sees: each ``matmul`` while :attr:`is_expected`.
        matmul: the number of the operation that takes slots.
    """

    def __init__(
        self,
        memory: SlotMemory,
        layout: ExpertLayout,
        found: Mapping[str, Set[int]],
        *,
        rows: int,
        top_k: int,
        shown: NodeFilter,
        matmul: int,
    ) -> None:
        self.memory = memory
        self.is_expected = False
        """Whether a matmul that takes slots is still to come: :meth:`give` must see it."""
        self._shown = shown
        self._matmul = matmul
        self._weights = {
            layer: [
                (node.ExpertWeights(address), memory.address(tensor, 0), memory.stride(tensor))
                for tensor in tensors
                for address in found[tensor.name]
            ]
            for layer, tensors in layout.layers.items()
            if all(tensor.name in found for tensor in tensors)
        }
        self._ids = node.Ids(rows, top_k)
        self._takers: set[int] = set()  # weights whose matmul is still to come
        self._gives_way = False  # to the routed experts' ids, in this pass
        self._keeps_input = False
        self.input = b""
        """What the layer's first matmul takes, float32[n_embd], where :meth:`place` was told so."""

    def place(
        self, layer: int, routed: Sequence[int], top_k: int, *, keeps_input: bool = False
    ) -> None:
        """Bind the layer's weights to the slots of this pass's experts, ``top_k`` a row.

        ``keeps_input``: the first matmul's input is there already, one row, and is copied.

        Raises:
            SystemFault: one of the experts has no slot.
        """
        ids, low, n_slots = self.memory.ids(layer, routed)
        self._ids.fill(ids, top_k)
        self._gives_way, self._keeps_input = False, keeps_input
        self._bind(layer, low, n_slots)

    def release(self, layer: int) -> None:
        """Bind the layer's weights to all its experts, which stand in order, and keep the ids.

        This pass's graph may be one that took slots before.
        """
        self._gives_way, self._keeps_input = True, False
        self._bind(layer, *self.memory.own(layer))

    def give(self, address: int) -> None:
        """A node is about to run: a matmul over these experts takes slots in the place of ids."""
        weight = node.source(address, 0)
        if weight in self._takers:
            self._takers.remove(weight)
            if self._keeps_input:
                self._keeps_input = False
                self.input = node.first_row(node.source(address, 1))
            if self._gives_way:
                self._ids.give_way(address, 2)
            else:
                self._ids.stand_in_for(address, 2)
            self._expect(bool(self._takers))

    def _bind(self, layer: int, low: int, n_slots: int) -> None:
        self._takers.clear()
        for weights, begin, stride in self._weights[layer]:
            weights.bind(begin + low * stride, n_slots, stride)
            self._takers.add(weights.address)
        self._expect(True)

    def _expect(self, more: bool) -> None:
        if more == self.is_expected:
            return
        self.is_expected = more
        self._shown.operation = self._matmul if more else None
