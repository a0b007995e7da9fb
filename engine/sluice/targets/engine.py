"""The engine in this process, as gates and faults drive it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice.config import Config
from sluice.decoding.session import Session
from sluice.seams import NO_SEAMS, Drafter, Seams
from sluice.telemetry.evidence import Evidence
from sluice.telemetry.metrics import Metrics

__all__ = ["Drafter", "EngineTarget", "Run", "Seams"]


@dataclass(frozen=True, slots=True)
class Run:
    """What one generation left: its evidence, and what it cost."""

    evidence: Evidence
    metrics: Metrics


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
            generation = session.generate(prompt, **(overrides or {}))
            generation.run()
            return Run(generation.evidence(), generation.metrics)
