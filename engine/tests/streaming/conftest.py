"""A file of random bytes as a model of experts, and what reads it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.config import Config
from sluice.decoding.generation import Generation
from sluice.decoding.session import Session
from sluice.seams import NO_SEAMS, Seams
from sluice.streaming.arena import Arena
from sluice.streaming.cache import ExpertCache
from sluice.streaming.kernel_lanes import KernelLanes
from sluice.streaming.lanes import Lanes
from sluice.streaming.layout import ExpertLayout
from sluice.streaming.pages import PagedMemory
from sluice.streaming.reader import Channel, SliceReader
from sluice.streaming.slots import SlotMemory

from .parts import PAGE, SIZE, layout, plan_of
from .rig import UNEVEN, Rig, each_bytes


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


@pytest.fixture(params=["pages", "slots"])
def kind(request: pytest.FixtureRequest) -> str:
    """Of the memory of a rig's cache; a test that is of one kind only parametrizes it."""
    return str(request.param)


@pytest.fixture
def rig(start: Callable[..., Lanes], content: bytes, kind: str) -> Callable[..., Rig]:
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
        reading = start(lanes, direct=False, seams=seams)
        made: list[Rig] = []
        memory = memory_of(kind, found)
        memory.set_budget(experts * each_bytes(found, memory) if experts else budget_bytes)
        memory.trim()
        cache = ExpertCache(memory, reading, lambda *one: made[0].plan(*one), seams)
        made.append(Rig(found, memory, reading, cache, content))
        return made[0]

    return rig_


def memory_of(kind: str, layout: ExpertLayout) -> PagedMemory | SlotMemory:
    if kind == "pages":
        return PagedMemory(layout, Arena(layout, PAGE, PAGE, shared=False), 0)
    return SlotMemory(layout, plan_of(layout), alignment=1, ubatch=1, budget_bytes=0)


def no_warning(text: str) -> None:
    raise AssertionError(text)


@pytest.fixture
def kernel(make: Callable[..., SliceReader]) -> Iterator[Callable[..., KernelLanes]]:
    """Kernel lanes over the file (or ``reader=``), already serving; closed when the test ends."""
    made: list[KernelLanes] = []

    def kernel_(n: int = 2, *, serves: bool = True, **rest: Any) -> KernelLanes:
        reader = rest.pop("reader", None) or make()
        if not reader.is_direct:
            pytest.skip("this file system takes no O_DIRECT")
        try:
            made.append(KernelLanes(reader, n, seams=rest.pop("seams", NO_SEAMS)))
        except OSError as err:
            pytest.skip(f"this system gives no AIO: {err}")
        if serves:
            made[-1].serve(memory_stays=True)
        return made[-1]

    yield kernel_
    for one in made:
        one.close()


@pytest.fixture
def changed_midway(
    opened: Callable[..., Session], config: Config, prompt: str, tmp_path: Path
) -> Callable[..., tuple[Session, Generation]]:
    """``changed_midway(**settings)``: the model's file has grown after three tokens of it."""

    def changed(**settings: Any) -> tuple[Session, Generation]:
        copied = tmp_path / "model.gguf"
        shutil.copy(config.model, copied)
        session = opened(model=str(copied), **settings)
        generation = session.generate(prompt)
        for _ in range(3):
            next(generation)
        with copied.open("ab") as out:
            out.write(b"x")
        return session, generation

    return changed
