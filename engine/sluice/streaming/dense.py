"""The weights that are not streamed: mapped, paged in at load, or read into our own memory."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from sluice.errors import RequestError, SystemFault
from sluice.gguf.header import Header, TensorInfo
from sluice.llama import tensor as node
from sluice.streaming import memory
from sluice.streaming.arena import Buffer, chunked_reads
from sluice.streaming.lanes import Job, Lanes
from sluice.streaming.reader import CHUNK_BYTES, Read, SliceReader

Progress = Callable[[str, int, int], None]

_GAP_BYTES = 64 << 10  # tensors this close to each other are read in one piece
_BATCH = 16  # reads between two reports of progress


@dataclass(frozen=True, slots=True)
class Extent:
    """Neighbouring tensors of one file, ``begin`` to ``end`` in bytes of it."""

    shard: int
    begin: int
    end: int
    tensors: tuple[TensorInfo, ...]

    @property
    def size_bytes(self) -> int:
        """The gaps between its tensors counted."""
        return self.end - self.begin


def extents(tensors: Iterable[TensorInfo]) -> list[Extent]:
    """Neighbours among ``tensors`` together, in the order of the files."""
    out: list[Extent] = []
    for info in sorted(tensors, key=lambda t: (t.shard, t.offset)):
        end = info.offset + info.size_bytes
        last = out[-1] if out else None
        if last and last.shard == info.shard and info.offset - last.end <= _GAP_BYTES:
            merged = (*last.tensors, info)
            out[-1] = Extent(last.shard, last.begin, max(last.end, end), merged)
        else:
            out.append(Extent(info.shard, info.offset, end, (info,)))
    return out


class DenseWeights:
    """The weights of ``header``'s model that are not in ``streamed``.

    Args:
        header: of the whole model.
        streamed: names of tensors that are not ours.
    """

    def __init__(self, header: Header, streamed: Collection[str]) -> None:
        self._header = header
        self._streamed = streamed
        self._buffers: list[Buffer] = []
        self.resident_bytes = 0
        """What :meth:`own` or :meth:`warm` has brought into memory."""

    @property
    def owned_bytes(self) -> int:
        """Memory of our own that they were read into."""
        return sum(buffer.size_bytes for buffer in self._buffers)

    def used(self, found: Mapping[str, object]) -> list[TensorInfo]:
        """Those that a graph reads, of all that were ``found`` in one."""
        return [
            info
            for name, info in self._header.tensors.items()
            if name in found and name not in self._streamed
        ]

    def own(
        self,
        found: Mapping[str, set[int]],
        reader: SliceReader,
        lanes: Lanes,
        progress: Progress,
    ) -> None:
        """Read them into memory of our own and point every tensor there.

        Nothing of the mapped file is touched, and what went through the page cache is dropped
        there again: there is one copy.

        Args:
            found: tensor name to the addresses of its structs.
            reader, lanes: what reads.
            progress: called with ("dense", done, total) in MiB.

        Raises:
            RequestError: there is less memory than that.
            SystemFault: a read fails; no tensor is rebound then.
        """
        wanted = extents(self.used(found))
        total = sum(e.size_bytes for e in wanted)
        available = memory.available_bytes()
        if available is not None and total > available:
            raise RequestError(
                f"--dense-weights anon: the dense weights are {total >> 20} MiB, and"
                f" {available >> 20} MiB of memory are available; leave them mapped with"
                " --dense-weights mmap, or make room"
            )
        targets: list[tuple[Extent, Buffer, int]] = []  # and where in it the extent begins
        jobs: list[Job] = []
        for extent in wanted:
            buffer = Buffer(extent.size_bytes + 2 * reader.granule_bytes, reader.granule_bytes)
            buffer.use_huge_pages()
            at = extent.begin % reader.alignment
            targets.append((extent, buffer, at))
            jobs += [Job(r) for r in _reads(extent, buffer, at, reader)]
        lanes.submit(jobs)
        done = 0
        for start in range(0, len(jobs), _BATCH):
            batch = jobs[start : start + _BATCH]
            try:
                lanes.wait(batch)
            except BaseException:
                lanes.cancel(jobs)  # the buffers go away: no lane may still write
                raise
            done += sum(job.read_bytes for job in batch)
            progress("dense", min(done, total) >> 20, total >> 20)
        for extent, buffer, at in targets:
            first = buffer.address + at
            for info in extent.tensors:
                for address in found[info.name]:
                    node.rebind(address, first + info.offset - extent.begin)
        if not reader.is_direct:
            self._drop_page_cache(wanted)
        self._buffers = [buffer for _, buffer, _ in targets]
        self.resident_bytes = total

    def warm(self, found: Mapping[str, object], progress: Progress) -> None:
        """Read them through the page cache once, so that the mapped file has them in memory.

        Raises:
            SystemFault: a file cannot be read.
        """
        wanted = extents(self.used(found))
        total, done = sum(e.size_bytes for e in wanted), 0
        scratch = memoryview(mmap.mmap(-1, CHUNK_BYTES))
        for extent in wanted:
            path = self._header.paths[extent.shard]
            try:
                with path.open("rb", buffering=0) as file:
                    for offset in range(extent.begin, extent.end, CHUNK_BYTES):
                        length = min(CHUNK_BYTES, extent.end - offset)
                        os.preadv(file.fileno(), [scratch[:length]], offset)
                        done += length
                        progress("dense", done >> 20, total >> 20)
            except OSError as err:
                raise SystemFault(
                    f"{path}: reading the dense weights stopped: {err.strerror}; open the model"
                    " again, or with --dense-weights mmap"
                ) from None
        self.resident_bytes = total

    def mapped_bytes(self, found: Mapping[str, object]) -> int:
        """What is still to come into memory where they are left mapped and cold."""
        return max(sum(info.size_bytes for info in self.used(found)) - self.resident_bytes, 0)

    def _drop_page_cache(self, wanted: Iterable[Extent]) -> None:
        for extent in wanted:
            with self._header.paths[extent.shard].open("rb") as file:
                os.posix_fadvise(
                    file.fileno(), extent.begin, extent.size_bytes, os.POSIX_FADV_DONTNEED
                )


def _reads(extent: Extent, buffer: Buffer, at: int, reader: SliceReader) -> list[Read]:
    """The reads of an extent in chunks, each named by the tensor that it begins in."""
    reads = chunked_reads(
        "", buffer, at, extent.begin, extent.size_bytes, extent.shard, reader.alignment
    )
    begins = range(extent.begin, extent.end, CHUNK_BYTES)
    return [
        replace(read, tensor=_tensor_at(extent, begin).name)
        for read, begin in zip(reads, begins, strict=True)
    ]


def _tensor_at(extent: Extent, offset: int) -> TensorInfo:
    return [info for info in extent.tensors if info.offset <= offset][-1]
