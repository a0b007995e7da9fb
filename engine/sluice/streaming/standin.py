"""Lets a graph's matmuls over experts take their weights from slots."""

from __future__ import annotations

from collections.abc import Mapping, Set

import numpy as np
import numpy.typing as npt

from sluice.llama import tensor as node
from sluice.streaming.layout import ExpertLayout
from sluice.streaming.slots import SlotMemory


class StandIn:
    """Slots in the place of experts: binds a layer's weights, and exchanges its matmuls' ids.

    Args:
        memory: where the experts stand.
        layout: what is cached.
        found: addresses of each weight that a graph takes.
        rows, top_k: of the widest pass.
    """

    def __init__(
        self,
        memory: SlotMemory,
        layout: ExpertLayout,
        found: Mapping[str, Set[int]],
        *,
        rows: int,
        top_k: int,
    ) -> None:
        self.memory = memory
        self.is_expected = False
        """Whether a matmul that takes slots is still to come: :meth:`give` must see it."""
        self._weights = {
            layer: [(tensor, address) for tensor in tensors for address in found[tensor.name]]
            for layer, tensors in layout.layers.items()
            if all(tensor.name in found for tensor in tensors)
        }
        self._ids = node.Ids(rows, top_k)
        self._takers: set[int] = set()  # weights whose matmul is still to come

    def place(self, layer: int, selected: npt.NDArray[np.int32]) -> None:
        """Bind the layer's weights to the slots of this pass's experts, int32[rows, top_k].

        Raises:
            SystemFault: one of the experts has no slot.
        """
        ids, low, n_slots = self.memory.ids(layer, selected)
        self._ids.fill(ids)
        self._takers.clear()
        for tensor, address in self._weights[layer]:
            begin, stride = self.memory.address(tensor, low), self.memory.stride(tensor)
            node.bind_experts(address, begin, n_slots, stride)
            self._takers.add(address)
        self.is_expected = True

    def give(self, address: int) -> None:
        """A node is about to run: a matmul over these experts takes slots in the place of ids."""
        weight = node.source(address, 0)
        if weight in self._takers:
            self._takers.remove(weight)
            self._ids.stand_in_for(address, 2)
            self.is_expected = bool(self._takers)
