"""Runs that were never run, for tests of the gates themselves."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from sluice.config import Config
from sluice.errors import SluiceError
from sluice.targets import Drafter, ModelFacts, Run
from sluice.telemetry.evidence import Evidence, Fingerprint, Group, Top2
from sluice.telemetry.metrics import Metrics, ReadCounter
from sluice_gates.bench import Bench
from sluice_gates.goldens import Goldens
from sluice_gates.models import Model
from sluice_gates.prompts import Prompt, PromptSet

PRINT = Fingerprint("0.0.1", "CPU : NONE = 1", "default", "ab" * 32)


def evidence(ids: Sequence[int] = (5, 6, 7), **changes: Any) -> Evidence:
    """A plain run of ``ids``: one letter a token, logits that hash from step and id."""
    text = "".join(chr(ord("a") + token % 26) for token in ids)
    made = Evidence(
        config={"mtp": False},
        fingerprint=PRINT,
        prompt_ids=[1, 2],
        ids=list(ids),
        text=text,
        text_sha256=hashlib.sha256(text.encode()).hexdigest(),
        logits_sha256=[hashlib.sha256(f"{i} {t}".encode()).hexdigest() for i, t in enumerate(ids)],
        top2=[Top2((token, token + 1), (1.5, 1.0)) for token in ids],
    )
    return dataclasses.replace(made, **changes)


def speculated(ids: Sequence[int], *groups: tuple[int, Sequence[int], int]) -> Evidence:
    """A run with groups, each given as step, drafted ids, how many were accepted."""
    made = [Group(step, tuple(drafted), tuple(drafted[:n])) for step, drafted, n in groups]
    return evidence(ids, config={"mtp": True}, groups=made)


class FakeTarget:
    """Hands out runs that a function of the configuration makes; counts real runs."""

    def __init__(self, made: Callable[[Config], Evidence | Run | SluiceError]) -> None:
        """``made`` returns what a run leaves, or the error that it raises."""
        self.made = made
        self.configs: list[Config] = []

    def run(
        self,
        config: Config,
        prompt: str | Sequence[int],
        *,
        drafter: Drafter | None = None,
        overrides: dict[str, Any] | None = None,
    ) -> Run:
        """As the engine's."""
        merged = config.replace(**(overrides or {}))
        self.configs.append(merged)
        made = self.made(merged)
        if isinstance(made, SluiceError):
            raise made
        if isinstance(made, Run):
            return made
        counter = ReadCounter(read_bytes=1 << 20, n_slices=8) if config.moe_stream else None
        return Run(made, Metrics(decode=counter or ReadCounter()))

    def run_all(
        self, config: Config, prompt: str | Sequence[int], calls: Sequence[Mapping[str, Any]]
    ) -> list[Run]:
        """As the engine's."""
        return [self.run(config, prompt, overrides=dict(overrides)) for overrides in calls]

    def run_together(self, configs: Sequence[Config], prompt: str | Sequence[int]) -> list[Run]:
        """As the engine's."""
        return [self.run(config, prompt) for config in configs]


BenchMaker = Callable[..., Bench]


@pytest.fixture
def make_bench(tmp_path: Path) -> BenchMaker:
    """Makes a bench over a fake target; the model is a file of a few bytes."""

    def make(
        made: Callable[[Config], Evidence | Run | SluiceError] = lambda _config: evidence(),
        **changes: Any,
    ) -> Bench:
        path = tmp_path / "m.gguf"
        path.write_bytes(b"GGUF")
        facts = ModelFacts("qwen35moe", 8, 1, PRINT)
        model = changes.pop("model", Model(path, "Q8_0", True, facts, "ab" * 32))
        prompt = Prompt("one", "def ")
        prompts = PromptSet((prompt,), (prompt,), prompt, (prompt,), 0.4, searched=True)
        folder = tmp_path / "goldens"
        folder.mkdir(exist_ok=True)
        goldens = Goldens(folder, model, prompts.sha256)
        return dataclasses.replace(
            Bench(model, prompts, tmp_path, goldens, target=FakeTarget(made)), **changes
        )

    return make


@pytest.fixture
def make_evidence() -> Callable[..., Evidence]:
    """See :func:`evidence`."""
    return evidence


@pytest.fixture
def make_speculated() -> Callable[..., Evidence]:
    """See :func:`speculated`."""
    return speculated
