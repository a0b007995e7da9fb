"""What is read ahead into the cache, and what makes room for what."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from .rig import EVEN, WAIT_S, Held, Rig, jobs_of

Make = Callable[..., Rig]


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
