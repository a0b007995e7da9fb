"""The figures of single requests, and their means by prompt. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable

from sluice.sweep import formulas
from sluice.sweep.row import Row


def by_prompt(rows: Iterable[Row], value: Callable[[Row], float | None]) -> dict[str, float]:
    """Mean of ``value`` over each prompt's repeats, where there is any."""
    known: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        one = value(row) if row.ok else None
        if one is not None:
            known[row.prompt].append(one)
    return {prompt: statistics.fmean(values) for prompt, values in known.items()}


def effective_tok_s(row: Row) -> float | None:
    """Tokens that decodes gave, a second of decoding, drafting and catch-up together.

    ``None`` where the text ended with its first token: a rate of 0 would be no speed of the arm.
    """
    return formulas.tok_s(row.n_decoded, row.effective_s) if row.n_decoded else None


def decode_tok_s(row: Row) -> float | None:
    """Tokens that decodes gave, a second of the target's decodes alone."""
    known = row.n_decoded and row.decode_s is not None
    return formulas.tok_s(row.n_decoded, row.decode_s or 0.0) if known else None


def step_tokens(row: Row) -> float | None:
    """Tokens that decodes gave, for each of them."""
    return None if row.n_steps is None else formulas.tokens_per_step(row.n_decoded, row.n_steps)


def step_time_s(row: Row) -> float | None:
    """Tokens per step over effective tok/s."""
    tokens, rate = step_tokens(row), effective_tok_s(row)
    return None if tokens is None or rate is None else formulas.step_time_s(tokens, rate)


def token_time_s(row: Row) -> float | None:
    """Time of a token, drafting included."""
    return formulas.ratio(row.effective_s, row.n_decoded)
