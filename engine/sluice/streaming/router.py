"""A layer's router, run by us: which experts it would choose for an input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sluice.gguf.header import Header
from sluice.llama.projection import Projection
from sluice.llama.tensor import Matrix

F32 = npt.NDArray[np.float32]

SOFTMAX, SIGMOID, RAW, SQRT_SOFTPLUS = 1, 2, 3, 4
"""``expert_gating_func`` (``llama_expert_gating_func_type``)."""

CORRECTIONS = ("exp_probs_b.bias", "exp_probs_b")
"""How the names of a router's corrections end: one architecture leaves the last word out."""

_FIXED_GATING = {"ernie4_5-moe": SOFTMAX}  # its graph corrects, and asks no header

NEAR = 1e-4
"""Scores this close, relative to their spread, count as a tie: our sums have another order."""


@dataclass(frozen=True, slots=True)
class Selection:
    """How scores become a choice: the same for every layer of a model."""

    gating: int
    n_groups: int
    n_groups_used: int

    @classmethod
    def of(cls, header: Header) -> Selection:
        """As ``header`` says; sigmoid where it is silent and the model corrects its scores."""
        corrects = any(name.endswith(CORRECTIONS) for name in header.tensors)
        said = header.number("expert_gating_func", SIGMOID if corrects else SOFTMAX)
        return cls(
            _FIXED_GATING.get(header.architecture, said),
            header.number("expert_group_count"),
            header.number("expert_group_used_count"),
        )


class RouterCopy:
    """One layer's router: over the model's own memory, and a smaller copy to predict with.

    Args:
        weight: float32[n_expert, n_embd].
        bias, correction: float32[n_expert], or ``None``.
        selection: of the model.

    Source: ``llm_graph_context::build_moe_ffn``.
    """

    def __init__(
        self, weight: F32, bias: F32 | None, correction: F32 | None, selection: Selection
    ) -> None:
        self._exact = Projection(weight)
        # A prediction may be wrong: fewer bytes to go through are worth more than a last bit.
        self._rough = Projection(weight, is_rough=True)
        self._bias = bias
        self._correction = correction
        self._selection = selection
        # Every gating function keeps the order.
        self._is_plain = bias is None and correction is None and selection.n_groups <= 1

    def scores(self, rows: Matrix) -> F32:
        """float32[n, n_expert] to choose by, of inputs float32[n, n_embd]."""
        return self._scores(self._exact.scores(rows).copy())

    def _scores(self, logits: F32) -> F32:
        if self._bias is not None:
            logits += self._bias
        n_groups = self._selection.n_groups
        if self._correction is None and n_groups <= 1:
            return logits
        scores = _gated(logits, self._selection.gating)
        if self._correction is not None:
            scores = scores + self._correction
        return _masked(scores, n_groups, self._selection.n_groups_used) if n_groups > 1 else scores

    def choose(self, rows: Matrix, top_k: int) -> list[list[int]]:
        """The ``top_k`` experts of each row of float32[n, n_embd], the likeliest first."""
        if self._is_plain:
            return self._rough.largest(rows, top_k)
        order = np.argsort(-self._scores(self._rough.scores(rows).copy()), axis=1, kind="stable")
        found: list[list[int]] = order[:, :top_k].tolist()
        return found

    def close(self) -> None:
        """Free what it computes with."""
        self._exact.close()
        self._rough.close()


def right(scores: F32, chosen: Sequence[int]) -> int:
    """How many of the experts ``chosen`` (one row) are among as many best of ``scores``."""
    top_k = len(chosen)
    limit = np.partition(scores, len(scores) - top_k)[len(scores) - top_k]
    finite = scores[np.isfinite(scores)]
    if not finite.size:  # the input was no number
        return 0
    slack = NEAR * float(finite.max() - finite.min())
    return int(np.count_nonzero(scores[list(chosen)] >= limit - slack))


def _gated(logits: F32, gating: int) -> F32:
    if gating == SIGMOID:
        return np.asarray(1 / (1 + np.exp(-logits)), np.float32)
    if gating == SOFTMAX:
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True), np.float32)
    if gating == SQRT_SOFTPLUS:
        return np.asarray(np.sqrt(np.logaddexp(logits, 0)), np.float32)
    return logits


def _masked(scores: F32, n_groups: int, n_used: int) -> F32:
    groups = scores.reshape(len(scores), n_groups, -1)
    two = np.sort(groups, axis=2)[:, :, -2:].sum(axis=2)
    kept = np.argsort(-two, axis=1, kind="stable")[:, :n_used]
    mask = np.full(groups.shape, -np.inf, np.float32)
    np.put_along_axis(mask, kept[:, :, None], 0, axis=1)
    return np.asarray((groups + mask).reshape(scores.shape), np.float32)
