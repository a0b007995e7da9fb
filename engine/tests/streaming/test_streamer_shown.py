"""What a session's eval hook is shown, and that it does not depend on being spared anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sluice.decoding.session import Session
from sluice.errors import ReadFault
from sluice.llama import machine_code, node_filter
from sluice.llama import tensor as node
from sluice.llama.context import EvalHook
from sluice.seams import Nodes, Seams
from sluice.streaming.capture import MOE
from sluice.streaming.slots import SlotMemory
from sluice.streaming.streamer import Streamer

Open = Callable[..., Session]
STREAMED = {"moe_stream": True, "io_threads": 2, "n": 8}
SLOTS = STREAMED | {"cache_mb": 3, "cache_memory": "slots", "overlap": True}
ALL_HERE = STREAMED | {"cache_mb": 64, "cache_memory": "slots", "cache_fill": True}
KINDS: dict[str, dict[str, Any]] = {
    "no cache": STREAMED,
    "pages": STREAMED | {"cache_mb": 3, "cache_memory": "pages", "overlap": True},
    "slots": SLOTS,
    "slots, all here": ALL_HERE,
    "ahead": SLOTS | {"predict_prefetch": True},
    "head": SLOTS | {"mtp": True, "draft": 2, "predict_prefetch": True},
}
every_kind = pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)
runs_only = pytest.mark.skipif(not machine_code.runs_here(), reason="no machine code here")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, bool, bool]]:
    """Of each node that a streamer's hook is shown: its name, whether asked, whether all were."""
    found: list[tuple[bytes, bool, bool]] = []
    real = Streamer.hook

    def hook(self: Streamer, *, is_head: bool) -> EvalHook:
        inner = real(self, is_head=is_head)

        def see(address: int, ask: bool) -> bool:
            found.append((node.raw_name(address), ask, self.shown.is_open))
            return inner(address, ask)

        return see

    monkeypatch.setattr(Streamer, "hook", hook)
    return found


def run(session: Session, prompt: str) -> tuple[list[int], list[str]]:
    evidence = session.generate(prompt).run().evidence()
    return evidence.ids, evidence.logits_sha256


@every_kind
@pytest.mark.parametrize("is_filtered", [True, False], ids=["filtered", "not filtered"])
def test_what_is_shown_changes_no_bit(
    opened: Open,
    prompt: str,
    changes: dict[str, Any],
    is_filtered: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = ("mtp", "draft", "n")
    right = run(opened(**{k: v for k, v in changes.items() if k in kept}), prompt)
    if not is_filtered:
        monkeypatch.setattr(node_filter, "runs_here", lambda: False)
    session = opened(**changes)
    assert run(session, prompt) == right
    assert run(session, prompt) == right


@runs_only
@every_kind
def test_the_hook_is_spared_what_is_none_of_its_business(
    opened: Open, prompt: str, changes: dict[str, Any], seen: list[tuple[bytes, bool, bool]]
) -> None:
    session = opened(**changes)
    assert session.streamer is not None
    assert any(not name.startswith(MOE) for name, _, _ in seen), "the capture pass sees all"
    assert {all_shown for _, _, all_shown in seen} == {True}
    assert not session.streamer.shown.is_open
    seen.clear()
    session.generate(prompt).run()
    assert [name for name, _, _ in seen if not name.startswith(MOE)] == []
    assert any(not ask for _, ask, _ in seen)
    assert not session.streamer.shown.is_open
    if changes is ALL_HERE:
        generation = session.generate(prompt)
        next(generation), next(generation)
        seen.clear()
        generation.run()  # passes of one row, which are not stopped at any more
        assert {(ask, all_shown) for _, ask, all_shown in seen} == {(True, False)}


class Counting(Nodes):
    def __init__(self) -> None:
        self.asked: set[bytes] = set()

    def wants(self, is_head: bool, address: int) -> bool:
        self.asked.add(node.raw_name(address))
        return False


def test_who_looks_is_shown_every_node(opened: Open, prompt: str) -> None:
    looking, resident = Counting(), Counting()
    right = run(opened(n=8, session={"nodes": resident}), prompt)
    assert run(opened(**SLOTS, session={"nodes": looking}), prompt) == right
    assert looking.asked == resident.asked


class Fails(Seams):
    """The ``n``-th read of experts fails."""

    def __init__(self, n: int) -> None:
        self._left = n

    def lane_reads(self, tensor: str, is_ahead: bool) -> None:
        self._left -= "_exps" in tensor
        if self._left == 0:
            self._left = -1
            raise ReadFault(f"{tensor}: planted")


@every_kind
@pytest.mark.parametrize("n", [1, 40])
def test_after_an_error_a_session_is_what_it_was(
    opened: Open, prompt: str, changes: dict[str, Any], n: int
) -> None:
    if changes is ALL_HERE:
        changes = changes | {"cache_fill": False}  # it would fail at load
    kept = ("mtp", "draft", "n")
    right = run(opened(**{k: v for k, v in changes.items() if k in kept}), prompt)
    session = opened(**changes, session={"seams": Fails(n)})
    with pytest.raises(ReadFault, match="planted"):
        session.generate(prompt).run()
    for _ in range(2):
        assert run(session, prompt) == right
    assert session.streamer is not None
    assert not session.streamer.shown.is_open


@runs_only
@every_kind
def test_of_the_expert_path_the_hook_sees_what_it_has_a_use_for(
    opened: Open, prompt: str, changes: dict[str, Any], seen: list[tuple[bytes, bool, bool]]
) -> None:
    session = opened(**changes)
    assert session.streamer is not None
    seen.clear()
    session.generate(prompt).run()
    closed = {name for name, _, all_shown in seen if not all_shown}
    wanted = {b"top"} | ({b"log"} if session.streamer._ahead is not None else set())
    if changes.get("overlap"):
        wanted |= {b"gat", b"swi"}
    if isinstance(session.streamer.place, SlotMemory):
        wanted |= {b"gat", b"up-", b"dow"}  # they take slots
    assert {name.removeprefix(MOE)[:3] for name in closed} == wanted
