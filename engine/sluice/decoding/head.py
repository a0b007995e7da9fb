"""The MTP head: a second context over the same model that drafts from hidden states."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sluice.decoding.step import greedy, top_probability
from sluice.llama.context import Context

F32 = npt.NDArray[np.float32]


class Head:
    """Drafts after a confirmed prefix.

    Each row of the head pairs the token at position p with the target's hidden state at p - 1
    (zeros for p = 0). Between drafts its cells cover exactly the confirmed positions that the
    target holds; :attr:`hidden` is the target's state at the last of them.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self._width = context.shape.rows_max
        self.hidden: F32 = np.zeros(context.model.n_embd, np.float32)

    def reset(self) -> None:
        """Forget the sequence."""
        self.context.clear()
        self.hidden = np.zeros(self.context.model.n_embd, np.float32)

    def follow(self, tokens: Sequence[int], position: int, hidden: F32) -> None:
        """Take in tokens that the target decoded at ``position`` onward (prefill, catch-up).

        Args:
            tokens: n ids.
            hidden: float32[n, n_embd], the target's state at each of them.
        """
        inputs = np.concatenate([self.hidden[None], hidden[: len(tokens) - 1]])
        for start in range(0, len(tokens), self._width):
            piece = tokens[start : start + self._width]
            self.context.decode(
                piece, position + start, outputs="none", hidden=inputs[start : start + len(piece)]
            )
        self.hidden = hidden[len(tokens) - 1]

    def draft(self, token: int, position: int, *, width: int, p_min: float) -> list[int]:
        """At most ``width`` tokens that continue ``token`` at ``position``.

        Stops before a token whose probability is below ``p_min``. The head's cells are as
        before when it returns.
        """
        drafted: list[int] = []
        hidden = self.hidden
        for i in range(width):
            self.context.decode([token], position + i, outputs="last", hidden=hidden[None])
            logits = self.context.logits(0)
            token = greedy(logits)
            if top_probability(logits) < p_min:
                break
            drafted.append(token)
            hidden = self.context.hidden(0)
        self.context.remove_from(position)
        return drafted
