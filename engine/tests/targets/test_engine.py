from __future__ import annotations

from pathlib import Path
from typing import Any

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


def test_generations_of_one_session_share_its_cache(config: Config, prompt: str) -> None:
    target = EngineTarget()
    cached = config.replace(moe_stream=True, cache_mb=3)
    lone = target.run(cached, prompt)
    first, second, shrunk = target.run_all(cached, prompt, [{}, {}, {"cache_mb": 2, "n": 3}])
    assert first.evidence == second.evidence == lone.evidence
    assert first.held.cache_bytes == lone.held.cache_bytes == 0
    assert 2 << 20 < second.held.cache_bytes <= 3 << 20
    assert 0 < shrunk.held.cache_bytes <= 2 << 20
    assert len(shrunk.evidence.ids) == 3


def test_sessions_together_give_a_token_each_in_turns(config: Config, prompt: str) -> None:
    seen: list[str] = []

    class Turns(Seams):
        def routing(self, selected: Any, flat: Any) -> Any:
            seen.append(f"{len(selected)}")
            return selected

    target = EngineTarget(seams=Turns())
    short = config.replace(moe_stream=True, n=3)
    wanted = target.run(short, prompt)
    layers = len(seen) // 3  # of the prompt's pass, and of two decodes
    seen.clear()
    runs = target.run_together([short, short, config.replace(n=6)], prompt)
    assert [run.evidence.ids[:3] for run in runs] == [wanted.evidence.ids] * 3
    assert [len(run.evidence.ids) for run in runs] == [3, 3, 6]
    # Two prompts come before either's decodes.
    rows = str(len(wanted.evidence.prompt_ids))
    assert seen == [rows] * 2 * layers + ["1"] * 4 * layers


@pytest.mark.parametrize(
    ("changes", "in_memory", "owned"),
    [
        ({}, False, False),
        ({"moe_stream": True, "dense_weights": "mmap"}, False, False),
        ({"moe_stream": True, "dense_weights": "warm"}, True, False),
        ({"moe_stream": True}, True, True),
    ],
)
def test_what_a_session_held(
    config: Config, changes: dict[str, Any], in_memory: bool, owned: bool
) -> None:
    held = EngineTarget().run(config.replace(n=1, **changes), [5, 6]).held
    assert (held.dense_bytes > 0, held.dense_owned_bytes > 0) == (in_memory, owned)
    assert not owned or held.dense_owned_bytes >= held.dense_bytes
    assert held.cache_bytes == 0


def test_no_odirect_is_seen(config: Config) -> None:
    buffered = config.replace(n=1, moe_stream=True, odirect=False)
    assert not EngineTarget().run(buffered, [5, 6]).held.is_direct
