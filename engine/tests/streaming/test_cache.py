from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest

from sluice.errors import ReadFault
from sluice.seams import NO_SEAMS, Seams
from sluice.streaming.arena import Arena
from sluice.streaming.cache import ExpertCache, Slot
from sluice.streaming.lanes import Job, Lanes
from sluice.streaming.layout import ExpertLayout
from sluice.streaming.pages import Pages
from sluice.telemetry.metrics import CacheReport

from .parts import PAGE, SIZE, can_see_pages, layout, present

WAIT_S = 20
UNEVEN = (5000, 2500)
EVEN = (PAGE,)
"""Every expert has two pages, but that neighbours have one in common."""


@dataclass
class Rig:
    """A cache over the file of random bytes, and what a streamer does with it."""

    layout: ExpertLayout
    arena: Arena
    lanes: Lanes
    pages: Pages
    cache: ExpertCache
    content: bytes
    number: int = 0

    def plan(self, layer: int, expert: int, is_ahead: bool) -> dict[str, list[Job]]:
        return {
            tensor.part: [
                Job(read, is_ahead=is_ahead)
                for read in self.arena.slice_reads(tensor, expert, expert, 0, 1)
            ]
            for tensor in self.layout.layers[layer]
        }

    def route(self, layer: int, experts: Iterable[int]) -> tuple[set[int], set[int]]:
        """A pass through a layer: experts that were there, and that were read."""
        self.number += 1
        hits, missing, waiting = set(), set(), []
        for expert in experts:
            slot = self.cache.get((layer, expert))
            if slot is None:
                missing.add(expert)
            else:
                slot.needed_in, slot.is_ahead = self.number, False
                hits.add(expert)
                waiting += jobs_of(slot)
        loaded = self.cache.load(layer, sorted(missing), self.number) if missing else []
        jobs = [job for slot in loaded for job in jobs_of(slot)]
        self.lanes.submit(jobs)
        self.lanes.hurry(waiting)
        self.lanes.wait([*waiting, *jobs])
        return hits, missing

    def ahead(self, layer: int, expert: int) -> Slot | None:
        """Reads an expert ahead, as the pass that runs now would."""
        slot = self.cache.load_ahead(layer, expert, self.number)
        if slot is not None:
            self.lanes.submit(jobs_of(slot))
        return slot

    def is_there(self, layer: int, expert: int) -> bool:
        """Whether its bytes are in memory as in the file."""
        return all(
            bytes(self.arena.slice_view(t, expert))
            == self.content[t.offset + expert * t.slice_bytes :][: t.slice_bytes]
            for t in self.layout.layers[layer]
        )

    def cost_bytes(self, n_expert: int = 1) -> int:
        """Pages that so many experts of a layer touch at most."""
        return max(
            n_expert * sum((-(-(t.slice_bytes - 1) // PAGE) + 1) * PAGE for t in tensors)
            for tensors in self.layout.layers.values()
        )

    def held_bytes(self) -> int:
        """Pages of the experts that the cache says it has, counted one by one."""
        pages = {
            (t.name, page)
            for layer, tensors in self.layout.layers.items()
            for expert in range(tensors[0].n_expert)
            if (layer, expert) in self.cache
            for t in tensors
            for page in range(
                (t.offset % PAGE + expert * t.slice_bytes) // PAGE,
                (t.offset % PAGE + (expert + 1) * t.slice_bytes - 1) // PAGE + 1,
            )
        }
        return len(pages) * PAGE

    def memory_bytes(self) -> int:
        """What the system says is in memory."""
        return PAGE * sum(
            sum(present(self.arena.buffer(t).address, self.arena.buffer(t).size_bytes))
            for t in self.layout.by_name.values()
        )


def jobs_of(slot: Slot) -> list[Job]:
    return [job for part in slot.jobs.values() for job in part]


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
        pages = Pages(arena)
        made: list[Rig] = []
        cache = ExpertCache(
            found, pages, reading, lambda *one: made[0].plan(*one), budget_bytes, seams
        )
        made.append(Rig(found, arena, reading, pages, cache, content))
        if experts:
            cache.budget_bytes = made[0].cost_bytes(experts)
        return made[0]

    return rig_


Make = Callable[..., Rig]


class Held(Seams):
    """A lane begins to read a tensor of ``layer`` when it is let go."""

    def __init__(self, layer: int) -> None:
        self.prefix = f"blk.{layer}."
        self.holding, self.let_go = threading.Event(), threading.Event()

    def lane_reads(self, tensor: str, is_ahead: bool) -> None:
        if tensor.startswith(self.prefix):
            self.holding.set()
            assert self.let_go.wait(WAIT_S)


def test_what_was_read_is_not_read_again(rig: Make) -> None:
    one = rig()
    assert one.route(0, {1, 5}) == (set(), {1, 5})
    assert one.route(1, {1}) == (set(), {1})
    assert one.route(0, {1, 4, 5}) == ({1, 5}, {4})
    assert all(one.is_there(0, e) for e in (1, 4, 5))
    assert not one.is_there(0, 0)
    assert len(one.cache) == 4
    assert one.cache.n_evicted == 0
    assert one.cache.resident_bytes == one.held_bytes() == one.cache.report.peak_bytes


def test_the_least_recently_used_goes_first(rig: Make) -> None:
    one = rig(experts=3, slices=EVEN, n_layers=6)
    for layer in (0, 1, 2):
        one.route(layer, {0})
    one.route(0, {0})
    one.route(3, {0})
    assert [(n, 0) in one.cache for n in range(4)] == [True, False, True, True]
    one.route(4, {0})
    assert [(n, 0) in one.cache for n in range(5)] == [True, False, False, True, True]
    assert one.cache.report.evicted_by_layer == {1: 1, 2: 1}
    assert one.cache.n_evicted == 2


def test_looking_for_an_expert_makes_it_the_most_recent(rig: Make) -> None:
    one = rig(experts=2, slices=EVEN)
    one.route(0, {0})
    one.route(1, {0})
    assert one.cache.get((0, 0)) is not None
    one.route(2, {0})
    assert (0, 0) in one.cache
    assert (1, 0) not in one.cache


def test_what_this_pass_needs_is_not_evicted(rig: Make) -> None:
    one = rig(experts=4, slices=EVEN)
    one.route(0, {0, 2})
    one.route(1, {0, 2})
    # Two hits of layer 0, the oldest, and two misses: layer 1's go.
    assert one.route(0, {0, 2, 4, 6}) == ({0, 2}, {4, 6})
    assert all(one.is_there(0, e) for e in (0, 2, 4, 6))
    assert one.cache.report.evicted_by_layer == {1: 2}


def test_a_pass_wider_than_the_budget_is_kept_until_the_next(rig: Make) -> None:
    one = rig(PAGE)
    one.route(0, range(8))
    assert all(one.is_there(0, e) for e in range(8))
    assert one.cache.resident_bytes == one.held_bytes() > one.cache.budget_bytes
    one.route(1, {3})
    assert [key for key in ((n, e) for n in range(4) for e in range(8)) if key in one.cache] == [
        (1, 3)
    ]
    one.cache.resize(0)
    assert one.cache.resident_bytes == 0
    assert one.route(1, {3}) == (set(), {3})


@pytest.mark.skipif(not can_see_pages(), reason="this system does not tell of its pages")
def test_eviction_gives_memory_back(rig: Make) -> None:
    one = rig(experts=3)
    for layer in (0, 1, 2, 3, 0, 1):
        one.route(layer, {1, 3, 6})
        assert one.memory_bytes() == one.cache.resident_bytes <= one.cache.budget_bytes
    one.cache.resize(0)
    assert one.memory_bytes() == one.cache.resident_bytes == 0


# Read ahead.


def test_reading_ahead_evicts_the_old_but_nothing_that_this_pass_needs(rig: Make) -> None:
    one = rig(experts=3)
    one.route(0, {0})
    one.route(1, {0, 4})
    assert one.ahead(2, 5) is not None
    assert (0, 0) not in one.cache
    assert one.ahead(2, 1) is None  # layer 1's are needed, and 5 was read ahead
    assert {(1, 0), (1, 4), (2, 5)} == {
        (n, e) for n in range(4) for e in range(8) if (n, e) in one.cache
    }
    assert one.route(2, {5}) == ({5}, set())
    assert one.is_there(2, 5)


def test_reading_ahead_evicts_no_other_read_ahead(rig: Make) -> None:
    one = rig(experts=2)
    one.number = 1
    first, second = one.ahead(1, 0), one.ahead(1, 4)
    assert first is not None
    assert second is not None
    one.lanes.wait(jobs_of(first) + jobs_of(second))
    assert one.ahead(2, 0) is None
    assert one.cache.n_evicted == 0
    # A pass that needs the room takes it.
    assert one.route(3, {0, 4}) == (set(), {0, 4})
    assert one.cache.n_evicted == 2


def test_what_is_read_ahead_goes_after_what_was_used(rig: Make) -> None:
    one = rig(experts=3, slices=EVEN)
    one.number = 1
    slot = one.ahead(3, 0)
    assert slot is not None
    one.lanes.wait(jobs_of(slot))
    one.route(0, {0})
    one.route(1, {0})
    one.route(2, {0})  # the read-ahead is the oldest
    assert (3, 0) in one.cache
    assert (0, 0) not in one.cache
    slot.is_ahead = False  # its layer has come and did not ask
    one.route(0, {0})
    assert (3, 0) not in one.cache


def test_what_is_on_its_way_is_a_hit_and_is_waited_for(rig: Make) -> None:
    held = Held(1)
    one = rig(lanes=1, seams=held)
    one.number = 1
    slot = one.ahead(1, 3)
    assert slot is not None
    assert slot.is_in_flight()
    assert held.holding.wait(WAIT_S)
    threading.Timer(0.02, held.let_go.set).start()
    assert one.route(1, {3}) == ({3}, set())
    assert one.is_there(1, 3)
    assert not slot.is_in_flight()
    assert slot.jobs == {}


@pytest.mark.parametrize("asked_for", [True, False])
def test_room_is_made_of_reads_on_their_way_once_no_lane_writes(rig: Make, asked_for: bool) -> None:
    """Also of those whose layer has come and gone without asking for them."""
    held = Held(3)
    one = rig(experts=2, lanes=2, seams=held)
    one.number = 1
    slots = [one.ahead(3, 0), one.ahead(3, 4)]
    assert held.holding.wait(WAIT_S)
    for slot in slots:
        assert slot is not None
        slot.is_ahead = asked_for
    threading.Timer(0.05, held.let_go.set).start()
    assert one.route(0, {0, 4}) == (set(), {0, 4})
    assert held.let_go.is_set()
    assert (3, 0) not in one.cache
    assert (3, 4) not in one.cache
    assert one.cache.resident_bytes == one.held_bytes() <= one.cache.budget_bytes
    assert all(one.is_there(0, e) for e in (0, 4))


# What fails.


class Failing(Seams):
    def __init__(self) -> None:
        self.fails = True

    def lane_has_read(self, tensor: str, is_ahead: bool) -> None:
        if self.fails and "down" in tensor:
            raise ReadFault("planted")


def test_what_failed_is_read_again(rig: Make) -> None:
    failing = Failing()
    one = rig(seams=failing)
    with pytest.raises(ReadFault, match="planted"):
        one.route(0, {1})
    failing.fails = False
    assert one.cache.get((0, 1)) is None
    assert one.cache.resident_bytes == 0
    assert one.route(0, {1}) == (set(), {1})
    assert one.is_there(0, 1)
    assert one.route(0, {1}) == ({1}, set())


def test_after_an_error_what_failed_is_dropped_and_the_rest_is_kept(rig: Make) -> None:
    failing = Failing()
    failing.fails = False
    one = rig(seams=failing)
    one.route(0, {1, 2})
    failing.fails = True
    with pytest.raises(ReadFault, match="planted"):
        one.route(1, {4, 5})
    one.cache.drain()
    assert [key in one.cache for key in ((0, 1), (0, 2), (1, 4), (1, 5))] == [
        True, True, False, False,
    ]  # fmt: skip
    assert one.cache.resident_bytes == one.held_bytes()


def test_draining_takes_back_what_was_never_queued(rig: Make) -> None:
    one = rig()
    one.cache.load(0, [1, 2], 1)  # an error before they were submitted
    one.cache.drain()
    assert len(one.cache) == 0
    assert one.cache.resident_bytes == 0


# Another size.


def test_a_smaller_budget_holds_at_once(rig: Make) -> None:
    one = rig()
    for layer in range(4):
        one.route(layer, range(8))
    each = one.cost_bytes()
    for budget in (20 * each, 9 * each, 3 * each, PAGE, 0):
        one.cache.resize(budget)
        assert one.cache.resident_bytes == one.held_bytes() <= budget
    assert len(one.cache) == 0
    one.cache.resize(SIZE)
    one.route(2, {7})
    assert one.is_there(2, 7)


def test_a_smaller_budget_keeps_the_most_recent(rig: Make) -> None:
    one = rig()
    for layer in (3, 1, 0, 2):
        one.route(layer, {5})
    one.cache.resize(2 * one.cost_bytes())
    assert [(n, 5) in one.cache for n in range(4)] == [True, False, True, False]


def test_a_smaller_budget_takes_back_what_is_on_its_way(rig: Make) -> None:
    held = Held(0)
    one = rig(lanes=1, seams=held)
    for expert in range(4):
        one.ahead(0, expert)
    assert held.holding.wait(WAIT_S)
    threading.Timer(0.05, held.let_go.set).start()
    one.cache.resize(0)
    assert len(one.cache) == 0
    assert one.cache.resident_bytes == 0


def test_a_report_is_of_one_generation(rig: Make) -> None:
    one = rig(experts=2)
    one.route(0, {0, 4})
    one.route(1, {0, 4})
    assert one.cache.report.evicted_by_layer == {0: 2}
    one.cache.report = CacheReport(one.cache.budget_bytes)
    one.route(2, {0})
    assert one.cache.report.evicted_by_layer == {1: 1}
    assert 0 < one.cache.report.peak_bytes <= one.cache.budget_bytes
    assert one.cache.n_evicted == 3


# Whatever comes.


@pytest.mark.parametrize("slices", [UNEVEN, (PAGE, PAGE), (700, 900), (70_001,)], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_the_budget_holds_whatever_comes(rig: Make, seed: int, slices: tuple[int, ...]) -> None:
    """Random passes, read-ahead and resizing: bounded, counted right, and the right bytes."""
    chance = random.Random(f"{seed} {slices}")
    n_layers, n_expert, width = 4, 8, 3
    one = rig(slices=slices, n_layers=n_layers, n_expert=n_expert, lanes=3)
    smallest = one.cost_bytes(width)
    sizes = [smallest, smallest + PAGE, 2 * smallest, 4 * smallest]
    one.cache.budget_bytes = chance.choice(sizes[:2])
    unused: list[Slot] = []
    n_hits = 0
    for step in range(150):
        layer = step % n_layers
        routed = set(chance.sample(range(n_expert), chance.randint(1, width)))
        hits, missing = one.route(layer, routed)
        n_hits += len(hits)
        assert hits | missing == routed
        assert one.cache.resident_bytes == one.held_bytes() <= one.cache.budget_bytes
        assert all(one.is_there(layer, e) for e in routed)
        for slot in unused:
            if slot.layer == layer:
                slot.is_ahead = False
        unused = [slot for slot in unused if slot.layer != layer]
        for _ in range(chance.randrange(4)):
            following, expert = (layer + 1) % n_layers, chance.randrange(n_expert)
            if (following, expert) not in one.cache:
                slot = one.ahead(following, expert)
                unused += [slot] if slot is not None else []
            assert one.cache.resident_bytes == one.held_bytes() <= one.cache.budget_bytes
            assert all((layer, e) in one.cache for e in routed)
        if chance.random() < 0.1:
            one.cache.resize(chance.choice(sizes))
            assert one.cache.resident_bytes == one.held_bytes() <= one.cache.budget_bytes
    one.cache.drain()
    for layer in range(n_layers):
        for expert in range(n_expert):
            if (layer, expert) in one.cache:
                assert one.is_there(layer, expert)
    assert n_hits > 20
    assert one.cache.n_evicted > 20
    if can_see_pages():
        assert one.memory_bytes() <= one.cache.resident_bytes
