"""Which pages of the cached experts are in memory, counted, and given back when none needs them.

Slices are not multiples of a page, so neighbours share one: a page is given back when no
resident slice touches it.
"""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt

from sluice.streaming.arena import Arena
from sluice.streaming.layout import ExpertTensor


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
