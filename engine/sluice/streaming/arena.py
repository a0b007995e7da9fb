"""The memory that streamed experts are read into.

Every tensor is bound at an address that is congruent with its place in the file, modulo the
reader's alignment: an aligned read then lands in place, and the extra bytes at its ends are the
neighbouring experts' own. It begins in the first aligned piece of its buffer, whatever its place
in a page of the file: slices of whole pages are then read into whole pages, a third faster where
somebody copies them there.

Without a cache one layer is in memory at a time, so all layers' tensors of one part share one
buffer. With a cache in pages each tensor has a range of its own, and :mod:`sluice.streaming.pages`
gives back the pages of what is evicted; a cache in slots (:mod:`sluice.streaming.slots`) takes
:class:`Buffer` alone.
"""

from __future__ import annotations

import contextlib
import mmap

import numpy as np
import numpy.typing as npt

from sluice.errors import SystemFault
from sluice.streaming.layout import ExpertLayout, ExpertTensor
from sluice.streaming.reader import CHUNK_BYTES, Read

POISON = 0xFF  # all ones is a NaN in F32, F16, BF16 and in the scales of block formats
_HUGE_BYTES = 2 << 20
_NORESERVE = 0x4000  # MAP_NORESERVE: address space for all experts, pages for the cached ones


