"""Slots: who stands where, what they hold after whatever came, and what they cannot hold."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sluice.config import Config
from sluice.errors import RequestError, SystemFault
from sluice.gguf.header import Header
from sluice.streaming.layout import ExpertLayout, ExpertTensor, expert_layout
from sluice.streaming.reader import CHUNK_BYTES, Channel, SliceReader
from sluice.streaming.slots import SlotMemory, can_hold, slot_memory

from .parts import PAGE, address_of, can_see_pages, layout, plan_of, present
from .rig import buffers

N_LAYERS, N_EXPERT = 3, 8
SLICE = 6 * 512
MIB = 1 << 20


def memory_of(
    found: ExpertLayout, budget_bytes: int, *, ubatch: int = 1, n_used: int = 1
) -> SlotMemory:
    return SlotMemory(
        found, plan_of(found, n_used), alignment=512, ubatch=ubatch, budget_bytes=budget_bytes
    )


def one_class(n_slots: int) -> tuple[SlotMemory, ExpertLayout]:
    """Layers of one class, with room for ``n_slots`` of their 24 experts."""
    found = layout((SLICE, 512), n_layers=N_LAYERS, n_expert=N_EXPERT)
    memory = memory_of(found, 0)
    memory.set_budget(n_slots * memory.pools[0].slot_bytes)
    return memory, found


def two_classes() -> ExpertLayout:
    """Layers 0 and 2 have larger slices than layers 1 and 3."""
    large, small = (layout((size,), n_layers=4, n_expert=N_EXPERT) for size in (SLICE, 1024))
    return dataclasses.replace(
        large, layers={n: (small if n % 2 else large).layers[n] for n in range(4)}
    )


def slots_of(memory: SlotMemory) -> dict[tuple[int, int], int]:
    """Slot by layer and expert."""
    return {
        (layer, expert): int(slot)
        for pool in memory.pools
        for layer, table in pool.table.items()
        for expert, slot in enumerate(table)
        if slot >= 0
    }


def mark(tensor: ExpertTensor, expert: int) -> bytes:
    return random.Random(f"{tensor.name} {expert}").randbytes(tensor.slice_bytes)


def test_every_expert_has_its_own_slot_where_all_fit() -> None:
    memory, _ = one_class(N_LAYERS * N_EXPERT)
    for layer, expert in ((2, 7), (0, 3), (1, 0)):
        memory.take(layer, expert)
    assert slots_of(memory) == {(2, 7): 23, (0, 3): 3, (1, 0): 8}
    ids, low, n = memory.ids(0, [3])
    assert (ids, low, n) == ([0], 3, 1)


def test_the_lowest_slot_is_taken_where_not_all_fit() -> None:
    memory, _ = one_class(N_LAYERS * N_EXPERT - 1)
    for expert in (5, 2, 7):
        memory.take(1, expert)
    assert slots_of(memory) == {(1, 5): 0, (1, 2): 1, (1, 7): 2}
    memory.give_back(1, 2)
    memory.give_back(1, 5)
    memory.take(0, 0)
    assert slots_of(memory) == {(0, 0): 0, (1, 7): 2}


def test_ids_are_counted_from_the_lowest_slot() -> None:
    memory, _ = one_class(20)
    for layer, expert in ((0, 0), (0, 1), (1, 6), (2, 2), (1, 3)):
        memory.take(layer, expert)
    ids, low, n = memory.ids(1, [6, 3, 3, 6, 6, 6])
    assert (low, n) == (2, 3)
    assert ids == [0, 2, 2, 0, 0, 0]
    with pytest.raises(SystemFault, match="layer 1: expert 4 has no slot in the cache"):
        memory.ids(1, [6, 4])


def test_an_expert_without_a_slot_has_no_bytes() -> None:
    memory, found = one_class(20)
    tensor = found.layers[1][0]
    with pytest.raises(SystemFault, match="layer 1: expert 4 has no slot"):
        memory.slice_view(tensor, 4)
    with pytest.raises(SystemFault, match="layer 1: expert 4 has no slot"):
        memory.slice_reads(tensor, 4, 4, 0, 512)
    memory.give_back(1, 4)  # a fault's second eviction of the same expert
    assert memory.resident_bytes == 0


def test_weights_of_a_matmul_are_where_the_slices_are() -> None:
    memory, found = one_class(20)
    for layer in range(N_LAYERS):
        for expert in (4, 1):
            memory.take(layer, expert)
    for (layer, expert), slot in slots_of(memory).items():
        _, low, _ = memory.ids(layer, [4, 1])
        for tensor in found.layers[layer]:
            at = memory.address(tensor, low) + (slot - low) * memory.stride(tensor)
            view = np.frombuffer(memory.slice_view(tensor, expert), np.uint8)
            assert at == view.ctypes.data
            assert (at - tensor.offset) % 512 == 0


@pytest.mark.parametrize("seed", range(6))
def test_what_is_there_stays_whatever_comes(seed: int) -> None:
    """Random comings, goings and budgets: nobody's bytes change, and no two share a slot."""
    chance = random.Random(seed)
    memory, found = one_class(0)
    pool = memory.pools[0]
    all_ = [(layer, expert) for layer in range(N_LAYERS) for expert in range(N_EXPERT)]
    held: list[tuple[int, int]] = []
    n_moved = 0
    for _ in range(400):
        if chance.random() < 0.1:
            n_slots = chance.choice([3, 7, 12, 23, 24, 24])
            before = slots_of(memory)
            memory.set_budget(n_slots * pool.slot_bytes)
            assert pool.n_slots == n_slots
            while memory.is_over(0):
                memory.give_back(*held.pop(chance.randrange(len(held))))
            memory.trim()
            after = slots_of(memory)
            n_moved += sum(before[key] != slot for key, slot in after.items())
            assert all(slot < n_slots for slot in after.values())
        elif held and (chance.random() < 0.4 or not memory.has_room(0, [0])):
            memory.give_back(*held.pop(chance.randrange(len(held))))
        else:
            free = [key for key in all_ if key not in held]
            if not free:
                continue
            layer, expert = chance.choice(free)
            memory.take(layer, expert)
            held.append((layer, expert))
            for tensor in found.layers[layer]:
                memory.slice_view(tensor, expert)[:] = mark(tensor, expert)
        slots = slots_of(memory)
        assert set(slots) == set(held)
        assert len(set(slots.values())) == len(held)
        assert memory.resident_bytes == len(held) * pool.slot_bytes <= memory.budget_bytes or (
            pool.n_slots == 0
        )
        for layer, expert in held:
            for tensor in found.layers[layer]:
                assert bytes(memory.slice_view(tensor, expert)) == mark(tensor, expert)
    assert n_moved > 5


