"""Which expert caches a model can be run with."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.bundled import model_path
from sluice.config import Config
from sluice.gguf.shards import read_model
from sluice.streaming.budget import MIB
from sluice.streaming.layout import expert_layout
from sluice.streaming.plan import streaming_plan


@dataclass(frozen=True, slots=True)
class CacheBudgets:
    """In whole MiB: the smallest ``--cache-mb`` that is not refused, and one that holds all.

    ``token_bytes`` is what one token's experts take, in whole pages. ``scant_mb`` holds half of
    them, or is 1: below a token's, the previous one's are gone when their layer comes round again.
    It needs ``--force-cache``. ``layers`` are those whose experts are streamed, the MTP block's
    last.
    """

    token_bytes: int
    scant_mb: int
    smallest_mb: int
    whole_mb: int
    layers: tuple[int, ...]


def cache_budgets(config: Config) -> CacheBudgets:
    """The budgets of ``config``'s model, run as ``config`` says.

    Raises:
        RequestError: the model's experts cannot be streamed.
        ModelError: it cannot be read.
    """
    header = read_model(model_path(config.model))
    plan = streaming_plan(header, expert_layout(header, with_head=config.mtp))
    smallest = plan.smallest_cache_bytes(min(config.ubatch, config.ctx))
    return CacheBudgets(
        token_bytes=plan.token_page_bytes,
        scant_mb=max(1, plan.token_page_bytes // 2 // MIB),
        smallest_mb=-(-smallest // MIB),
        whole_mb=-(-max(smallest, plan.total_page_bytes) // MIB),
        layers=tuple(one.layer for one in plan.layers),
    )
