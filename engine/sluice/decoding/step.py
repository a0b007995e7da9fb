"""One decoded token, and how a token is read off a row of logits."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sluice.errors import SystemFault
from sluice.telemetry.evidence import Group, Top2

F32 = npt.NDArray[np.float32]

TOP_OF_HEAD = 10
"""The head's probability is taken over this many candidates, as llama.cpp's draft sampler does."""


@dataclass(frozen=True, slots=True)
class Step:
    """A token and the row that it was chosen from.

    ``logits`` is float32[n_vocab], a view that is valid until the next step is asked for.
    ``group`` is set on the first token of a verify decode.
    """

    id: int
    logits: F32
    group: Group | None = None


def greedy(logits: F32) -> int:
    """The id of the largest logit; of equal ones the lowest id, as llama.cpp chooses.

    Raises:
        SystemFault: the row holds a NaN.
    """
    best = int(np.argmax(logits))  # argmax returns the first NaN where there is one
    if np.isnan(logits[best]):
        raise SystemFault(
            f"the logits are not numbers (NaN at id {best}): weights that were never read,"
            " or a broken model file"
        )
    return best


def top2(logits: F32) -> Top2:
    """The two largest logits, ties by lowest id first."""
    first = int(np.argmax(logits))
    rest = logits.copy()
    rest[first] = -np.inf
    second = int(np.argmax(rest))
    return Top2((first, second), (float(logits[first]), float(logits[second])))


def row_sha256(logits: F32) -> str:
    """SHA-256 of the row's float32 bytes, little-endian."""
    return hashlib.sha256(logits.astype("<f4", copy=False).data).hexdigest()


def top_probability(logits: F32) -> float:
    """Probability of the largest logit among the top :data:`TOP_OF_HEAD` (float64 softmax)."""
    k = min(TOP_OF_HEAD, len(logits))
    best = np.partition(logits, len(logits) - k)[-k:].astype(np.float64)
    return float(1.0 / np.exp(best - best.max()).sum())