@pytest.mark.skipif(not can_see_pages(), reason="this system does not tell of its pages")
@pytest.mark.parametrize("n_first", [N_LAYERS * N_EXPERT, 20])
def test_a_smaller_budget_gives_memory_back(n_first: int) -> None:
    found = layout((16 * PAGE,), n_layers=N_LAYERS, n_expert=N_EXPERT)
    memory = memory_of(found, 0)
    (pool,), (buffer,) = memory.pools, buffers(memory)
    memory.set_budget(n_first * pool.slot_bytes)
    kept = [(2, 7), (0, 1), (2, 6)]
    for layer, expert in (*((1, e) for e in range(8)), *kept, *((0, e) for e in (0, 2, 3))):
        memory.take(layer, expert)
        (tensor,) = found.layers[layer]
        memory.slice_view(tensor, expert)[:] = mark(tensor, expert)
    for key in list(slots_of(memory)):
        if key not in kept:
            memory.give_back(*key)
    memory.set_budget(3 * pool.slot_bytes)
    memory.trim()
    assert sum(present(buffer.address, buffer.size_bytes)) <= 3 * pool.slot_bytes // PAGE + 1
    for layer, expert in kept:
        (tensor,) = found.layers[layer]
        assert bytes(memory.slice_view(tensor, expert)) == mark(tensor, expert)
    # All of it again: who is here keeps the slot it has.
    memory.set_budget(N_LAYERS * N_EXPERT * pool.slot_bytes)
    memory.take(0, 0)
    assert len(set(slots_of(memory).values())) == 4


# Several classes.


def test_layers_of_the_same_sizes_share_a_pool() -> None:
    memory = memory_of(two_classes(), 0)
    assert [sorted(pool.layers) for pool in memory.pools] == [[0, 2], [1, 3]]
    assert memory.competes(0, 2)
    assert not memory.competes(0, 1)
    memory.set_budget(1 << 20)
    memory.take(1, 0)
    memory.take(0, 0)
    assert memory.resident_bytes == sum(pool.slot_bytes for pool in memory.pools)


@pytest.mark.parametrize(("ubatch", "n_used"), [(1, 2), (3, 2), (64, 1)])
def test_a_budget_is_shared_out_whole_and_nobody_goes_without(ubatch: int, n_used: int) -> None:
    memory = memory_of(two_classes(), 0, ubatch=ubatch, n_used=n_used)
    needed = min(max(2 * n_used, ubatch * n_used), N_EXPERT)
    each = [pool.slot_bytes for pool in memory.pools]
    whole = 2 * N_EXPERT * sum(each)
    assert memory.needed_bytes == needed * sum(each)
    for budget in range(memory.needed_bytes, whole, 700):
        memory.set_budget(budget)
        shares = [pool.n_slots for pool in memory.pools]
        used = sum(n * size for n, size in zip(shares, each, strict=True))
        assert all(needed <= n <= 2 * N_EXPERT for n in shares)
        assert budget - max(each) < used <= budget
        if budget > 2 * memory.needed_bytes:
            assert abs(shares[0] - shares[1]) <= 5
    memory.set_budget(whole)
    assert [pool.n_slots for pool in memory.pools] == [2 * N_EXPERT] * 2
    memory.set_budget(0)
    assert [pool.n_slots for pool in memory.pools] == [0, 0]


