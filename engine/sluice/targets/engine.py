"""The engine in this process, as gates and faults drive it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice.config import Config
from sluice.decoding.session import Session
from sluice.seams import NO_SEAMS, Drafter, Seams
from sluice.telemetry.evidence import Evidence
from sluice.telemetry.metrics import Metrics

__all__ = ["Drafter", "EngineTarget", "Held", "Run", "Seams"]


@dataclass(frozen=True, slots=True)
class Held:
    """What a streaming session had in memory when a generation began; all 0 of a resident one.

    ``dense_bytes`` of dense weights were brought in at load, ``dense_owned_bytes`` is the memory
    of our own among that, ``cache_bytes`` the cache's pages or slots. ``is_direct`` says that reads
    bypass the page cache, ``kernel_reads`` that the kernel is given those that run under compute,
    ``late`` that experts may be computed after the others of their layer.
    """

    dense_bytes: int = 0
    dense_owned_bytes: int = 0
    cache_bytes: int = 0
    is_direct: bool = False
    kernel_reads: bool = False
    late: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """What one generation left: its evidence, and what it cost."""

    evidence: Evidence
    metrics: Metrics
    held: Held = field(default_factory=Held)


@dataclass(slots=True)
class EngineTarget:
    """Opens a session per run and closes it again, so that runs share no state.

    ``seams`` are the test doors of the engine, inert by default.
    """

    seams: Seams = field(default_factory=lambda: NO_SEAMS)

    def run(
        self,
        config: Config,
        prompt: str | Sequence[int],
        *,
        drafter: Drafter | None = None,
        overrides: dict[str, Any] | None = None,
    ) -> Run:
        """Generate ``config.n`` tokens at most after ``prompt``; every error is a SluiceError."""
        with Session(config, seams=self.seams, drafter=drafter) as session:
            return _run(session, prompt, overrides or {})

    def run_all(
        self, config: Config, prompt: str | Sequence[int], calls: Sequence[Mapping[str, Any]]
    ) -> list[Run]:
        """One session, and a generation after ``prompt`` for each of ``calls``: its overrides."""
        with Session(config, seams=self.seams) as session:
            return [_run(session, prompt, overrides) for overrides in calls]

    def run_together(self, configs: Sequence[Config], prompt: str | Sequence[int]) -> list[Run]:
        """A session each, all open at once: every one gives a token before any gives its next."""
        with contextlib.ExitStack() as opened:
            sessions = [opened.enter_context(Session(c, seams=self.seams)) for c in configs]
            generations = [session.generate(prompt) for session in sessions]
            held = [_held(session) for session in sessions]
            going = generations
            while going:
                going = [one for one in going if next(one, None) is not None]
            return [
                Run(one.evidence(), one.metrics, mine)
                for one, mine in zip(generations, held, strict=True)
            ]


def _run(session: Session, prompt: str | Sequence[int], overrides: Mapping[str, Any]) -> Run:
    generation = session.generate(prompt, **overrides)
    held = _held(session)
    generation.run()
    return Run(generation.evidence(), generation.metrics, held)


def _held(session: Session) -> Held:
    streamer = session.streamer
    if streamer is None:
        return Held()
    return Held(
        dense_bytes=streamer.dense.resident_bytes,
        dense_owned_bytes=streamer.dense.owned_bytes,
        cache_bytes=streamer.cache.resident_bytes if streamer.cache is not None else 0,
        is_direct=streamer.reader.is_direct,
        kernel_reads=streamer.lanes.uses_kernel,
        late=streamer.computes_late,
    )
