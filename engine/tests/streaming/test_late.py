"""Experts that are computed after the others of their layer: the same logits, and when."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType

from sluice.config import Config
from sluice.decoding.session import Session
from sluice.errors import ReadFault
from sluice.llama import node_filter
from sluice.seams import Nodes, Seams
from sluice.streaming.late import LateExperts
from sluice.streaming.reader import Channel, Read

Open = Callable[..., Session]
N, N_EXPERT, HEAD = 24, 8, "blk.4."
LATE = {"moe_stream": True, "overlap": True, "cache_mb": 3, "n": N}


def evidence(session: Session, prompt: str) -> tuple[list[int], list[str]]:
    running = session.generate(prompt)
    running.run()
    return running.ids, running.evidence().logits_sha256


def n_late(session: Session, prompt: str) -> int:
    return session.generate(prompt).run().metrics.generated.n_late


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kernel_reads": False},
        {"odirect": False},
        {"predict_prefetch": True},
        {"prefetch": 2},
        {"cache_mb": 2, "io_threads": 1},
        {"cache_mb": 5},
        {"mtp": True, "draft": 1},
        {"mtp": True, "draft": 3},
    ],
    ids=str,
)
def test_late_is_resident(opened: Open, prompt: str, changes: dict[str, Any], threads: int) -> None:
    kept = {name: value for name, value in changes.items() if name in ("mtp", "draft")}
    right = evidence(opened(n=N, threads=threads, **kept), prompt)
    session = opened(**{**LATE, "threads": threads, **changes})
    for _ in range(2):
        running = session.generate(prompt)
        assert (running.run().ids, running.evidence().logits_sha256) == right
        assert running.metrics.generated.n_late


@pytest.mark.parametrize(
    "changes",
    [
        {"overlap": False, "predict_prefetch": True},
        {"cache_memory": "pages"},
        {"cache_mb": 0},
        {"session": {"nodes": Nodes()}},
    ],
    ids=["no overlap", "pages", "no cache", "looked at"],
)
def test_nothing_is_late(opened: Open, prompt: str, changes: dict[str, Any]) -> None:
    session = opened(**{**LATE, **changes})
    assert n_late(session, prompt) == 0
    assert session.streamer is not None
    assert not session.streamer.computes_late


def test_nothing_is_late_in_a_pass_of_several_rows(opened: Open, prompt: str) -> None:
    metrics = opened(**LATE).generate(prompt).run().metrics
    assert metrics.prefill.n_late == 0
    assert metrics.prefill.n_misses
    assert metrics.decode.n_late


@pytest.mark.parametrize("ahead", [False, True])
def test_it_is_the_same_where_the_hook_is_shown_every_node(
    opened: Open, prompt: str, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = evidence(opened(n=N), prompt)
    monkeypatch.setattr(node_filter, "runs_here", lambda: False)
    for cache_mb in (2, 3, 5):
        session = opened(**{**LATE, "cache_mb": cache_mb}, predict_prefetch=ahead)
        assert evidence(session, prompt) == right
        assert n_late(session, prompt)


@pytest.mark.parametrize("part", ["down", "gate", "up"])
def test_experts_that_are_scaled_are_waited_for(
    opened: Open, prompt: str, rewrite: Callable[..., Path], tmp_path: Path, model: Path,
    part: str,
) -> None:  # fmt: skip
    tensors = [t.name for t in GGUFReader(model).tensors]
    names = [n for n in tensors if n.endswith(f"_{part}_exps.weight") and n[:6] != HEAD]
    scale = np.linspace(0.5, 1.5, N_EXPERT, dtype=np.float32)
    scales = {n.replace(".weight", ".scale"): (scale, GGMLQuantizationType.F32) for n in names}
    scaled = str(rewrite(tmp_path / "scaled.gguf", tensors=scales))
    right = evidence(opened(model=scaled, n=N), prompt)
    assert right != evidence(opened(n=N), prompt)
    session = opened(**LATE, model=scaled)
    assert evidence(session, prompt) == right
    assert n_late(session, prompt) == 0


class Forgets(Seams):
    def computes_late(self, layer: int) -> bool:
        return False


def test_a_late_row_that_is_left_out_is_seen(opened: Open, prompt: str) -> None:
    right = evidence(opened(n=N), prompt)
    assert evidence(opened(**LATE, session={"seams": Forgets()}), prompt) != right


class Takes:
    """How many of a row's experts were late, and how many would have been."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[int, int, bool]] = []
        real = LateExperts.takes

        def takes(late: LateExperts, layer: int, n: int, n_experts: int) -> bool:
            taken = real(late, layer, n, n_experts)
            self.asked.append((n, n_experts, taken))
            return taken

        monkeypatch.setattr(LateExperts, "takes", takes)


