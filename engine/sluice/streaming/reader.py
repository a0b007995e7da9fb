"""Reads slices from disk into memory, in parallel lanes, past the page cache where it can."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sluice.errors import ReadFault, SystemFault

ALIGNMENT = 4096
"""File offsets, lengths and addresses of an O_DIRECT read are multiples of this."""

CHUNK_BYTES = 4 << 20
"""A longer read is split, so that lanes share it."""


@dataclass(frozen=True, slots=True)
class Read:
    """One piece of a file and the memory that it goes to.

    ``window`` receives the bytes from ``offset`` on. With O_DIRECT both ends are rounded out to
    :data:`ALIGNMENT`: the extra bytes are the neighbouring slices' own. ``needed_bytes`` is
    what must arrive (a window may end beyond the file). ``aligned`` says that offset, length
    and address suit O_DIRECT.
    """

    tensor: str
    offset: int
    window: memoryview
    needed_bytes: int
    aligned: bool


class SliceReader:
    """Lanes over one file.

    Args:
        path: the gguf.
        lanes: reads in flight at once.
        direct: bypass the page cache; where the file system refuses that, reads are buffered
            and ``warn`` is told once.
        warn: receives one-line warnings.

    Raises:
        SystemFault: the file cannot be opened.
    """

    def __init__(
        self, path: Path, *, lanes: int, direct: bool, warn: Callable[[str], None]
    ) -> None:
        self.path = path
        self._warn = warn
        self._buffered = self._open(0)
        try:
            self._direct: int | None = self._open_direct() if direct else None
        except BaseException:
            os.close(self._buffered)
            raise
        self.is_direct = self._direct is not None
        """Whether reads bypass the page cache at this moment."""
        # This thread is a lane, too: it reads while it waits.
        self._pool = ThreadPoolExecutor(lanes - 1, "lane") if lanes > 1 else None
        self._lanes = lanes
        self._falling_back = threading.Lock()

    @property
    def alignment(self) -> int:
        """What windows are rounded out to: :data:`ALIGNMENT`, or 1 when buffered."""
        return ALIGNMENT if self.is_direct else 1

    def read(self, reads: Sequence[Read]) -> int:
        """Perform all ``reads``; return the bytes that the disk delivered.

        Raises:
            ReadFault: an I/O error or the end of the file; names file, offset and tensor.
        """
        queue = iter(reads)
        if self._pool is None or len(reads) == 1:
            return self._lane(queue)
        others: list[Future[int]] = [
            self._pool.submit(self._lane, queue) for _ in range(min(self._lanes, len(reads)) - 1)
        ]
        try:
            total = self._lane(queue)
        finally:
            # No lane may still write when the caller goes on, whatever went wrong.
            done = [(lane.exception(), lane) for lane in others]
        for raised, lane in done:
            if raised is not None:
                raise raised
            total += lane.result()
        return total

    def close(self) -> None:
        """Stop the lanes and close the file."""
        if self._pool is not None:
            self._pool.shutdown()
        for fd in (self._buffered, self._direct):
            if fd is not None:
                os.close(fd)

    def _lane(self, queue: Iterator[Read]) -> int:
        return sum(self._read_one(read) for read in queue)

    def _read_one(self, read: Read) -> int:
        done = 0
        while done < read.needed_bytes:
            direct = self.is_direct and read.aligned and done % ALIGNMENT == 0
            fd = self._direct if direct else self._buffered
            assert fd is not None
            try:
                got = os.preadv(fd, [read.window[done:]], read.offset + done)
            except OSError as err:
                if err.errno == errno.EINVAL and direct:
                    self._fall_back()
                    continue
                raise ReadFault(self._where(read, done, err.strerror or str(err))) from None
            if got == 0:
                raise ReadFault(self._where(read, done, "the file ends there"))
            done += got
        return done

    def _where(self, read: Read, done: int, why: str) -> str:
        return (
            f"{self.path}: reading {read.needed_bytes} bytes of {read.tensor} at offset"
            f" {read.offset} stopped after {done}: {why}"
        )

    def _open(self, flags: int) -> int:
        try:
            return os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | flags)
        except OSError as err:
            raise SystemFault(f"{self.path}: cannot be opened: {err.strerror}") from None

    def _open_direct(self) -> int | None:
        fd: int | None = None
        with contextlib.suppress(SystemFault):
            fd = self._open(os.O_DIRECT)
        if fd is not None:
            probe = mmap.mmap(-1, ALIGNMENT)
            try:
                os.preadv(fd, [probe], 0)
                return fd
            except OSError:
                os.close(fd)
            finally:
                probe.close()
        self._warn(self._buffered_text("does not take O_DIRECT"))
        return None

    def _fall_back(self) -> None:
        with self._falling_back:
            if self.is_direct:
                self.is_direct = False
                self._warn(self._buffered_text("refused an O_DIRECT read"))

    def _buffered_text(self, why: str) -> str:
        return f"{self.path}: its file system {why}; slices are read through the page cache"
