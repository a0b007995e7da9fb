from __future__ import annotations

from pathlib import Path

import pytest

from sluice.config import Config
from sluice.errors import RequestError, SystemFault
from sluice.seams import Drafter, Seams
from sluice.targets.engine import EngineTarget


class Wrong(Drafter):
    def draft(self, confirmed: list[int], width: int, n_vocab: int) -> list[int]:
        return [n_vocab - 1] * width


class Unread(Seams):
    def slice_source(self, layer: int, part: str, expert: int, n_expert: int) -> int | None:
        return None


def test_runs_share_no_state(config: Config, prompt: str) -> None:
    target = EngineTarget()
    first = target.run(config, prompt)
    target.run(config.replace(mtp=True, moe_stream=True), "class A:\n")
    again = target.run(config, prompt)
    assert again.evidence == first.evidence
    assert first.metrics.n_generated == len(first.evidence.ids) == config.n


def test_overrides_are_those_of_a_call(config: Config) -> None:
    run = EngineTarget().run(config, [5, 6], overrides={"n": 3})
    assert len(run.evidence.ids) == 3
    assert run.evidence.config["n"] == 3
    with pytest.raises(RequestError, match="fixed when the session is opened"):
        EngineTarget().run(config, [5, 6], overrides={"ubatch": 3})


def test_a_drafter_and_seams_are_passed_on(config: Config, prompt: str) -> None:
    run = EngineTarget().run(config.replace(mtp=True), prompt, drafter=Wrong())
    assert run.metrics.n_drafted > 0
    assert run.metrics.n_accepted == 0
    with pytest.raises(SystemFault, match="not numbers"):
        EngineTarget(seams=Unread()).run(config.replace(moe_stream=True, poison=True), prompt)


def test_a_failed_run_leaves_nothing_open(config: Config) -> None:
    folder = Path("/proc/self/fd")
    if not folder.exists():
        pytest.skip("descriptors are counted in /proc")
    before = len(list(folder.iterdir()))
    for _ in range(3):
        with pytest.raises(RequestError):
            EngineTarget().run(config.replace(moe_stream=True), "")
    assert len(list(folder.iterdir())) == before
