"""Plain decoding: one token a decode."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from sluice.decoding.step import Step
from sluice.llama.context import Context
from sluice.telemetry.metrics import Metrics

Choose = Callable[[int], int]
"""Chooses a token from the logits of a batch row of the target's last decode."""


def plain_steps(
    target: Context, *, last_row: int, position: int, choose: Choose, metrics: Metrics
) -> Iterator[Step]:
    """Endless steps of ``target``.

    Args:
        target: holds the prompt; its last decode had logits in row ``last_row``.
        position: of the first generated token.
        choose: greedy or sampled.
        metrics: charged with every decode.
    """
    row = last_row
    while True:
        token = choose(row)
        yield Step(token, target.logits(row))
        began = time.perf_counter()
        target.decode([token], position, outputs="last")
        metrics.decode_s += time.perf_counter() - began
        metrics.n_decodes += 1
        position += 1
        row = 0
