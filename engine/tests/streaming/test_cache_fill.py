"""A cache that is filled before anything is asked for, and layers that are in it whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluice.errors import ReadFault
from sluice.seams import Seams

from .parts import SIZE
from .rig import EVEN, Rig, jobs_of

N_LAYERS, N_EXPERT = 4, 8
ALL = dict.fromkeys(range(N_LAYERS), N_EXPERT)
Make = Callable[..., Rig]


def nothing(_done: int, _total: int) -> None:
    pass


def held(one: Rig) -> dict[int, list[int]]:
    """Experts in the cache, by layer."""
    return {n: [e for e in range(N_EXPERT) if (n, e) in one.cache] for n in range(N_LAYERS)}


class Failing(Seams):
    """What is read of one tensor fails."""

    def __init__(self, tensor: str) -> None:
        self.tensor = tensor

    def lane_has_read(self, tensor: str, is_ahead: bool) -> None:
        if tensor == self.tensor:
            raise ReadFault("planted")


def test_everything_is_read_where_everything_goes_in(rig: Make) -> None:
    one = rig()
    one.cache.fill(ALL, nothing)
    assert len(one.cache) == N_LAYERS * N_EXPERT
    assert all(one.is_there(n, e) for n in range(N_LAYERS) for e in range(N_EXPERT))
    assert one.cache.resident_bytes == one.held_bytes() == one.cache.report.peak_bytes
    for layer in range(N_LAYERS):
        assert one.cache.is_whole(layer, N_EXPERT)
        assert one.route(layer, range(N_EXPERT)) == (set(range(N_EXPERT)), set())
    assert one.cache.n_evicted == 0


@pytest.mark.parametrize("experts", [1, 10, 15])
def test_every_layer_has_as_many_where_not_all_go_in(rig: Make, experts: int) -> None:
    one = rig(experts=experts, slices=EVEN)
    one.cache.fill(ALL, nothing)
    found = held(one)
    n_each = [len(experts_) for experts_ in found.values()]
    assert sum(n_each) >= experts
    assert max(n_each) - min(n_each) <= 1
    assert all(experts_ == list(range(len(experts_))) for experts_ in found.values())
    assert all(one.is_there(n, e) for n, experts_ in found.items() for e in experts_)
    assert one.cache.resident_bytes == one.held_bytes() <= one.cache.budget_bytes
    assert not any(one.memory.has_room(n, [n_each[n]]) for n in range(N_LAYERS))
    # What fills is the first to go.
    one.route(2, {7})
    assert one.is_there(2, 7)
    assert one.cache.n_evicted > 0


def test_filling_reads_nothing_twice_and_evicts_nothing(rig: Make) -> None:
    one = rig(experts=6, slices=EVEN)
    one.route(3, {7, 2})
    before = [one.cache._entries[3, e] for e in (2, 7)]
    one.cache.fill(ALL, nothing)
    assert [one.cache._entries[3, e] for e in (2, 7)] == before
    assert one.cache.n_evicted == 0
    n_here = len(one.cache)
    one.cache.fill(ALL, nothing)
    assert len(one.cache) == n_here


def test_layers_may_have_other_numbers_of_experts(rig: Make) -> None:
    one = rig()
    one.cache.fill({0: 3, 2: 8}, nothing)
    assert held(one) == {0: [0, 1, 2], 1: [], 2: list(range(8)), 3: []}


def test_nothing_is_filled_with_nothing(rig: Make) -> None:
    steps: list[tuple[int, int]] = []
    one = rig()
    one.cache.fill({}, lambda *step: steps.append(step))
    assert steps == [(0, 0)]


def test_it_says_how_far_it_is(rig: Make) -> None:
    steps: list[tuple[int, int]] = []
    one = rig(n_expert=24)
    one.cache.fill(dict.fromkeys(range(N_LAYERS), 24), lambda *step: steps.append(step))
    assert {total for _, total in steps} == {96}
    assert steps == sorted(steps)
    assert 0 < steps[0][0] < 96 == steps[-1][0]


def test_a_read_that_fails_is_raised(rig: Make) -> None:
    one = rig(seams=Failing("blk.2.ffn_down_exps.weight"))
    with pytest.raises(ReadFault, match="planted"):
        one.cache.fill(ALL, nothing)
    assert not one.cache.is_whole(2, N_EXPERT)
    one.cache.drain()
    assert held(one)[2] == []


# Whole layers.


def test_a_layer_is_whole_once_every_expert_is_here(rig: Make) -> None:
    one = rig()
    assert not one.cache.is_whole(1, N_EXPERT)
    one.route(1, range(N_EXPERT - 1))
    assert not one.cache.is_whole(1, N_EXPERT)
    one.route(1, {N_EXPERT - 1})
    assert one.cache.is_whole(1, N_EXPERT)
    assert not one.cache.is_whole(0, N_EXPERT)
    one.cache.drop(one.cache._entries[1, 3])
    assert not one.cache.is_whole(1, N_EXPERT)
    one.route(1, {3})
    assert one.cache.is_whole(1, N_EXPERT)


def test_a_layer_is_not_whole_before_all_of_it_is_read(rig: Make) -> None:
    one = rig()
    one.route(1, range(N_EXPERT - 1))
    (entry,) = one.cache.load(1, [N_EXPERT - 1], 9)
    assert not one.cache.is_whole(1, N_EXPERT)
    first, *rest = jobs_of(entry)
    one.lanes.submit([first])
    one.lanes.wait([first])
    assert not one.cache.is_whole(1, N_EXPERT)
    one.lanes.submit(rest)
    one.lanes.wait(rest)
    assert one.cache.is_whole(1, N_EXPERT)


def test_a_layer_with_a_read_that_failed_is_not_whole(rig: Make) -> None:
    failing = Failing("")
    one = rig(seams=failing)
    one.route(1, range(N_EXPERT - 1))
    failing.tensor = "blk.1.ffn_down_exps.weight"
    with pytest.raises(ReadFault, match="planted"):
        one.route(1, {N_EXPERT - 1})
    assert (1, N_EXPERT - 1) in one.cache
    assert not one.cache.is_whole(1, N_EXPERT)
    failing.tensor = ""
    assert one.route(1, range(N_EXPERT)) == (set(range(N_EXPERT - 1)), {N_EXPERT - 1})
    assert one.cache.is_whole(1, N_EXPERT)


def test_no_layer_is_whole_in_a_cache_that_may_evict(rig: Make) -> None:
    one = rig(experts=N_LAYERS * N_EXPERT)
    one.cache.fill(ALL, nothing)
    one.cache.resize(one.cache.resident_bytes - 1)
    one.route(1, range(N_EXPERT))
    assert not one.cache.is_whole(1, N_EXPERT)
    assert not one.memory.keeps_all(1)


def test_a_layer_out_of_order_is_not_whole(rig: Make, kind: str) -> None:
    one = rig(experts=2 * N_EXPERT)
    one.route(1, range(N_EXPERT))  # in the lowest slots, which are layer 0's own
    one.cache.resize(SIZE)
    one.route(0, range(N_EXPERT))
    one.route(3, range(N_EXPERT))
    whole = [one.cache.is_whole(n, N_EXPERT) for n in range(N_LAYERS)]
    in_place = kind == "pages"
    assert whole == [in_place, in_place, False, True]
    assert all(one.is_there(n, e) for n in (0, 1, 3) for e in range(N_EXPERT))


# What a request finds.


def test_a_request_counts_what_was_read_ahead_once(rig: Make) -> None:
    one = rig()
    one.route(0, {0})
    slots = [one.ahead(1, e) for e in (2, 5)]
    one.lanes.wait([job for slot in slots if slot is not None for job in jobs_of(slot)])
    assert one.cache.absent(1, [1, 2, 5, 6]) == [1, 6]
    found = one.cache.request(1, [1, 2, 5, 6], 2)
    assert (found.missing, found.in_flight) == ([1, 6], [])
    assert (found.n_hits, found.n_ahead, found.n_ahead_awaited) == (2, 2, 0)
    again = one.cache.request(1, [2, 5], 3)
    assert (again.n_hits, again.n_ahead) == (2, 0)
    # To look is not to use.
    order = list(one.cache._entries)
    one.cache.absent(0, [0])
    assert list(one.cache._entries) == order


def test_a_request_says_what_is_on_its_way(rig: Make) -> None:
    one = rig()
    slot = one.cache.load_ahead(1, 4, 1)  # not submitted
    found = one.cache.request(1, [4], 1)
    assert found.in_flight == [slot]
    assert (found.n_hits, found.n_ahead, found.n_ahead_awaited) == (1, 1, 1)
    assert slot is not None
    one.lanes.submit(jobs_of(slot))
    one.lanes.wait(jobs_of(slot))
    assert one.cache.request(1, [4], 2).in_flight == []
