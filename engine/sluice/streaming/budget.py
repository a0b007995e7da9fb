"""How large the expert cache is: what was asked for, or what the memory has room for."""

from __future__ import annotations

from sluice.config import Config
from sluice.errors import RequestError
from sluice.streaming.plan import StreamingPlan

MIB = 1 << 20
HEADROOM_BYTES = 256 * MIB
"""What ``auto`` leaves free: compute buffers that are touched later, and everyone else."""

_HEADROOM_SHARE = 16  # of what is available, where that is more


def cache_bytes(
    config: Config, plan: StreamingPlan, *, available_bytes: int | None, mapped_bytes: int
) -> int:
    """The cache's budget in bytes, of pages or of slots.

    Args:
        config: ``cache_mb`` is a number of MiB, or ``auto``.
        plan: of the model as it is run.
        available_bytes: memory that may still be taken (see :mod:`sluice.streaming.memory`).
        mapped_bytes: dense weights that will still come into memory.

    Raises:
        RequestError: a budget that cannot hold one token's experts, or one pass's, without
            ``--force-cache``; or ``auto`` on a system that does not say what is free.
    """
    if config.cache_mb == "auto":
        budget = _automatic(config, plan, available_bytes, mapped_bytes)
        what = f"--cache-mb auto: comes to {budget / MIB:.0f} MiB"
    else:
        budget = config.cache_mb * MIB
        what = f"--cache-mb {config.cache_mb}"
    if not config.force_cache:
        _refuse_useless(what, budget, config, plan)
    return budget


def _automatic(
    config: Config, plan: StreamingPlan, available_bytes: int | None, mapped_bytes: int
) -> int:
    if available_bytes is None:
        raise RequestError(
            "--cache-mb auto: this system does not say how much memory is free; give a number"
        )
    free = available_bytes - mapped_bytes
    room = free - max(HEADROOM_BYTES, free // _HEADROOM_SHARE)
    room = min(room, plan.total_page_bytes)
    if config.cache_ceil_mb:
        room = min(room, config.cache_ceil_mb * MIB)
    return max(room, config.cache_floor_mb * MIB, 0)


def _refuse_useless(what: str, budget: int, config: Config, plan: StreamingPlan) -> None:
    token, ubatch = plan.token_page_bytes, min(config.ubatch, config.ctx)
    smallest = -(-plan.smallest_cache_bytes(ubatch) // MIB)
    remedy = f"set --cache-mb to {smallest} or more, or to 0; --force-cache takes it all the same"
    if budget < token:
        n_layers = len(plan.trunk)
        raise RequestError(
            f"{what}: one token routes to {plan.n_used} experts in each of {n_layers} layers,"
            f" {token / MIB:.2f} MiB, and a cache below that has a hit rate of exactly 0; {remedy}"
        )
    widest = plan.pass_page_bytes_max(ubatch)
    if budget < widest:
        raise RequestError(
            f"{what}: one layer of a prompt pass of --ubatch {ubatch} can route to"
            f" {widest / MIB:.2f} MiB of experts, which must be in memory at once; {remedy}, and"
            " a narrower --ubatch needs less"
        )
