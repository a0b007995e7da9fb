"""Reads pieces of a model's files into memory, past the page cache where it can."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sluice.errors import ReadFault, SystemFault
from sluice.llama import libc

PAGE_BYTES = mmap.PAGESIZE
CHUNK_BYTES = 4 << 20
"""A longer read is split, so that lanes share it."""

_PROBED = (512, 4096, 65536)
"""Alignments to try where the file system does not say."""

_ALIGNMENT_MAX = 1 << 20

Identity = tuple[int, int, int, int]
"""Device, inode, size in bytes, and time of change in nanoseconds."""


@dataclass(slots=True)
class Read:
    """One piece of a file and the memory that it goes to.

    ``window`` receives the bytes from ``offset`` on. With O_DIRECT both ends are rounded out to
    the reader's alignment: the extra bytes are the neighbouring slices' own. ``needed_bytes`` is
    what must arrive (a window may end beyond the file). ``aligned`` says that offset, length
    and address suit O_DIRECT, ``is_fresh`` that some of the memory may not be there yet.
    ``address`` is where the window lies.
    """

    tensor: str
    offset: int
    window: memoryview
    address: int
    needed_bytes: int
    aligned: bool
    shard: int = 0
    is_fresh: bool = True


class SliceReader:
    """The files of one model, as they were when this was made.

    Args:
        paths: the gguf, or its shards in order.
        direct: bypass the page cache; where the file system refuses that, reads are buffered
            and ``warn`` is told once.
        warn: receives one-line warnings.

    Raises:
        ReadFault: a file is not there.
    """

    def __init__(self, paths: Sequence[Path], *, direct: bool, warn: Callable[[str], None]) -> None:
        self.paths = tuple(paths)
        self._warn = warn
        self._identities = [(path, str(path), _identity(str(path))) for path in self.paths]
        self._checked_at: int | None = None
        self._falling_back = threading.Lock()
        self.granule_bytes = PAGE_BYTES
        """Memory is laid out, counted and given back in multiples of this: a page, or more."""
        self.is_direct = False
        """Whether reads bypass the page cache at this moment."""
        self._aligned_to = 1
        if direct:
            self._start_direct()

    @property
    def alignment(self) -> int:
        """What windows are rounded out to: the file system's alignment, or 1 when buffered."""
        return self._aligned_to if self.is_direct else 1

    def channel(self) -> Channel:
        """File descriptors of one lane's own."""
        return Channel(self)

    def check_unchanged(self, moment: int | None = None) -> None:
        """Refuse to read on when a file is no longer the one that was opened.

        Not looked at again at the same ``moment``, where that is said.

        Raises:
            ReadFault: it has another size, inode or time, or has gone.
        """
        if moment is not None and moment == self._checked_at:
            return
        for path, name, then in self._identities:
            now = _identity(name)
            if now == then:
                continue
            names = ("device", "inode", "size", "time of change")
            what = [f"{n} {a} was {b}" for n, a, b in zip(names, now, then, strict=True) if a != b]
            raise ReadFault(
                f"{path}: changed since it was opened ({', '.join(what)}); nothing more is read"
                " from it: open the model again"
            )
        self._checked_at = moment

    def fall_back(self, path: Path) -> None:
        """Read through the page cache from now on, and say so once."""
        with self._falling_back:
            if self.is_direct:
                self.is_direct = False
                self._warn(self._buffered_text(path, "refused an O_DIRECT read"))

    def _start_direct(self) -> None:
        alignment = 1
        for path in self.paths:
            said = libc.direct_alignment(path)
            tries = _PROBED if said is None else (said,)
            found = next((a for a in tries if _takes_direct(path, a)), None)
            if found is None:
                self._warn(self._buffered_text(path, "does not take O_DIRECT"))
                return
            alignment = max(alignment, found)
        self._aligned_to = alignment
        self.granule_bytes = max(PAGE_BYTES, alignment)
        self.is_direct = True

    @staticmethod
    def _buffered_text(path: Path, why: str) -> str:
        return f"{path}: its file system {why}; slices are read through the page cache"


class Channel:
    """One lane's own descriptors of every file; made by :meth:`SliceReader.channel`.

    Raises:
        SystemFault: a file cannot be opened.
    """

    def __init__(self, reader: SliceReader) -> None:
        self._reader = reader
        self._buffered: list[int] = []
        self._direct: list[int] = []
        try:
            for path in reader.paths:
                self._buffered.append(_open(path, 0))
                if reader.is_direct:
                    self._direct.append(_open(path, os.O_DIRECT))
        except SystemFault:
            self.close()
            raise

    def read(self, read: Read) -> int:
        """Perform ``read``; return the bytes that the disk delivered.

        A short read is continued where it ended, an interrupted one begun again.

        Raises:
            ReadFault: an I/O error or the end of the file; names file, offset and tensor.
        """
        reader = self._reader
        done = 0
        while done < read.needed_bytes:
            direct = reader.is_direct and read.aligned and done % reader.alignment == 0
            fd = (self._direct if direct else self._buffered)[read.shard]
            try:
                got = os.preadv(fd, [read.window[done:]], read.offset + done)
            except OSError as err:
                if err.errno == errno.EINVAL and direct:
                    reader.fall_back(reader.paths[read.shard])
                    continue
                raise ReadFault(self._where(read, done, err.strerror or str(err))) from None
            if got == 0:
                raise ReadFault(self._where(read, done, "the file ends there"))
            done += got
        return done

    def direct(self, shard: int) -> int:
        """The descriptor of a shard that bypasses the page cache."""
        return self._direct[shard]

    def close(self) -> None:
        """Close every descriptor; a second call does nothing."""
        for fds in (self._buffered, self._direct):
            while fds:
                os.close(fds.pop())

    def _where(self, read: Read, done: int, why: str) -> str:
        return (
            f"{self._reader.paths[read.shard]}: reading {read.needed_bytes} bytes of {read.tensor}"
            f" at offset {read.offset} stopped after {done}: {why}"
        )


def _identity(path: str) -> Identity:
    try:
        found = os.stat(path)  # noqa: PTH116 a Path costs as much again, in every pass through a layer
    except OSError as err:
        raise ReadFault(
            f"{path}: cannot be found any more: {err.strerror}; nothing more is read from it"
        ) from None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    except OSError as err:
        remedy = ""
        if err.errno in (errno.EMFILE, errno.ENFILE):
            remedy = "; lower --io-threads, or allow more open files (ulimit -n)"
        raise SystemFault(f"{path}: cannot be opened: {err.strerror}{remedy}") from None


def _takes_direct(path: Path, alignment: int) -> bool:
    if not 0 < alignment <= _ALIGNMENT_MAX:
        return False
    with contextlib.suppress(OSError, SystemFault):
        fd = _open(path, os.O_DIRECT)
        try:
            # At the second multiple, so that a larger alignment than this one shows.
            with (
                mmap.mmap(-1, 2 * max(alignment, PAGE_BYTES)) as probe,
                memoryview(probe)[alignment : 2 * alignment] as window,
            ):
                os.preadv(fd, [window], alignment)
            return True
        finally:
            os.close(fd)
    return False
