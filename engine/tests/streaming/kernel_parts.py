"""What stands between :class:`KernelLanes` and the kernel, and jobs for them."""

from __future__ import annotations

import mmap
from collections.abc import Callable

from sluice.llama.aio import Aio, Submission
from sluice.seams import Seams
from sluice.streaming.kernel_lanes import KernelLanes
from sluice.streaming.lanes import Job
from sluice.streaming.reader import Read, SliceReader

from .parts import PAGE, SIZE, address_of

Make = Callable[..., SliceReader]
Start = Callable[..., KernelLanes]
N_PAGES = SIZE // PAGE
REST = SIZE % PAGE


class Threads(Seams):
    """Keeps what the threads read."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def lane_reads(self, tensor: str, is_ahead: bool) -> None:
        self.read.append(tensor)


class Given:
    """Stands before an :class:`Aio`: keeps what it is given, and lets reads be done one by one."""

    def __init__(self, aio: Aio) -> None:
        self._aio = aio
        self._done: list[tuple[int, int]] = []
        self.offsets: list[list[int]] = []  # of every call, in pages
        self.holds = False

    def submit(self, reads: list[Submission]) -> int:
        self.offsets.append([offset // PAGE for *_, offset in reads])
        return self._aio.submit(reads)

    def done(self, *, at_least: int) -> list[tuple[int, int]]:
        if at_least:
            self.holds = False
        self._done += self._aio.done(at_least=at_least if not self._done else 0)
        if self.holds:
            return []
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        self._aio.close()


def held(lanes: KernelLanes) -> Given:
    """From now on nothing is seen to be done by a mere look, only where somebody waits."""
    given = Given(lanes._aio)
    given.holds = True
    lanes._aio = given  # type: ignore[assignment]
    return given


def page(number: int, *, n: int = 1, name: str = "t", is_ahead: bool = False) -> Job:
    """Of pages ``number`` onward, into memory that is there."""
    memory = memoryview(mmap.mmap(-1, n * PAGE))
    memory[:] = b"\xff" * len(memory)
    needed = min(n * PAGE, SIZE - number * PAGE)
    address = address_of(memory)
    read = Read(name, number * PAGE, memory, address, needed, aligned=True, is_fresh=False)
    return Job(read, is_ahead=is_ahead)


def is_right(job: Job, content: bytes) -> bool:
    read = job.read
    return bytes(read.window[: read.needed_bytes]) == content[read.offset :][: read.needed_bytes]


def all_right(jobs: list[Job], content: bytes) -> bool:
    return all(job.is_done and job.error is None and is_right(job, content) for job in jobs)


# What goes where.
