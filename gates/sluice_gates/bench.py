"""What a gate gets: a model, prompts, a way to run them, and a place for its evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from sluice.config import Config
from sluice.errors import GateFailure, RequestError
from sluice.targets import CommandTarget, Drafter, EngineTarget, Outcome, Run, can_stream
from sluice.telemetry.evidence import Evidence
from sluice_gates.compare import difference, digest
from sluice_gates.gate import Level, NotApplicable, NotRecorded
from sluice_gates.goldens import Goldens
from sluice_gates.models import Model
from sluice_gates.prompts import Prompt, PromptSet

CTX = 1024
LONG = 128
"""Tokens of the runs whose values are recorded: short runs hide a parity that does not last."""

DRAFTS = (1, 2, 3)


class Target(Protocol):
    """Whatever runs a prompt: the engine, or the engine with a fault in it."""

    def run(
        self,
        config: Config,
        prompt: str | Sequence[int],
        *,
        drafter: Drafter | None = None,
        overrides: dict[str, Any] | None = None,
    ) -> Run:
        """Generate after ``prompt``; every error is a SluiceError."""

    def run_all(
        self, config: Config, prompt: str | Sequence[int], calls: Sequence[Mapping[str, Any]]
    ) -> list[Run]:
        """One session, and a generation for each of ``calls``: its overrides."""

    def run_together(self, configs: Sequence[Config], prompt: str | Sequence[int]) -> list[Run]:
        """A session each, all open at once, their tokens taken in turns."""


class Command(Protocol):
    """The command in another process."""

    def run(self, config: Config, prompt: str) -> Outcome:
        """``sluice run``."""


@dataclass(frozen=True, slots=True)
class RunKey:
    """Two runs with equal keys are the same run, unless something is wrong."""

    config: Config
    prompt: str | tuple[int, ...]
    drafter: Drafter | None
    overrides: tuple[tuple[str, Any], ...]

    @property
    def words(self) -> str:
        """What is special about the run, for file names and messages."""
        plain = Config(model=self.config.model)
        changes = {
            name: value
            for name, value in self.config.as_dict().items()
            if value != getattr(plain, name) and name not in ("model", "n", "ctx", "threads")
        }
        parts = [
            name if value is True else f"{name}={value}"
            for name, value in (*changes.items(), *self.overrides)
        ]
        if self.drafter is not None:
            parts.append(type(self.drafter).__name__)
        return "-".join([*(parts or ["plain"]), f"n={self.config.n}", f"t={self.config.threads}"])


Recorder = Callable[[str, Evidence], None]


@dataclass(slots=True)
class Bench:
    """One model and what gates do with it.

    ``n`` is how many tokens an ordinary run generates, ``n_streamed`` one that streams in one way
    or another: what is wrong once in a while needs long runs. ``n_layouts`` is how many models of
    the zoo are run, ``None`` all of them. ``runs`` caches runs by their key: gates share their
    controls, and a gate that needs a second real run says ``fresh=True``.
    """

    model: Model
    prompts: PromptSet
    scratch: Path
    goldens: Goldens
    target: Target = field(default_factory=EngineTarget)
    command: Command = field(default_factory=CommandTarget)
    n: int = 96
    n_streamed: int = 256
    n_general: int = 3
    n_layouts: int | None = None
    runs: dict[RunKey, Run] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    table: list[tuple[str, str]] = field(default_factory=list)
    recorder: Recorder | None = None
    parted: tuple[Evidence, Evidence] | None = None
    """The two runs that a gate has failed over, for the triage."""

    unjudged: NotApplicable | NotRecorded | None = None
    """Why a gate came to neither pass nor failure."""

    @property
    def general(self) -> tuple[Prompt, ...]:
        """The prompts of identity and speculation gates."""
        return self.prompts.general[: self.n_general]

    @property
    def streams(self) -> bool:
        """Whether experts can be streamed: the model has some, the platform can."""
        return self.model.facts.has_experts and can_stream()

    @property
    def memory_modes(self) -> tuple[bool, ...]:
        """Values of ``moe_stream`` that this model can be run with."""
        return (False, True) if self.streams else (False,)

    def invariant(self) -> dict[str, Any] | None:
        """Settings under which a row has the same bits in a batch of any width.

        ``None`` where this build has no such profile. What is computed in other batches, as
        by a fresh session, can be compared bit for bit under these only.
        """
        settings: dict[str, Any] = {"numerics": "invariant"}
        try:
            self.run(self.general[0], n=1, **settings)
        except RequestError:
            return None
        return settings

    def config(self, **changes: Any) -> Config:
        """The ordinary configuration with ``changes``; small models gain nothing by threads."""
        base = Config(
            model=str(self.model.path),
            n=self.n,
            ctx=CTX,
            threads=1 if self.model.is_small else 0,
        )
        return base.replace(**changes)

    def run(
        self,
        prompt: Prompt,
        *,
        fresh: bool = False,
        drafter: Drafter | None = None,
        overrides: dict[str, Any] | None = None,
        **changes: Any,
    ) -> Run:
        """Run ``prompt``; an equal run of this process is handed back unless ``fresh``."""
        key = RunKey(
            self.config(**changes), prompt.text, drafter, tuple(sorted((overrides or {}).items()))
        )
        return self._run(prompt.name, key, fresh=fresh)

    def run_ids(self, name: str, ids: Sequence[int], **changes: Any) -> Run:
        """Run a prompt that is given as token ids."""
        return self._run(name, RunKey(self.config(**changes), tuple(ids), None, ()), fresh=False)

    def run_all(self, prompt: Prompt, calls: Sequence[dict[str, Any]], **changes: Any) -> list[Run]:
        """Run ``prompt`` several times in one session, each time with other overrides."""
        config = self.config(**changes)
        runs = self.target.run_all(config, prompt.text, calls)
        for i, (overrides, run) in enumerate(zip(calls, runs, strict=True), 1):
            key = RunKey(config, prompt.text, None, tuple(sorted(overrides.items())))
            self._record(f"{prompt.name}-{key.words}-generation-{i}", run)
        return runs

    def run_together(self, prompt: Prompt, *settings: dict[str, Any]) -> list[Run]:
        """Run ``prompt`` in as many sessions as there are settings, all open at once."""
        configs = [self.config(**changes) for changes in settings]
        runs = self.target.run_together(configs, prompt.text)
        for i, (config, run) in enumerate(zip(configs, runs, strict=True), 1):
            key = RunKey(config, prompt.text, None, ())
            self._record(f"{prompt.name}-{key.words}-session-{i}-of-{len(runs)}", run)
        return runs

    def equal(
        self, left: Run, right: Run, what: str, level: Level = "logits", *, prefix: bool = False
    ) -> None:
        """Fail with the first difference; ``what`` names the two runs."""
        found = difference(left.evidence, right.evidence, level, prefix=prefix)
        if found:
            self.parted = left.evidence, right.evidence
            raise GateFailure(f"{what}: {found}")

    def note(self, words: str) -> None:
        """Add to the gate's evidence."""
        self.notes.append(words)

    def _run(self, name: str, key: RunKey, *, fresh: bool) -> Run:
        run = None if fresh else self.runs.get(key)
        if run is None:
            run = self.target.run(
                key.config, key.prompt, drafter=key.drafter, overrides=dict(key.overrides)
            )
            if not fresh:
                self.runs[key] = run
        self._record(f"{name}-{key.words}{'-again' if fresh else ''}", run)
        return run

    def _record(self, words: str, run: Run) -> None:
        if self.recorder is not None:
            self.recorder(f"{self.model.label}-{words}", run.evidence)


