"""What ``--moe-stream`` would do with a model, or why it cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sluice.errors import SluiceError
from sluice.gguf.header import Header
from sluice.streaming.layout import expert_layout
from sluice.streaming.plan import StreamingPlan, streaming_plan


@dataclass(frozen=True, slots=True)
class Streaming:
    """The plan of a model, or the ``refusal`` of the engine.

    ``ubatch`` is the width of pass that its caches are for; ``auto_cache_bytes`` is what
    ``--cache-mb auto`` would come to now, where that can be told.
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


def examine_streaming(header: Header, *, ubatch: int) -> Streaming:
    """The plan for ``header``'s model, its head included where it has one."""
    n_files = len(header.files)
    try:
        expert_layout(header, with_head=False)  # experts in the head alone are none
        plan = streaming_plan(header, expert_layout(header, with_head=True))
    except SluiceError as err:
        return Streaming(ubatch, n_files, refusal=str(err))
    return Streaming(ubatch, n_files, plan)
