"""What a layer needs: what is counted, what is read, and what is waited for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sluice.errors import ReadFault
from sluice.seams import Seams
from sluice.streaming.arena import Arena
from sluice.streaming.cache import ExpertCache
from sluice.streaming.demand import CachedDemand, LayerReads, UncachedDemand
from sluice.streaming.lanes import Lanes
from sluice.streaming.layout import ExpertLayout
from sluice.streaming.pages import PagedMemory
from sluice.streaming.pending import Pending
from sluice.streaming.reader import PAGE_BYTES, SliceReader
from sluice.streaming.slice_jobs import SliceJobs
from sluice.telemetry.metrics import ReadCounter

from .parts import layout, slice_of

N_EXPERT = 8
SIZES = (5000, 2500)
ORDER = {0: ["down", "up"], 1: ["down", "up"]}


class Counting(Seams):
    """Changes nothing, and wants to be asked."""

    is_passive = True

    def __init__(self) -> None:
        self.asked: set[str] = set()

    def slice_source(self, layer: int, part: str, expert: int, n_expert: int) -> int | None:
        self.asked.add("slice_source")
        return expert

    def slice_shard(self, shard: int, n_shards: int) -> int:
        self.asked.add("slice_shard")
        return shard


class Impatient(Seams):
    def waits_for_ahead(self, layer: int, expert: int) -> bool:
        return False


class Bench:
    """Everything that stands around a demand, over the file of random bytes."""

    def __init__(self, file: Path, seams: Seams) -> None:
        self.found: ExpertLayout = layout(SIZES, n_layers=2, n_expert=N_EXPERT)
        self.seams = seams
        self.reader = SliceReader([file], direct=False, warn=lambda _text: None)
        self.lanes = Lanes(self.reader, 2, helps=False, seams=seams)
        self.counter = ReadCounter()

    def uncached(self, *, load_all: bool = False, poison: bool = False) -> UncachedDemand:
        self.arena = Arena(self.found, 1, PAGE_BYTES, shared=False)
        jobs = SliceJobs(self.found, self.reader, self.arena, self.seams)
        reads = self._reads(self.arena)
        return UncachedDemand(reads, jobs, self.arena, load_all=load_all, poison=poison)

    def cached(self, n: int) -> CachedDemand:
        """With room for ``n`` experts or a few more."""
        arena = Arena(self.found, 1, PAGE_BYTES, shared=False)
        self.memory = PagedMemory(self.found, arena, n * 5 * PAGE_BYTES)
        jobs = SliceJobs(self.found, self.reader, self.memory, self.seams)
        self.cache = ExpertCache(self.memory, self.lanes, jobs.of_expert, self.seams)
        return CachedDemand(self._reads(self.memory), self.cache, None, self.seams)

    def passes(
        self, demand: CachedDemand | UncachedDemand, layer: int, experts: list[int], number: int
    ) -> None:
        """All of a layer's pass but its matmuls."""
        self.pending.begin(layer)
        demand.meet(layer, experts, number, self.counter, rows=2)
        self.wait()

    def wait(self) -> None:
        self.pending.wait_for_all()

    def _reads(self, place: Arena | PagedMemory) -> LayerReads:
        self.pending = Pending(self.lanes, self.seams, {}, place.slice_view)
        return LayerReads(self.found, self.reader, self.pending, ORDER)


Open = Callable[..., Bench]


@pytest.fixture
def bench(file: Path, request: pytest.FixtureRequest) -> Open:
    def open_(seams: Seams | None = None) -> Bench:
        made = Bench(file, seams or Seams())
        request.addfinalizer(made.lanes.close)
        return made

    return open_


def is_right(bench: Bench, view: Callable[..., memoryview], experts: list[int], raw: bytes) -> bool:
    return all(
        bytes(view(tensor, e)) == slice_of(raw, tensor, e)
        for tensor in bench.found.layers[0]
        for e in experts
    )


