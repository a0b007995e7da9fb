"""The eval hook of a session whose nodes are looked at: streaming first, then the lookers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sluice.llama.context import EvalHook
from sluice.seams import Nodes


class Looking:
    """One context's hook.

    Args:
        nodes: those that look, in order; one may write what the next one sees.
        is_head: whether the context is the head's.
        inner: the hook that would be there without them.
    """

    def __init__(self, nodes: Sequence[Nodes], is_head: bool, inner: EvalHook | None) -> None:
        self._nodes = nodes
        self._is_head = is_head
        self._inner = inner
        self._decoding = False
        self._wanted: set[int] = set()  # by the inner hook, of the nodes to be computed

    def begins(
        self,
        tokens: Sequence[int],
        position: int,
        outputs: str,
        hidden: npt.NDArray[np.float32] | None,
    ) -> None:
        """See :meth:`Nodes.begins`."""
        self._decoding = True
        self._wanted.clear()
        for looker in self._nodes:
            looker.begins(self._is_head, tokens, position, outputs, hidden)

    def hook(self, address: int, ask: bool) -> bool:
        """See :data:`EvalHook`."""
        if ask and self._inner is not None and self._inner(address, True):
            self._wanted.add(address)
        wanted = address in self._wanted
        if not self._decoding:  # a capture pass: nothing is computed, and nobody may want it
            return wanted
        lookers = [looker for looker in self._nodes if looker.wants(self._is_head, address)]
        if ask:
            return wanted or bool(lookers)
        if wanted and self._inner is not None:
            self._wanted.remove(address)
            self._inner(address, False)
        for looker in lookers:
            looker.computed(self._is_head, address)
        return True
