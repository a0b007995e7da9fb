from __future__ import annotations

import random

import pytest

from sluice.streaming.arena import Arena
from sluice.streaming.layout import ExpertLayout, ExpertTensor
from sluice.streaming.pages import Pages

from .parts import PAGE, can_see_pages, layout, present

needs_pagemap = pytest.mark.skipif(
    not can_see_pages(), reason="this system does not tell of its pages"
)
N_EXPERT = 8


class Rig:
    """One tensor of eight slices in memory, and pages that are counted twice."""

    def __init__(
        self, slice_bytes: int, *, first: int = 1234, granule: int = PAGE, alignment: int = 0
    ) -> None:
        experts = layout([slice_bytes], first=first, n_expert=N_EXPERT)
        (self.tensor,) = experts.layers[0]
        self.arena = Arena(experts, alignment or granule, granule, shared=False)
        self.first = self.arena.first_byte(self.tensor)
        self.pages = Pages(self.arena)
        self.granule = granule
        self.buffer = self.arena.buffer(self.tensor)

    def fill(self, expert: int) -> None:
        """What a lane does: whole windows, the neighbours' ends included."""
        touched = self.of(expert)
        self.buffer.bytes[touched.start * self.granule : touched.stop * self.granule] = 7

    def of(self, expert: int) -> range:
        """The pages that a slice touches, by the page."""
        begin = self.first + expert * self.tensor.slice_bytes
        return range(
            begin // self.granule, (begin + self.tensor.slice_bytes - 1) // self.granule + 1
        )

    def union(self, experts: set[int]) -> set[int]:
        return {page for expert in experts for page in self.of(expert)}

    def there(self) -> set[int]:
        """Granules of which any page is in memory, as the system says."""
        found = present(self.buffer.address, self.buffer.size_bytes)
        per = self.granule // PAGE
        return {page // per for page, is_there in enumerate(found) if is_there}


SHAPES = {
    "smaller than a page": Rig(1000),
    "smaller than a page, a page's edge inside": Rig(100, first=4000),
    "a page": Rig(PAGE),
    "a page, at a page": Rig(PAGE, first=3 * PAGE),
    "pages, at a page": Rig(3 * PAGE, first=PAGE),
    "pages and a bit": Rig(2 * PAGE + 512, first=PAGE),
    "odd": Rig(70_001),
    "smaller than a large block": Rig(5000, granule=16 * PAGE),
    "pages, in a file of small blocks": Rig(3 * PAGE, first=5000, alignment=512),
    "pages and a bit, in a file of small blocks": Rig(2 * PAGE + 512, first=5000, alignment=512),
    "large blocks": Rig(70_001, granule=4 * PAGE),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_pages_are_counted_once_however_many_slices_touch_them(shape: str) -> None:
    rig = SHAPES[shape]
    chance, resident = random.Random(shape), set[int]()
    for _ in range(300):
        expert = chance.randrange(N_EXPERT)
        cost = len(rig.union({expert}) - rig.union(resident)) * rig.granule
        if expert in resident:
            resident.remove(expert)
            rig.pages.give_back(rig.tensor, expert)
        else:
            assert rig.pages.cost_bytes(rig.tensor, expert) == cost
            resident.add(expert)
            rig.pages.take(rig.tensor, expert)
        assert rig.pages.resident_bytes == len(rig.union(resident)) * rig.granule
    for expert in resident:
        rig.pages.give_back(rig.tensor, expert)
    assert rig.pages.resident_bytes == 0


@needs_pagemap
@pytest.mark.parametrize("shape", SHAPES)
def test_memory_is_really_given_back_and_no_neighbours(shape: str) -> None:
    rig = SHAPES[shape]
    chance, resident = random.Random(shape), set[int]()
    for _ in range(100):
        expert = chance.randrange(N_EXPERT)
        if expert in resident:
            resident.remove(expert)
            rig.pages.give_back(rig.tensor, expert)
        else:
            resident.add(expert)
            rig.pages.take(rig.tensor, expert)
            rig.fill(expert)
        assert rig.there() == rig.union(resident)
        for one in resident:
            assert set(rig.arena.slice_view(rig.tensor, one)) == {7}
    for expert in resident:
        rig.pages.give_back(rig.tensor, expert)
    assert rig.there() == set()


def test_what_was_given_back_reads_as_zeros() -> None:
    rig = Rig(3 * PAGE, first=PAGE)
    for expert in (0, 1, 2):
        rig.pages.take(rig.tensor, expert)
        rig.fill(expert)
    rig.pages.give_back(rig.tensor, 1)
    assert [set(rig.arena.slice_view(rig.tensor, e)) for e in (0, 1, 2)] == [{7}, {0}, {7}]


def test_a_page_between_two_slices_stays_until_both_have_gone() -> None:
    rig = Rig(PAGE + 100, first=PAGE)
    for expert in (0, 1):
        rig.pages.take(rig.tensor, expert)
        rig.fill(expert)
    assert rig.pages.resident_bytes == 3 * PAGE
    rig.pages.give_back(rig.tensor, 0)
    assert rig.pages.resident_bytes == 2 * PAGE
    assert set(rig.arena.slice_view(rig.tensor, 1)) == {7}
    assert set(rig.arena.slice_view(rig.tensor, 0)) == {0, 7}  # the tail is the neighbour's page
    rig.pages.give_back(rig.tensor, 1)
    assert set(rig.arena.slice_view(rig.tensor, 0)) == {0}


def test_a_planted_fault_drops_the_neighbours_page() -> None:
    rig = Rig(PAGE + 100, first=PAGE)
    for expert in (0, 1):
        rig.pages.take(rig.tensor, expert)
        rig.fill(expert)
    rig.pages.give_back(rig.tensor, 0, spare_shared=False)
    assert set(rig.arena.slice_view(rig.tensor, 1)) == {0, 7}


def test_tensors_are_counted_apart() -> None:
    experts = layout([5000, 3000], n_layers=2)
    arena = Arena(experts, PAGE, PAGE, shared=False)
    pages = Pages(arena)
    for tensor in experts.by_name.values():
        before = pages.resident_bytes
        cost = pages.cost_bytes(tensor, 3)
        assert cost > 0
        pages.take(tensor, 3)
        assert pages.resident_bytes == before + cost
        assert pages.cost_bytes(tensor, 3) == 0


def test_many_slices_may_share_one_page() -> None:
    tensor = ExpertTensor("t", 0, "up", 0, 8, 256)
    arena = Arena(ExpertLayout({0: (tensor,)}, 1), PAGE, PAGE, shared=False)
    pages = Pages(arena)
    for expert in range(256):
        pages.take(tensor, expert)
        assert pages.resident_bytes == PAGE
    for expert in range(256):
        assert pages.resident_bytes == PAGE
        pages.give_back(tensor, expert)
    assert pages.resident_bytes == 0
