"""Counters of one generation; times in seconds, sizes in bytes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class ReadCounter:
    """What one kind of decode read from disk for its experts.

    ``read_bytes`` is what was asked of the disk: from the aligned start of each window to the
    last byte that is needed, read-ahead included. ``slice_bytes`` are the own bytes of the
    ``n_slices`` slices among it that were read when they were routed to, and not ahead.
    ``stall_s`` is the time that compute waited.

    Experts that were routed to are ``n_hits`` where they were in the cache, read ahead or not,
    else ``n_misses``; without a cache all are misses. ``n_evicted`` left the cache. ``n_ahead``
    experts of ``ahead_bytes`` were read ahead, ``n_ahead_used`` of them routed to while they
    were there, ``n_ahead_awaited`` of those still on their way then. ``overlapped_bytes``
    were demanded, and not waited for before compute went on. ``n_kernel_reads`` are the reads
    that the kernel was given in the place of a lane. ``n_late`` experts were computed after the
    others of their layer, which did not wait for them.
    """

    read_bytes: int = 0
    slice_bytes: int = 0
    n_slices: int = 0
    stall_s: float = 0.0
    n_hits: int = 0
    n_misses: int = 0
    n_evicted: int = 0
    n_ahead: int = 0
    n_ahead_used: int = 0
    n_ahead_awaited: int = 0
    ahead_bytes: int = 0
    overlapped_bytes: int = 0
    n_kernel_reads: int = 0
    n_late: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of the routed experts that were in the cache."""
        routed = self.n_hits + self.n_misses
        return self.n_hits / routed if routed else 0.0


@dataclass(slots=True)
class CacheReport:
    """The expert cache in one generation.

    ``budget_bytes`` is what it may hold, ``peak_bytes`` the most that it held when something was
    loaded (0 where nothing was), both in whole pages or slots; ``evicted_by_layer`` counts the
    experts that left it.
    """

    budget_bytes: int
    peak_bytes: int = 0
    evicted_by_layer: dict[int, int] = dataclasses.field(default_factory=dict)


@dataclass(slots=True)
class Predictions:
    """How many experts a predictor named, and how many of those the router chose."""

    n_named: int = 0
    n_right: int = 0


@dataclass(slots=True)
class Metrics:
    """What one generation cost.

    ``prefill``, ``decode`` and ``head`` split the reads by who routed them: the prompt passes
    (the head's included), the target's decodes (plain or verify), and the head's drafts and
    catch-ups. ``cache`` is there where there is one, ``predictions`` by predictor where they
    are counted (``--predict-log``).
    """

    load_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    draft_s: float = 0.0
    catch_up_s: float = 0.0
    n_prompt: int = 0
    n_generated: int = 0
    n_decodes: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    prefill: ReadCounter = dataclasses.field(default_factory=ReadCounter)
    decode: ReadCounter = dataclasses.field(default_factory=ReadCounter)
    head: ReadCounter = dataclasses.field(default_factory=ReadCounter)
    cache: CacheReport | None = None
    predictions: dict[str, Predictions] = dataclasses.field(default_factory=dict)

    @property
    def generated(self) -> ReadCounter:
        """``decode`` and ``head`` together: what everything after the prompt read."""
        both = {
            field.name: getattr(self.decode, field.name) + getattr(self.head, field.name)
            for field in dataclasses.fields(ReadCounter)
        }
        return ReadCounter(**both)

    @property
    def read_bytes(self) -> int:
        """Bytes read from disk for experts, over the whole generation."""
        return self.prefill.read_bytes + self.decode.read_bytes + self.head.read_bytes

    @property
    def n_decoded(self) -> int:
        """Generated tokens that a decode gave: all but the first, which the prefill gave."""
        return max(self.n_generated - 1, 0)

    @property
    def tok_s(self) -> float:
        """Tokens that decodes gave, a second of decode time alone (drafting left out)."""
        return self.n_decoded / self.decode_s if self.decode_s > 0 else 0.0

    @property
    def effective_tok_s(self) -> float:
        """Tokens that decodes gave, a second of decoding, drafting and catch-up together."""
        total_s = self.decode_s + self.draft_s + self.catch_up_s
        return self.n_decoded / total_s if total_s > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for ``--json``."""
        return dataclasses.asdict(self)
