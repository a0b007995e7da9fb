"""The memory that streamed experts are read into: one buffer a part, shared by all layers.

Serial streaming needs one layer's experts at a time, so every layer's tensor of one part is
bound to the same buffer. Each is bound at an address that is congruent with its place in the
file, modulo the page: an aligned read then lands in place, and the extra bytes at its ends
are the neighbouring experts' own.
"""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt

from sluice.errors import SystemFault
from sluice.streaming.layout import ExpertLayout, ExpertTensor
from sluice.streaming.reader import ALIGNMENT, CHUNK_BYTES, Read

POISON = 0xFF  # all ones is a NaN in F32, F16, BF16 and in the scales of block formats


class Arena:
    """Buffers for the widest layer of ``layout``; pages are taken as slices first touch them."""

    def __init__(self, layout: ExpertLayout) -> None:
        sizes: dict[str, int] = {}
        for tensor in layout.by_name.values():
            sizes[tensor.part] = max(sizes.get(tensor.part, 0), tensor.size_bytes)
        # A page before and after: a window is rounded out to pages on both sides.
        self._maps = {
            part: _memory(-(-size // ALIGNMENT) * ALIGNMENT + 2 * ALIGNMENT)
            for part, size in sizes.items()
        }
        self._bytes: dict[str, npt.NDArray[np.uint8]] = {
            part: np.frombuffer(memory, np.uint8) for part, memory in self._maps.items()
        }
        self._views = {part: memoryview(memory) for part, memory in self._maps.items()}

    @property
    def size_bytes(self) -> int:
        """Address space of all buffers together."""
        return sum(len(memory) for memory in self._maps.values())

    def address(self, tensor: ExpertTensor) -> int:
        """Where ``tensor``'s expert 0 begins in memory."""
        return int(self._bytes[tensor.part].ctypes.data) + tensor.offset % ALIGNMENT

    def slice_view(self, tensor: ExpertTensor, expert: int) -> memoryview:
        """The bytes of one expert's slice, writable."""
        start = tensor.offset % ALIGNMENT + expert * tensor.slice_bytes
        return self._views[tensor.part][start : start + tensor.slice_bytes]

    def slice_read(self, tensor: ExpertTensor, expert: int, source: int, alignment: int) -> Read:
        """The read that fills ``expert``'s place with ``source``'s slice (the same, but in tests).

        ``alignment`` is the reader's: 1 reads exactly the slice.
        """
        offset = tensor.offset + source * tensor.slice_bytes
        place = tensor.offset + expert * tensor.slice_bytes
        if (offset - place) % alignment:
            alignment = 1
        return self._window(tensor, place, offset, tensor.slice_bytes, alignment)

    def whole_reads(self, tensor: ExpertTensor, alignment: int) -> list[Read]:
        """The reads that fill every expert's place, in chunks that lanes can share."""
        reads = []
        for start in range(0, tensor.size_bytes, CHUNK_BYTES):
            size = min(CHUNK_BYTES, tensor.size_bytes - start)
            place = tensor.offset + start
            reads.append(self._window(tensor, place, place, size, alignment))
        return reads

    def poison(self, tensor: ExpertTensor) -> None:
        """Fill the tensor's whole range with a NaN pattern."""
        start = tensor.offset % ALIGNMENT
        self._bytes[tensor.part][start : start + tensor.size_bytes] = POISON

    def _window(
        self, tensor: ExpertTensor, place: int, offset: int, size: int, alignment: int
    ) -> Read:
        before = offset % alignment
        length = -(-(before + size) // alignment) * alignment
        at = tensor.offset % ALIGNMENT + (place - tensor.offset) - before
        return Read(
            tensor.name,
            offset - before,
            self._views[tensor.part][at : at + length],
            before + size,
            aligned=alignment == ALIGNMENT,
        )


def _memory(size: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as err:
        raise SystemFault(
            f"no memory for the streamed experts: {size / 2**20:.0f} MiB of address space:"
            f" {err.strerror}"
        ) from None