@pytest.mark.parametrize("top_k", [2, 3, 4])
def test_no_more_than_half_of_a_rows_experts_are_late(
    opened: Open,
    prompt: str,
    rewrite: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    top_k: int,
) -> None:
    keys = {"qwen35moe.expert_used_count": (top_k, GGUFValueType.UINT32)}
    model = str(rewrite(tmp_path / "wider.gguf", keys=keys))
    right = evidence(opened(model=model, n=N), prompt)
    takes = Takes(monkeypatch)
    session = opened(**{**LATE, "cache_mb": 5, "model": model})
    assert evidence(session, prompt) == right
    assert {taken for n, of, taken in takes.asked if 0 < 2 * n <= of} == {True}
    assert {taken for n, of, taken in takes.asked if not 0 < 2 * n <= of} == {False}
    assert {n for n, _, taken in takes.asked if taken} == set(range(1, top_k // 2 + 1))


def test_a_late_read_that_fails_ends_the_generation_and_not_the_session(
    opened: Open, prompt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = evidence(opened(n=N), prompt)
    session = opened(**LATE, kernel_reads=False)
    running = session.generate(prompt)
    while not running.metrics.decode.n_late:
        next(running)
    real = Channel.read

    def read(channel: Channel, one: Read) -> int:
        if session.streamer is not None and session.streamer._pending.is_late:
            raise ReadFault("planted")
        return real(channel, one)

    monkeypatch.setattr(Channel, "read", read)
    with pytest.raises(ReadFault, match=r"^planted$"):
        running.run()
    monkeypatch.undo()
    for _ in range(2):
        assert evidence(session, prompt) == right


@pytest.mark.parametrize("at", [1, 2, 9])
def test_a_pass_that_ends_between_leaves_nothing_behind(
    opened: Open, prompt: str, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    right = evidence(opened(n=N), prompt)
    session, left, real = opened(**LATE), [at], LateExperts.place

    def place(late: LateExperts, *given: Any) -> None:
        real(late, *given)
        left[0] -= 1
        if not left[0]:
            raise ReadFault("planted")

    monkeypatch.setattr(LateExperts, "place", place)
    with pytest.raises(ReadFault, match=r"^planted$"):
        session.generate(prompt).run()
    for _ in range(2):
        assert evidence(session, prompt) == right


def test_another_budget_between_generations(opened: Open, prompt: str) -> None:
    right = evidence(opened(n=N), prompt)
    session = opened(**LATE)
    for cache_mb in (5, 2, 4):
        running = session.generate(prompt, cache_mb=cache_mb)
        assert (running.run().ids, running.evidence().logits_sha256) == right
        assert running.metrics.generated.n_late


def test_a_closed_session_has_freed_its_graphs(config: Config, prompt: str) -> None:
    session = Session(config.replace(**LATE))
    assert n_late(session, prompt)
    streamer = session.streamer
    assert streamer is not None
    late = streamer._late
    assert late is not None
    assert late._graphs
    session.close()
    assert not late._graphs
