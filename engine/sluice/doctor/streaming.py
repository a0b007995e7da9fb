"""What ``--moe-stream`` would do with a model, or why it cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sluice.config import Config
from sluice.errors import RequestError, SluiceError
from sluice.gguf.header import Header
from sluice.streaming.budget import cache_bytes
from sluice.streaming.layout import expert_layout
from sluice.streaming.plan import StreamingPlan, streaming_plan


@dataclass(frozen=True, slots=True)
class Streaming:
    """The plan of a model, or the ``refusal`` of the engine.

    ``ubatch`` is the width of pass that its caches are for; ``auto_cache_bytes`` is what
    ``--cache-mb auto`` would come to at most, where that can be told: a context takes some.
    """

    ubatch: int
    n_files: int
    plan: StreamingPlan | None = None
    refusal: str | None = None
    auto_cache_bytes: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for ``--json``."""
        return {
            "n_files": self.n_files,
            "plan": self.plan.as_dict(self.ubatch) if self.plan is not None else None,
            "refusal": self.refusal,
            "auto_cache_bytes": self.auto_cache_bytes,
        }


def examine_streaming(header: Header, *, ubatch: int, available_bytes: int | None) -> Streaming:
    """The plan for ``header``'s model, its head included where it has one.

    Args:
        header: of a whole model, be it in shards.
        ubatch: width of a pass.
        available_bytes: memory that could be taken now, if that is known.
    """
    n_files = len(header.files)
    try:
        expert_layout(header, with_head=False)  # experts in the head alone are none
        plan = streaming_plan(header, expert_layout(header, with_head=True))
    except SluiceError as err:
        return Streaming(ubatch, n_files, refusal=str(err))
    return Streaming(
        ubatch,
        n_files,
        plan,
        auto_cache_bytes=_automatic(header, plan.without_head(), available_bytes),
    )


def _automatic(header: Header, plan: StreamingPlan, available_bytes: int | None) -> int | None:
    try:
        return cache_bytes(
            Config(model=str(header.path), cache_mb="auto", force_cache=True),
            plan,
            available_bytes=available_bytes,
            mapped_bytes=plan.dense_bytes,
        )
    except RequestError:  # the system does not say what is free
        return None