def test_the_heads_experts_count_in_a_pass_and_not_in_a_token() -> None:
    found = dataclasses.replace(layout((SLICE,), n_layers=4), n_trunk=3)
    memory = memory_of(found, 0, ubatch=1, n_used=2)
    assert memory.needed_bytes == 3 * 2 * memory.pools[0].slot_bytes


# What they cannot hold.


def chosen(
    found: ExpertLayout, budget_bytes: int, others: frozenset[str] = frozenset(), **changes: object
) -> SlotMemory | None:
    config = Config(model="m.gguf", ubatch=4, **{"cache_memory": "auto"} | changes)  # type: ignore[arg-type]
    return slot_memory(
        config, found, plan_of(found, 2), others=others, alignment=512, budget_bytes=budget_bytes
    )


def test_slices_that_begin_elsewhere_in_a_sector_are_not_for_slots() -> None:
    odd = layout((1024, 700))
    assert can_hold(odd, 1)
    assert can_hold(layout((1024, 512)), 512)
    assert not can_hold(layout((1024, 512)), 4096)
    assert chosen(odd, MIB) is None
    with pytest.raises(RequestError) as refused:
        chosen(odd, MIB, cache_memory="slots")
    assert str(refused.value) == (
        "--cache-memory slots: m.gguf has slices that are no multiple of 512 bytes;"
        " use --cache-memory auto or pages"
    )


def test_weights_that_are_used_in_another_way_are_not_for_slots() -> None:
    found = layout((1024,))
    assert chosen(found, MIB) is not None
    assert chosen(found, MIB, cache_memory="pages") is None
    assert chosen(found, MIB, frozenset({"w"})) is None
    with pytest.raises(RequestError, match=r"slots: m\.gguf has another use of w than by one mat"):
        chosen(found, MIB, frozenset({"w"}), cache_memory="slots")


def test_a_budget_that_classes_cannot_share_is_not_for_slots() -> None:
    found = two_classes()
    needed = memory_of(found, 0, ubatch=4, n_used=2).needed_bytes
    assert chosen(found, needed) is not None
    assert chosen(found, needed - 1) is None
    assert chosen(found, needed - 1, force_cache=True) is not None
    with pytest.raises(RequestError, match="2 sizes, whose slots need --cache-mb 1; use"):
        chosen(found, needed - 1, cache_memory="slots")
    memory = chosen(found, needed)
    assert memory is not None
    memory.check_budget(needed)
    with pytest.raises(RequestError, match="--cache-mb 0: the cache has experts of 2 sizes"):
        memory.check_budget(needed - 1)


# Reads.


def test_large_slices_are_read_into_whole_pages() -> None:
    large = ExpertTensor("t", 0, "up", 1234, 256 << 10, 3)
    small = ExpertTensor("s", 0, "down", 1234, SLICE, 3)
    memory = memory_of(ExpertLayout({0: (large, small)}, 1), MIB * 8)
    for expert in (2, 0, 1):
        memory.take(0, expert)
        for read in memory.slice_reads(large, expert, expert, 0, 512):
            assert address_of(read.window) % PAGE == 0
    assert memory.stride(large) == large.slice_bytes + PAGE
    assert memory.stride(small) == SLICE + 512  # a page for each would be too much


@pytest.mark.parametrize("alignment", [1, 512])
def test_a_read_stays_in_its_slot(alignment: int) -> None:
    tensor = ExpertTensor("t", 0, "up", 1234, CHUNK_BYTES + 1024, 2)
    found = ExpertLayout({0: (tensor,)}, 1)
    memory = memory_of(found, MIB * 64)
    buffer, stride = buffers(memory)[0], memory.stride(tensor)
    for expert in (0, 1):
        memory.take(0, expert)
        reads = memory.slice_reads(tensor, expert, expert, 3, alignment)
        assert len(reads) == 2
        for read in reads:
            at = address_of(read.window) - buffer.address
            assert read.address == buffer.address + at
            assert expert * stride <= at
            assert at + len(read.window) <= (expert + 1) * stride
            assert (at - read.offset) % alignment == 0
            assert read.shard == 3
            assert read.aligned is (alignment > 1)


@pytest.mark.parametrize("is_direct", [False, True])
def test_reads_leave_the_files_own_bytes(
    model: Path, header: Header, channel: Callable[[SliceReader], Channel], is_direct: bool
) -> None:
    raw = model.read_bytes()
    found = expert_layout(header, with_head=True)
    reader = SliceReader([model], direct=is_direct, warn=lambda _text: None)
    one = channel(reader)
    memory = memory_of(found, 8 * MIB)
    taken = [(layer, expert) for layer in found.layers for expert in (6, 0, 3)]
    random.Random(1).shuffle(taken)
    for layer, expert in taken:
        memory.take(layer, expert)
        for tensor in found.layers[layer]:
            for read in memory.slice_reads(tensor, expert, expert, 0, reader.alignment):
                one.read(read)
    for layer, expert in taken:
        for tensor in found.layers[layer]:
            start = tensor.offset + expert * tensor.slice_bytes
            right = raw[start : start + tensor.slice_bytes]
            assert bytes(memory.slice_view(tensor, expert)) == right
