from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from sluice.errors import ReadFault
from sluice.seams import Seams
from sluice.streaming.cache import Entry
from sluice.streaming.pages import PagedMemory
from sluice.telemetry.metrics import CacheReport

from .parts import PAGE, SIZE, can_see_pages
from .rig import EVEN, UNEVEN, WAIT_S, Held, Rig

Make = Callable[..., Rig]


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


class Remembers(Seams):
    """Leaves what was evicted in the table."""

    def forgets(self, layer: int, expert: int) -> bool:
        return False


def test_what_is_gone_and_remembered_is_not_the_next_to_go(rig: Make) -> None:
    one = rig(experts=2, slices=EVEN, n_layers=6)
    one.cache._seams = Remembers()
    for layer in range(4):
        one.route(layer, {0})
    assert one.cache.report.evicted_by_layer == {0: 1, 1: 1}
    assert [(n, 0) in one.cache for n in range(4)] == [True] * 4


@pytest.mark.parametrize("kind", ["slots"])
def test_room_for_many_is_made_in_one_walk(rig: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries that may not go are old, too, and would be passed by for every one that goes."""
    one = rig(experts=16, slices=EVEN, n_layers=4)
    one.route(1, range(8))
    one.route(0, range(8))
    asked: list[int] = []

    def competes(layer: int, other: int) -> bool:
        asked.append(other)
        return layer % 2 == other % 2

    monkeypatch.setattr(one.memory, "competes", competes)
    one.route(2, range(8))
    assert one.cache.report.evicted_by_layer == {0: 8}
    assert len(asked) == 16


def test_looking_for_an_expert_makes_it_the_most_recent(rig: Make) -> None:
    one = rig(experts=2, slices=EVEN)
    one.route(0, {0})
    one.route(1, {0})
    assert one.cache.request(0, [0], one.number).n_hits == 1
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
        assert one.cache.resident_bytes <= one.cache.budget_bytes
        assert one.may_hold(one.memory_bytes())
    one.cache.resize(one.cost_bytes())
    assert one.may_hold(one.memory_bytes())
    one.cache.resize(0)
    assert one.memory_bytes() == one.cache.resident_bytes == 0


@pytest.mark.skipif(not can_see_pages(), reason="this system does not tell of its pages")
def test_a_pass_over_the_budget_gives_its_memory_back(rig: Make) -> None:
    one = rig(experts=2, slices=(16 * PAGE,))
    one.route(0, range(8))
    assert one.memory_bytes() > 2 * one.cost_bytes() + PAGE
    one.route(1, {3})
    assert one.is_there(1, 3)
    # Page by page, but that slots have a part of a page in common.
    assert one.memory_bytes() <= 2 * one.cost_bytes() + 8 * PAGE


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
    assert one.cache.request(0, [1], one.number + 1).missing == [1]
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
    one = rig(experts=30)
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
    one = rig(experts=4)
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


@pytest.mark.parametrize("kind", ["pages"])
def test_a_cache_that_held_all_begins_anew_when_it_shrinks(rig: Make) -> None:
    """Its pages may be huge: a part of one is not given back."""
    one = rig()
    for layer in range(4):
        one.route(layer, range(8))
    assert one.cache.resident_bytes == one.held_bytes()
    one.cache.resize(one.cost_bytes(4))
    assert len(one.cache) == one.cache.resident_bytes == 0
    assert one.cache.n_evicted == sum(one.cache.report.evicted_by_layer.values()) == 32
    if can_see_pages():
        assert one.memory_bytes() == 0
    for layer in range(4):
        assert one.route(layer, {1, 3, 6}) == (set(), {1, 3, 6})
        assert all(one.is_there(layer, e) for e in (1, 3, 6))
        assert one.cache.resident_bytes == one.held_bytes() <= one.cache.budget_bytes
        if can_see_pages():
            assert one.memory_bytes() == one.cache.resident_bytes
    # What is there when it grows stays there.
    one.cache.resize(SIZE)
    assert one.route(3, {1, 3, 6}) == ({1, 3, 6}, set())


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
    one.cache.resize(chance.choice(sizes[:2]))
    unused: list[Entry] = []
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
    if can_see_pages() and isinstance(one.memory, PagedMemory):
        assert one.memory_bytes() <= one.cache.resident_bytes
    elif can_see_pages():
        assert one.may_hold(one.memory_bytes())