def measured(runs: Iterable[Run]) -> str:
    """How much was compared: steps, and 8 digits of the hash over every logits row."""
    evidences = [run.evidence for run in runs]
    steps = sum(len(e.ids) for e in evidences)
    if steps == 0:
        raise GateFailure("no evidence: nothing was generated")
    return f"{len(evidences)} runs, {steps} steps, logits {digest(evidences)[:8]}"


def streamed_mib(runs: Iterable[Run]) -> float:
    """MiB that streamed runs read; each must have read something, or it proves nothing."""
    total = 0
    for run in runs:
        if run.metrics.read_bytes == 0:
            raise GateFailure("no evidence: nothing streamed")
        total += run.metrics.read_bytes
    return total / (1 << 20)


def accepted_and_rejected(runs: Iterable[Run], width: int) -> str:
    """Drafts accepted and drafted; both accepted and rejected ones must be there."""
    accepted = drafted = 0
    for run in runs:
        accepted += run.evidence.n_accepted
        drafted += run.evidence.n_drafted
    if drafted == 0:
        raise GateFailure(f"no evidence: nothing drafted at draft {width}")
    if accepted == 0:
        raise GateFailure(f"no evidence: no draft accepted at draft {width} ({drafted} drafted)")
    if accepted == drafted:
        raise GateFailure(f"no evidence: no draft rejected at draft {width} ({drafted} drafted)")
    return f"draft {width}: {accepted}/{drafted} accepted"
