"""What to read ahead: the experts that a layer will probably route to, and how often that is right.

Two predictors: the previous token's experts of the same layer, and the layer's router run early,
on the input of the layer before, the first layer's on the tokens' embeddings. A third one is the
control: a layer's router on its own input, which must be right every time.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from sluice.llama.tensor import Matrix
from sluice.streaming.router import RouterCopy, right
from sluice.telemetry.metrics import Predictions

Routed = Sequence[Sequence[int]]
"""The experts of each row, ``top_k`` of them."""

ROWS_MAX = 16
"""Wider passes route to most experts: no router is run early there, and nothing is counted."""

PREVIOUS, EARLY, CONTROL = "previous token", "early router", "control"


class Predictor:
    """Sees every pass through every layer, and predicts the layers to come.

    Args:
        routers: by layer, where the early router is asked for.
        following: the next layer that routes, by layer; the last one has none.

    :attr:`counts` is filled by predictor's name, where predictions are to be counted.
    """

    def __init__(self, routers: Mapping[int, RouterCopy], following: Mapping[int, int]) -> None:
        self.counts: dict[str, Predictions] | None = None
        self._routers = routers
        self._following = following
        self._previous: dict[int, Sequence[int]] = {}
        self._early: dict[int, list[list[int]]] = {}

    def saw(self, layer: int, selected: Routed, inputs: Matrix | None) -> None:
        """A pass has routed.

        Args:
            layer: the layer.
            selected: what its router chose.
            inputs: float32[rows, n_embd] that the router had, where the early router runs.
        """
        if len(selected) <= ROWS_MAX:
            self._count(layer, selected, inputs)
            self._early.pop(layer, None)
            following = self._following.get(layer)
            if following is not None and following in self._routers and inputs is not None:
                self.early(following, inputs, len(selected[0]))
        self._previous[layer] = selected[-1]

    def early(self, layer: int, inputs: Matrix, top_k: int) -> None:
        """Run ``layer``'s router on ``inputs``, float32[rows, n_embd], before its turn."""
        self._early[layer] = self._routers[layer].choose(inputs, top_k)

    def forget(self) -> None:
        """A new sequence begins."""
        self._previous.clear()
        self._early.clear()

    def by_previous_token(self, layer: int) -> list[int]:
        """The experts that the last row of the last pass had in ``layer``."""
        return list(self._previous.get(layer, ()))

    def by_early_router(self, layer: int) -> list[int]:
        """What ``layer``'s router named when it was run early, the likeliest first."""
        named = self._early.get(layer, [])
        if len(named) == 1:  # the usual
            return list(named[0])
        # Every row's first choice comes before any row's second.
        return list(dict.fromkeys(itertools.chain.from_iterable(zip(*named, strict=True))))

    def close(self) -> None:
        """Free what the routers compute with."""
        for router in self._routers.values():
            router.close()

    def _count(self, layer: int, selected: Routed, inputs: Matrix | None) -> None:
        if self.counts is None:
            return
        previous = self._previous.get(layer)
        for row in selected:
            if previous is not None:
                self._add(PREVIOUS, row, len(np.intersect1d(row, previous)))
            previous = row
        early = self._early.get(layer)
        if early is not None and len(early) == len(selected):
            for row, named in zip(selected, early, strict=True):
                self._add(EARLY, row, len(np.intersect1d(row, named)))
        own = self._routers.get(layer)
        if own is not None and inputs is not None:
            for row, scores in zip(selected, own.scores(inputs), strict=True):
                self._add(CONTROL, row, right(scores, row))

    def _add(self, name: str, row: Sequence[int], n_right: int) -> None:
        assert self.counts is not None
        found = self.counts.setdefault(name, Predictions())
        found.n_named += len(row)
        found.n_right += n_right