def test_without_a_cache_all_is_read_every_time(bench: Open, content: bytes) -> None:
    one = bench()
    demand = one.uncached()
    for n in (1, 2):
        one.passes(demand, 0, [1, 6], n)
        assert is_right(one, one.arena.slice_view, [1, 6], content)
        assert (one.counter.n_misses, one.counter.n_hits) == (2 * n, 0)
        assert one.counter.read_bytes == one.counter.slice_bytes == 2 * n * sum(SIZES)
        assert one.counter.n_slices == 4 * n


def test_every_expert_may_be_read(bench: Open, content: bytes) -> None:
    one = bench()
    demand = one.uncached(load_all=True)
    one.passes(demand, 0, [3], 1)
    assert is_right(one, one.arena.slice_view, list(range(N_EXPERT)), content)
    assert one.counter.n_misses == N_EXPERT
    assert one.counter.slice_bytes == N_EXPERT * sum(SIZES)


def test_what_was_not_asked_for_is_poisoned(bench: Open, content: bytes) -> None:
    one = bench()
    demand = one.uncached(poison=True)
    one.passes(demand, 0, [3], 1)
    assert is_right(one, one.arena.slice_view, [3], content)
    for tensor in one.found.layers[0]:
        assert (np.frombuffer(one.arena.slice_view(tensor, 5), np.uint8) == 0xFF).all()


def test_a_cache_is_read_into_once(bench: Open, content: bytes) -> None:
    one = bench()
    demand = one.cached(4)
    one.passes(demand, 0, [1, 6], 1)
    one.passes(demand, 0, [1, 2], 2)
    assert is_right(one, one.memory.slice_view, [1, 2, 6], content)
    assert (one.counter.n_misses, one.counter.n_hits) == (3, 1)
    assert one.counter.read_bytes == one.counter.slice_bytes == 3 * sum(SIZES)
    assert one.counter.n_evicted == 0
    one.passes(demand, 1, [0, 1, 2, 3], 3)
    assert one.counter.n_evicted > 0
    assert (1, 0) in one.cache


@pytest.mark.parametrize("seams", [Seams(), Impatient()], ids=["waits", "does not"])
def test_what_is_on_its_way_is_waited_for(bench: Open, content: bytes, seams: Seams) -> None:
    one = bench(seams)
    demand = one.cached(4)
    entry = one.cache.load_ahead(0, 5, 1)
    assert entry is not None  # and nobody has submitted its reads
    one.pending.begin(0)
    demand.meet(0, [5], 2, one.counter, rows=2)
    assert (one.counter.n_ahead_used, one.counter.n_ahead_awaited) == (1, 1)
    assert bool(one.pending) is not isinstance(seams, Impatient)
    one.wait()
    assert entry.is_in_flight() is isinstance(seams, Impatient)
    if not isinstance(seams, Impatient):
        assert is_right(one, one.memory.slice_view, [5], content)
    assert one.counter.read_bytes == 0  # who read it ahead was charged
    one.lanes.cancel(entry.all_jobs())


@pytest.mark.parametrize("is_cached", [False, True])
def test_a_file_that_changed_is_refused_before_it_is_read(
    bench: Open, file: Path, is_cached: bool
) -> None:
    one = bench()
    demand = one.cached(4) if is_cached else one.uncached()
    one.passes(demand, 0, [1], 1)
    read_bytes = one.counter.read_bytes
    with file.open("ab") as out:
        out.write(b"x")
    one.pending.begin(0)
    with pytest.raises(ReadFault, match="changed since it was opened"):
        demand.meet(0, [2], 2, one.counter, rows=2)
    assert one.counter.read_bytes == read_bytes
    one.pending.cancel()


def test_who_only_counts_is_asked_for_every_slice(bench: Open) -> None:
    """A gate that finds a seam never asked skips the faults that are planted there."""
    seams = Counting()
    one = bench(seams)
    demand = one.uncached()
    one.passes(demand, 0, [1], 1)
    assert seams.asked == {"slice_source", "slice_shard"}
