"""What a session does with streamed experts from one generation to the next, and beside another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.decoding.session import Session
from sluice.errors import RequestError
from sluice.streaming import memory
from sluice.streaming.budget import HEADROOM_BYTES, MIB

from .comparing import same

Open = Callable[..., Session]
STREAMED: dict[str, Any] = {"moe_stream": True}


def resident_bytes(session: Session) -> int:
    assert session.streamer is not None
    assert session.streamer.cache is not None
    return session.streamer.cache.resident_bytes


@pytest.mark.parametrize("changes", [{}, {"overlap": True, "predict_prefetch": True}], ids=str)
def test_a_cache_is_resized_between_two_generations(
    opened: Open, prompt: str, changes: dict[str, Any]
) -> None:
    sound = opened().generate(prompt).run().evidence()
    session = opened(**STREAMED, cache_mb=16, **changes)
    same(session.generate(prompt).run().evidence(), sound)
    assert resident_bytes(session) > 3 * MIB
    for cache_mb in (3, 2, 5):
        running = session.generate(prompt, cache_mb=cache_mb)
        assert resident_bytes(session) <= cache_mb * MIB  # before the first token
        assert session.config.cache_mb == cache_mb
        same(running.run().evidence(), sound)
        cache = running.metrics.cache
        assert cache is not None
        assert cache.budget_bytes == cache_mb * MIB
        assert cache.peak_bytes <= cache_mb * MIB
        assert cache.evicted_by_layer
    # It stays what it is until it is changed again.
    assert session.generate(prompt).run().evidence().config["cache_mb"] == 5


def test_a_cache_that_would_be_too_small_changes_nothing(opened: Open, prompt: str) -> None:
    session = opened(**STREAMED, cache_mb=4)
    sound = session.generate(prompt).run().evidence()
    with pytest.raises(RequestError, match=r"^--cache-mb 1: one token routes to"):
        session.generate(prompt, cache_mb=1)
    with pytest.raises(RequestError, match=r"^--cache-mb 0: the session was opened with 4; a cac"):
        session.generate(prompt, cache_mb=0)
    assert session.config.cache_mb == 4
    same(session.generate(prompt).run().evidence(), sound)


@pytest.mark.parametrize("changes", [{}, STREAMED], ids=str)
def test_a_cache_cannot_be_added(opened: Open, prompt: str, changes: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="--cache-mb"):
        opened(**changes).generate(prompt, cache_mb=8)


def test_a_cache_may_size_itself_again(
    opened: Open, prompt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the cache holds is its own to keep: it does not count as taken."""
    monkeypatch.setattr(memory, "available_bytes", lambda: HEADROOM_BYTES + 5 * MIB)
    session = opened(**STREAMED, cache_mb="auto")
    assert session.config.cache_mb == 5
    session.generate(prompt).run()
    held = resident_bytes(session)
    monkeypatch.setattr(memory, "available_bytes", lambda: HEADROOM_BYTES + 5 * MIB - held)
    running = session.generate(prompt, cache_mb="auto")
    assert running.metrics.cache is None  # nothing was computed yet
    running.run()
    assert running.metrics.cache is not None
    assert running.metrics.cache.budget_bytes == 5 * MIB
    assert session.config.cache_mb == running.evidence().config["cache_mb"] == 5


def test_two_sessions_take_turns(opened: Open, prompt: str) -> None:
    """Each has its own memory, lanes and cache, whatever the other reads meanwhile."""
    other_prompt = "class Reader:\n    def __init__(self, path):\n"
    sound = [opened().generate(p).run().evidence() for p in (prompt, other_prompt)]
    sessions = [
        opened(**STREAMED, cache_mb=2, overlap=True),
        opened(**STREAMED, cache_mb=4, prefetch=1),
    ]
    running = [s.generate(p) for s, p in zip(sessions, (prompt, other_prompt), strict=True)]
    for _ in range(24):
        for one in running:
            next(one, None)
    for one, wanted in zip(running, sound, strict=True):
        same(one.run().evidence(), wanted)


def test_a_generation_left_half_done_is_no_matter_to_the_next(opened: Open, prompt: str) -> None:
    sound = opened().generate(prompt).run().evidence()
    session = opened(**STREAMED, cache_mb=4, overlap=True, prefetch=3)
    half = session.generate(prompt)
    for _ in range(5):
        next(half)
    same(session.generate(prompt).run().evidence(), sound)
    half = session.generate(prompt)
    next(half)
    session.close()  # lanes may still read ahead


def test_a_session_that_is_refused_leaves_nothing(opened: Open) -> None:
    def left() -> tuple[int, int]:
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    if not Path("/proc/self/fd").exists():
        pytest.skip("counts what is open in /proc")
    opened(**STREAMED).close()
    before = left()
    for _ in range(5):
        with pytest.raises(RequestError, match="hit rate of exactly 0"):
            opened(**STREAMED, cache_mb=1, overlap=True)
    assert left() == before


def test_what_auto_came_to_can_be_cut_to_whole_mib(opened: Open, prompt: str) -> None:
    session = opened(**STREAMED, cache_mb="auto")
    assert session.streamer is not None
    assert session.streamer.cache is not None
    assert session.streamer.cache.budget_bytes % MIB  # of the bundled model, all of its experts
    wanted = session.config.cache_mb
    assert isinstance(wanted, int)
    session.generate(prompt, n=2, cache_mb=wanted).run()
    assert session.streamer.cache.budget_bytes == wanted * MIB


@pytest.mark.parametrize("memory_kind", ["slots", "pages"])
def test_a_cache_that_is_filled_at_load(opened: Open, prompt: str, memory_kind: str) -> None:
    sound = opened().generate(prompt).run().evidence()
    changes = STREAMED | {"cache_memory": memory_kind, "cache_fill": True}
    session = opened(**changes, cache_mb=64)  # room for all of them
    held = resident_bytes(session)
    assert held > 4 * MIB
    running = session.generate(prompt)
    same(running.run().evidence(), sound)
    assert resident_bytes(session) == held
    metrics = running.metrics
    for counter in (metrics.prefill, metrics.decode):
        assert counter.n_misses == counter.read_bytes == 0
        assert counter.n_hits > 0
    small = opened(**changes, cache_mb=4)
    assert 3 * MIB < resident_bytes(small) <= 4 * MIB
    same(small.generate(prompt).run().evidence(), sound)
