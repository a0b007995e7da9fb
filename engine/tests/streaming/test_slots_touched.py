"""Slots: layers that stand in order, and which memory a read may count on to be there."""

from __future__ import annotations

import random

import pytest

from sluice.streaming.layout import ExpertLayout
from sluice.streaming.slots import SlotMemory

from .parts import PAGE, can_see_pages, layout, plan_of, present
from .rig import buffers
from .test_slots import N_EXPERT, N_LAYERS, mark, memory_of, one_class, two_classes


def test_a_layer_is_kept_whole_only_in_order_and_with_room_for_all() -> None:
    memory, _ = one_class(N_LAYERS * N_EXPERT)
    assert [memory.own(layer) for layer in range(N_LAYERS)] == [(0, 8), (8, 8), (16, 8)]
    for expert in (7, 2, 0, 1, 3, 4, 5):
        memory.take(1, expert)
    assert not memory.keeps_all(1)
    memory.take(1, 6)
    assert memory.keeps_all(1)
    assert not memory.keeps_all(0)
    memory.give_back(1, 3)
    assert not memory.keeps_all(1)
    memory.take(1, 3)
    assert memory.keeps_all(1)
    memory.set_budget(memory.budget_bytes - 1)
    assert not memory.keeps_all(1)


def test_a_layer_that_came_in_another_order_is_not_kept_whole() -> None:
    memory, _ = one_class(N_LAYERS * N_EXPERT - 1)
    for expert in reversed(range(N_EXPERT)):
        memory.take(0, expert)
    memory.set_budget(N_LAYERS * N_EXPERT * memory.pools[0].slot_bytes)
    assert sorted(memory.pools[0].table[0]) == list(range(N_EXPERT))
    assert not memory.keeps_all(0)


def test_a_class_that_has_room_keeps_its_layers_whatever_another_has() -> None:
    found = two_classes()
    memory = memory_of(found, 0)
    large, small = memory.pools
    small.n_slots, large.n_slots = small.n_experts, large.n_experts - 1
    for layer in range(4):
        for expert in range(N_EXPERT):
            if (layer, expert) != (2, 7):
                memory.take(layer, expert)
    assert [memory.keeps_all(layer) for layer in range(4)] == [False, True, False, True]
    assert memory.own(3) == (8, 8)


def is_fresh(memory: SlotMemory, found: ExpertLayout, layer: int, expert: int) -> bool:
    """Whether a read of the expert goes to memory that may not be there."""
    said = {
        read.is_fresh
        for tensor in found.layers[layer]
        for read in memory.slice_reads(tensor, expert, expert, 0, 1)
    }
    assert len(said) == 1
    return said.pop()


def test_a_slot_is_fresh_until_it_was_used_and_again_when_it_was_given_back() -> None:
    memory, found = one_class(10)
    pool = memory.pools[0]
    memory.take(0, 0)
    assert is_fresh(memory, found, 0, 0)
    memory.give_back(0, 0)
    memory.take(1, 5)
    assert memory.pools[0].table[1][5] == 0
    assert not is_fresh(memory, found, 1, 5)
    memory.take(2, 2)
    assert is_fresh(memory, found, 2, 2)
    assert bytes(pool.touched) == b"\1" + bytes(23)
    # Over the budget: what goes, goes with its memory.
    memory.set_budget(pool.slot_bytes)
    memory.give_back(1, 5)
    assert not any(pool.touched)
    memory.trim()  # what stood in slot 1 is copied to slot 0
    assert pool.table[2][2] == 0
    assert bytes(pool.touched) == b"\1" + bytes(23)
    memory.set_budget(10 * pool.slot_bytes)
    memory.take(0, 3)
    assert is_fresh(memory, found, 0, 3)
    assert not is_fresh(memory, found, 2, 2)


@pytest.mark.skipif(not can_see_pages(), reason="this system does not tell of its pages")
@pytest.mark.parametrize("seed", range(3))
def test_memory_that_is_called_touched_is_there(seed: int) -> None:
    chance = random.Random(seed)
    found = layout((2 * PAGE,), n_layers=N_LAYERS, n_expert=N_EXPERT, first=0)
    memory = SlotMemory(found, plan_of(found), alignment=PAGE, ubatch=1, budget_bytes=0)
    (pool,), (buffer,) = memory.pools, buffers(memory)
    held: list[tuple[int, int]] = []
    n_touched = 0
    for _ in range(200):
        if chance.random() < 0.1:
            memory.set_budget(chance.choice([3, 9, 24]) * pool.slot_bytes)
            while memory.is_over(0):
                memory.give_back(*held.pop(chance.randrange(len(held))))
            memory.trim()
        elif held and (chance.random() < 0.4 or not memory.has_room(0, [0])):
            memory.give_back(*held.pop(chance.randrange(len(held))))
        elif memory.has_room(0, [0]):
            free = [(n, e) for n in range(N_LAYERS) for e in range(N_EXPERT) if (n, e) not in held]
            layer, expert = chance.choice(free)
            memory.take(layer, expert)
            held.append((layer, expert))
            (tensor,) = found.layers[layer]
            memory.slice_view(tensor, expert)[:] = mark(tensor, expert)
        for slot in range(pool.n_experts):
            if pool.touched[slot]:
                n_touched += 1
                assert slot < pool.n_slots
                at = buffer.address + slot * memory.stride(found.layers[0][0])
                assert all(present(at, 2 * PAGE))
    assert n_touched > 100
