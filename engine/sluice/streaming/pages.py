"""Which pages of the cached experts are in memory, counted, and given back when none needs them.

Slices are not multiples of a page, so neighbours share one: a page is given back when no
resident slice touches it.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sluice.streaming.arena import Arena
from sluice.streaming.layout import ExpertLayout, ExpertTensor
from sluice.streaming.reader import Read


class Pages:
    """Counts the resident slices on every page of an arena whose tensors have their own ranges.

    "Page" is the arena's granule, which is the system's page but for file systems with larger
    blocks.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._page_bytes = arena.granule_bytes
        self._users: dict[str, npt.NDArray[np.uint16]] = {}
        self.resident_bytes = 0

    def whole_bytes(self, tensor: ExpertTensor) -> int:
        """What all slices of ``tensor`` take."""
        end = self._arena.first_byte(tensor) + tensor.size_bytes
        return -(-end // self._page_bytes) * self._page_bytes

    def cost_bytes(self, tensor: ExpertTensor, expert: int) -> int:
        """What :meth:`take` would add."""
        users = self._span(tensor, expert)
        return int(users.size - np.count_nonzero(users)) * self._page_bytes

    def take(self, tensor: ExpertTensor, expert: int) -> None:
        """A slice comes into memory."""
        users = self._span(tensor, expert)
        self.resident_bytes += int(users.size - np.count_nonzero(users)) * self._page_bytes
        users += 1

    def give_back(self, tensor: ExpertTensor, expert: int, *, spare_shared: bool = True) -> None:
        """A slice leaves memory, and with it every page that it had to itself.

        ``spare_shared`` is False in tests only: the pages of neighbours go, too.
        """
        first, last = self._bounds(tensor, expert)
        users = self._of(tensor)[first:last]
        users -= 1
        unused = users == 0
        # Only the first and the last page can be a neighbour's, too.
        begin = first + (0 if unused[0] else 1)
        end = last - (0 if unused[-1] or last - first == 1 else 1)
        self.resident_bytes -= int(np.count_nonzero(unused)) * self._page_bytes
        if not spare_shared:
            begin, end = first, last
        if end > begin:
            buffer = self._arena.buffer(tensor)
            buffer.memory.madvise(
                mmap.MADV_DONTNEED,
                buffer.start + begin * self._page_bytes,
                (end - begin) * self._page_bytes,
            )

    def use_huge_pages(self) -> None:
        """From now on nothing is given back until :meth:`empty`."""
        self._arena.use_huge_pages()

    @property
    def has_huge_pages(self) -> bool:
        """Whether giving back a slice would leave most of its page in memory."""
        return self._arena.has_huge_pages

    def empty(self) -> None:
        """Give everything back; nothing may be writing."""
        self._arena.empty()
        self._users.clear()
        self.resident_bytes = 0

    def _span(self, tensor: ExpertTensor, expert: int) -> npt.NDArray[np.uint16]:
        first, last = self._bounds(tensor, expert)
        return self._of(tensor)[first:last]

    def _bounds(self, tensor: ExpertTensor, expert: int) -> tuple[int, int]:
        start = self._arena.first_byte(tensor) + expert * tensor.slice_bytes
        return start // self._page_bytes, -(-(start + tensor.slice_bytes) // self._page_bytes)

    def _of(self, tensor: ExpertTensor) -> npt.NDArray[np.uint16]:
        users = self._users.get(tensor.name)
        if users is None:
            n_pages = self._arena.buffer(tensor).size_bytes // self._page_bytes
            users = self._users[tensor.name] = np.zeros(n_pages, np.uint16)
        return users


class PagedMemory:
    """The memory of an :class:`ExpertCache`, in place: every expert has an address of its own.

    For layouts that slots cannot hold (see :mod:`sluice.streaming.slots`).

    Args:
        layout: what is cached.
        arena: with a range a tensor.
        budget_bytes: of pages.
    """

    def __init__(self, layout: ExpertLayout, arena: Arena, budget_bytes: int) -> None:
        self.pages = Pages(arena)
        self.budget_bytes = budget_bytes
        self._layout = layout
        self._arena = arena
        self._whole_bytes = sum(self.pages.whole_bytes(t) for t in layout.by_name.values())
        page = arena.granule_bytes
        self._bytes_of = {  # pages of an expert that nobody else has a part of, and all it touches
            layer: (
                sum(max(t.slice_bytes // page - 1, 0) for t in tensors) * page,
                sum(-(-(t.slice_bytes - 1) // page) + 1 for t in tensors) * page,
            )
            for layer, tensors in layout.layers.items()
        }
        self.trim()

    @property
    def resident_bytes(self) -> int:
        """Pages in memory, those on their way counted."""
        return self.pages.resident_bytes

    def has_room(self, layer: int, experts: Sequence[int]) -> bool:
        """Whether ``experts``, none of them here, fit beside what is here."""
        room = self.budget_bytes - self.resident_bytes
        least, most = self._bytes_of[layer]
        if len(experts) * most <= room:
            return True
        if len(experts) * least > room:
            return False
        tensors = self._layout.layers[layer]
        return sum(self.pages.cost_bytes(t, e) for e in experts for t in tensors) <= room

    def competes(self, layer: int, other: int) -> bool:
        """Whether evicting from ``other`` makes room for ``layer``: always."""
        return True

    def is_over(self, layer: int) -> bool:
        """Whether something has to go."""
        return self.resident_bytes > self.budget_bytes

    def keeps_all(self, layer: int) -> bool:
        """See :meth:`CacheMemory.keeps_all`."""
        return self.budget_bytes >= self._whole_bytes

    def take(self, layer: int, expert: int) -> None:
        """An expert comes into memory."""
        for tensor in self._layout.layers[layer]:
            self.pages.take(tensor, expert)

    def give_back(
        self, layer: int, expert: int, *, spare_shared: bool = True, forget: bool = True
    ) -> None:
        """See :meth:`CacheMemory.give_back`; an address is for good, so nothing is forgotten."""
        del forget
        for tensor in self._layout.layers[layer]:
            self.pages.give_back(tensor, expert, spare_shared=spare_shared)

    def set_budget(self, budget_bytes: int) -> bool:
        """Another budget; whether everything has to go: a part of a huge page stays."""
        self.budget_bytes = budget_bytes
        return self.pages.has_huge_pages and budget_bytes < self._whole_bytes

    def trim(self) -> None:
        """Choose the size of pages, where nothing is in memory."""
        if self.resident_bytes:
            return
        if self.budget_bytes >= self._whole_bytes:
            self.pages.use_huge_pages()  # nothing will ever be evicted
        elif self.pages.has_huge_pages:
            self.pages.empty()

    def slice_view(self, tensor: ExpertTensor, expert: int) -> memoryview:
        """See :meth:`Arena.slice_view`."""
        return self._arena.slice_view(tensor, expert)

    def slice_reads(
        self, tensor: ExpertTensor, expert: int, source: int, shard: int, alignment: int
    ) -> list[Read]:
        """See :meth:`Arena.slice_reads`."""
        return self._arena.slice_reads(tensor, expert, source, shard, alignment)