class Buffer:
    """Anonymous memory; pages are taken as they are first touched.

    ``start`` is the first multiple of the granule in it, ``size_bytes`` counts from there.

    Raises:
        SystemFault: the system gives no more address space.
    """

    def __init__(self, size_bytes: int, granule_bytes: int) -> None:
        self.size_bytes = -(-size_bytes // granule_bytes) * granule_bytes
        room = self.size_bytes + granule_bytes - mmap.PAGESIZE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        try:
            self.memory = mmap.mmap(-1, room, flags=flags)
        except OSError as err:
            raise SystemFault(
                f"no memory for the weights: {room / 2**20:.0f} MiB of address space:"
                f" {err.strerror}; raise the limit of this process (ulimit -v), or drop --cache-mb"
            ) from None
        whole = np.frombuffer(self.memory, np.uint8)
        first = int(whole.ctypes.data)
        self.start = -first % granule_bytes
        self.bytes: npt.NDArray[np.uint8] = whole[self.start : self.start + self.size_bytes]
        self.view = memoryview(self.memory)[self.start : self.start + self.size_bytes]
        self.address = first + self.start

    def use_huge_pages(self) -> None:
        """For memory that is given back as a whole or never: reads and matmuls get faster."""
        if self.size_bytes >= _HUGE_BYTES:
            with contextlib.suppress(OSError):  # a kernel without huge pages
                self.memory.madvise(mmap.MADV_HUGEPAGE)

    def give_back(self, begin: int, end: int) -> None:
        """Give back the pages that lie whole between two bytes of :attr:`view`."""
        start = -(-(self.start + begin) // mmap.PAGESIZE) * mmap.PAGESIZE
        stop = (self.start + end) // mmap.PAGESIZE * mmap.PAGESIZE
        if start < stop:
            self.memory.madvise(mmap.MADV_DONTNEED, start, stop - start)

    def empty(self) -> None:
        """Give every page back; small ones will be taken from now on."""
        self.memory.madvise(mmap.MADV_DONTNEED)
        with contextlib.suppress(OSError):
            self.memory.madvise(mmap.MADV_NOHUGEPAGE)


class Arena:
    """Buffers for ``layout``.

    Args:
        layout: what is streamed.
        alignment, granule_bytes: the reader's, at its start.
        shared: one buffer a part for all layers, in the place of one a tensor.
    """

    def __init__(
        self, layout: ExpertLayout, alignment: int, granule_bytes: int, *, shared: bool
    ) -> None:
        self.granule_bytes = granule_bytes
        self._alignment = alignment
        self._shared = shared
        sizes: dict[str, int] = {}
        for tensor in layout.by_name.values():
            key = self._key(tensor)
            # A granule before and after: a window is rounded out on both sides.
            needed = tensor.size_bytes + 2 * granule_bytes
            sizes[key] = max(sizes.get(key, 0), needed)
        self._buffers = {key: Buffer(size, granule_bytes) for key, size in sizes.items()}
        self.has_huge_pages = False
        if shared:
            self.use_huge_pages()

    @property
    def size_bytes(self) -> int:
        """Address space of all buffers together."""
        return sum(buffer.size_bytes for buffer in self._buffers.values())

    def use_huge_pages(self) -> None:
        """See :meth:`Buffer.use_huge_pages`."""
        self.has_huge_pages = True
        for buffer in self._buffers.values():
            buffer.use_huge_pages()

    def empty(self) -> None:
        """See :meth:`Buffer.empty`."""
        self.has_huge_pages = False
        for buffer in self._buffers.values():
            buffer.empty()

    def buffer(self, tensor: ExpertTensor) -> Buffer:
        """The memory that ``tensor`` lies in."""
        return self._buffers[self._key(tensor)]

    def first_byte(self, tensor: ExpertTensor) -> int:
        """Where expert 0 begins in :meth:`buffer`."""
        return tensor.offset % self._alignment

    def address(self, tensor: ExpertTensor) -> int:
        """Where ``tensor``'s expert 0 begins in memory."""
        return self.buffer(tensor).address + self.first_byte(tensor)

    def slice_view(self, tensor: ExpertTensor, expert: int) -> memoryview:
        """The bytes of one expert's slice, writable."""
        start = self.first_byte(tensor) + expert * tensor.slice_bytes
        return self.buffer(tensor).view[start : start + tensor.slice_bytes]

    def slice_reads(
        self, tensor: ExpertTensor, expert: int, source: int, shard: int, alignment: int
    ) -> list[Read]:
        """The reads that fill ``expert``'s place with ``source``'s slice, in chunks.

        Source and place are the same, and ``shard`` is the tensor's, but in tests.
        ``alignment`` is the reader's: 1 reads exactly the slice.
        """
        shift = (source - expert) * tensor.slice_bytes
        begin = expert * tensor.slice_bytes
        return self._reads(tensor, begin, tensor.slice_bytes, shift, shard, alignment)

    def whole_reads(self, tensor: ExpertTensor, alignment: int) -> list[Read]:
        """The reads that fill every expert's place, in chunks that lanes can share."""
        return self._reads(tensor, 0, tensor.size_bytes, 0, tensor.shard, alignment)

    def poison(self, tensor: ExpertTensor) -> None:
        """Fill the tensor's whole range with a NaN pattern."""
        start = self.first_byte(tensor)
        self.buffer(tensor).bytes[start : start + tensor.size_bytes] = POISON

    def _reads(
        self, tensor: ExpertTensor, begin: int, size: int, shift: int, shard: int, alignment: int
    ) -> list[Read]:
        at = self.first_byte(tensor) + begin
        offset = tensor.offset + begin + shift
        buffer = self.buffer(tensor)
        return chunked_reads(tensor.name, buffer, at, offset, size, shard, alignment)

    def _key(self, tensor: ExpertTensor) -> str:
        return tensor.part if self._shared else tensor.name


def chunked_reads(
    name: str,
    buffer: Buffer,
    at: int,
    offset: int,
    size: int,
    shard: int,
    alignment: int,
    *,
    is_fresh: bool = True,
) -> list[Read]:
    """The reads of ``size`` bytes at ``offset`` of a file into ``buffer`` from ``at`` on.

    In pieces of :data:`CHUNK_BYTES`, which lanes can share, each rounded out to ``alignment``; a
    place that is not congruent with the offset is read exactly.
    """
    if (offset - at) % alignment:
        alignment = 1
    aligned = alignment > 1
    reads: list[Read] = []
    for start in range(0, size, CHUNK_BYTES):
        length = min(CHUNK_BYTES, size - start)
        first = offset + start
        before = first % alignment
        room = -(-(before + length) // alignment) * alignment
        begin = at + start - before
        window, address = buffer.view[begin : begin + room], buffer.address + begin
        needed = before + length
        reads.append(Read(name, first - before, window, address, needed, aligned, shard, is_fresh))
    return reads
