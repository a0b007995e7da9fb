"""A file of random bytes as a model of experts, and what reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.seams import NO_SEAMS, Seams
from sluice.streaming.arena import Arena
from sluice.streaming.cache import ExpertCache
from sluice.streaming.lanes import Lanes
from sluice.streaming.pages import PagedMemory
from sluice.streaming.reader import Channel, SliceReader

from .parts import PAGE, SIZE, layout
from .rig import UNEVEN, Rig, expert_bytes


@pytest.fixture(scope="session")
def content() -> bytes:
    return np.random.default_rng(5).bytes(SIZE)


@pytest.fixture
def file(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "weights.bin"
    path.write_bytes(content)
    return path


@pytest.fixture
def make(file: Path) -> Callable[..., SliceReader]:
    """A reader of the file, with O_DIRECT, that may not warn; or with changes to that."""

    def make_(*paths: Path, **changes: Any) -> SliceReader:
        return SliceReader(paths or (file,), **{"direct": True, "warn": no_warning} | changes)

    return make_


@pytest.fixture
def channel() -> Iterator[Callable[[SliceReader], Channel]]:
    """A reader's channel; all are closed when the test ends."""
    made: list[Channel] = []

    def channel_(reader: SliceReader) -> Channel:
        made.append(reader.channel())
        return made[-1]

    yield channel_
    for one in made:
        one.close()


@pytest.fixture
def start(make: Callable[..., SliceReader]) -> Iterator[Callable[..., Lanes]]:
    """Lanes over the file (or ``reader=``); all are closed when the test ends."""
    made: list[Lanes] = []

    def start_(n: int = 1, *, helps: bool = False, seams: Seams = NO_SEAMS, **rest: Any) -> Lanes:
        reader = rest.pop("reader", None) or make(**{"warn": lambda _text: None} | rest)
        made.append(Lanes(reader, n, helps=helps, seams=seams))
        return made[-1]

    yield start_
    for one in made:
        one.close()


@pytest.fixture
def rig(start: Callable[..., Lanes], content: bytes) -> Callable[..., Rig]:
    """``rig(budget, slices=..., n_layers=4, n_expert=8)``; a budget in bytes, or in experts."""

    def rig_(
        budget_bytes: int = SIZE,
        *,
        experts: int = 0,
        slices: tuple[int, ...] = UNEVEN,
        n_layers: int = 4,
        n_expert: int = 8,
        lanes: int = 2,
        seams: Seams = NO_SEAMS,
    ) -> Rig:
        found = layout(slices, n_layers=n_layers, n_expert=n_expert)
        arena = Arena(found, granule_bytes=PAGE, shared=False)
        reading = start(lanes, direct=False, seams=seams)
        budget_bytes = experts * expert_bytes(found) if experts else budget_bytes
        made: list[Rig] = []
        memory = PagedMemory(found, arena, budget_bytes)
        cache = ExpertCache(memory, reading, lambda *one: made[0].plan(*one), seams)
        made.append(Rig(found, arena, reading, memory.pages, cache, content))
        return made[0]

    return rig_


def no_warning(text: str) -> None:
    raise AssertionError(text)
