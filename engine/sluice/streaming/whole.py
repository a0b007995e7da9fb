"""Layers that are in the cache with every expert, for good: there is nothing to stop for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sluice.seams import Seams
from sluice.streaming.cache import ExpertCache
from sluice.streaming.layout import ExpertTensor
from sluice.streaming.standin import StandIn

Targets = Callable[[int], Sequence[int] | None]
"""The layers that a pass through a layer reads ahead for; ``None`` where it has other work."""


class WholeLayers:
    """Knows which layers compute as if they were resident.

    Args:
        layers: of the model.
        cache: where experts stand.
        standin: exchanges ids, where the cache is in slots: a whole layer takes its own again.
        targets: see :data:`Targets`.
        seams: see :mod:`sluice.seams`.

    :attr:`passed_by` are the layers that the eval hook need not stop at, where it counts the
    routed experts without one: in passes of one row, whose experts are ``top_k`` different ones.
    """

    def __init__(
        self,
        layers: Mapping[int, Sequence[ExpertTensor]],
        cache: ExpertCache,
        standin: StandIn | None,
        targets: Targets,
        seams: Seams,
    ) -> None:
        self.passed_by: frozenset[int] = frozenset()
        self._n_expert = {layer: tensors[0].n_expert for layer, tensors in layers.items()}
        self._cache = cache
        self._standin = standin
        self._targets = targets
        self._seams = seams
        self._whole: set[int] = set()

    def __contains__(self, layer: int) -> bool:
        return layer in self._whole

    def check(self, layer: int, *, has_all: bool) -> bool:
        """Whether the layer is whole, from now on; ``has_all``: nothing has to be waited for."""
        if layer in self._whole:
            return True
        is_whole = has_all and self._cache.is_whole(layer, self._n_expert[layer])
        if not self._seams.takes_for_whole(layer, is_whole):
            return False
        if self._standin is not None:
            self._standin.release(layer)
        self._whole.add(layer)
        self.passed_by = frozenset(filter(self._is_passed_by, self._whole))
        return True

    def forget(self) -> None:
        """The cache has another budget: any expert may go."""
        self._whole.clear()
        self.passed_by = frozenset()

    def _is_passed_by(self, layer: int) -> bool:
        targets = self._targets(layer)
        return targets is not None and self._whole.issuperset(targets)
