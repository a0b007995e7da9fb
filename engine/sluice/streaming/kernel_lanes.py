"""Lanes that hand reads over to the kernel, so that no thread waits for each of them.

Where every core computes, a thread that reads costs more than its work: it is woken, takes the
interpreter and gives it back, once a read. The kernel needs nobody for an O_DIRECT read into
memory that is there. Everything else is left to the threads: buffered reads, memory that was
never touched (the kernel would fill it with zeros first, while the caller waits), and what is
too far ahead.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterable, Sequence

from sluice.config import Config
from sluice.llama.aio import Aio, Submission
from sluice.seams import Seams, acts, replaces
from sluice.streaming.lanes import Cancelled, Job, Lanes
from sluice.streaming.reader import Channel, SliceReader

DEPTH = 128
"""Reads in flight in the kernel at once."""

AHEAD_BYTES = 16 << 20
"""Of them, what is read ahead: a read that somebody waits for comes after all that was before."""


class KernelLanes(Lanes):
    """:class:`Lanes` whose caller hands over what it can, and looks itself for what is done.

    A job is queued (:attr:`Job.is_queued`), then handed over (:attr:`Job.is_handed_over`), then
    done, once :meth:`reap` has seen that; or it is the threads', from the beginning or in its
    turn. One caller's thread only.

    Args:
        reader: the files.
        n: threads for the rest.
        seams: see :mod:`sluice.seams`.

    Raises:
        OSError: the kernel gives no AIO.
        SystemFault: as :class:`Lanes`.
    """

    def __init__(self, reader: SliceReader, n: int, *, seams: Seams) -> None:
        self._aio = Aio(DEPTH)
        self._channel: Channel | None = None
        self._reader = reader
        self._in_flight: dict[int, Job] = {}  # by the key of its submission
        self._needed: set[Job] = set()  # of these: what is handed over now would hold them up
        self._free = list(range(DEPTH))
        self._ahead_bytes = 0
        self._next: deque[list[Job]] = deque()  # somebody waits for these, in this order
        self._later: deque[list[Job]] = deque()
        self._serves = False
        self._has_seam = replaces(seams, "hands_over")
        try:
            super().__init__(reader, n, helps=False, seams=seams)
            self._channel = reader.channel()
        except BaseException:
            self._aio.close()
            raise

    @property
    def uses_kernel(self) -> bool:
        """See :attr:`Lanes.uses_kernel`."""
        return self._serves and self._reader.is_direct

    def serve(self, *, memory_stays: bool) -> None:
        """See :meth:`Lanes.serve`."""
        self._serves = memory_stays

    def submit(self, jobs: Iterable[Job]) -> None:
        """See :meth:`Lanes.submit`.

        What one call gives is handed over together, once what is needed before it is done: a disk
        shares its time among all that it was given.
        """
        if not self.uses_kernel:
            super().submit(jobs)
            return
        batch = list(jobs)
        if batch:
            (self._later if batch[0].is_ahead else self._next).append(batch)
            for job in batch:
                job.is_queued = True
            self._go_on()

    def reap(self, *, at_least: int = 0) -> None:
        """See :meth:`Lanes.reap`; waits for ``at_least`` reads to be done."""
        try:
            for key, result in self._aio.done(at_least=at_least):
                job = self._in_flight[key]
                if result >= job.read.needed_bytes:
                    job.read_bytes = result
                    job.finish()
                elif self._channel is not None:
                    # Short, refused or failed: the usual road goes on, or says what is wrong.
                    self._perform(job, self._channel)
                self._forget(key)
                if job.error is not None and not isinstance(job.error, Exception):
                    raise job.error  # Ctrl-C, on the caller's own thread
            self._go_on()
        except BaseException:
            self._start_again()
            raise

    def hurry(self, jobs: Iterable[Job]) -> None:
        """See :meth:`Lanes.hurry`; the kernel does not hurry, but is given nothing else meanwhile.

        A disk that is given more may not say what is done before all of it is: a virtual one.
        """
        jobs = list(jobs)
        self._needed.update(job for job in jobs if job.is_handed_over)
        queued = [job for job in jobs if job.is_queued]
        if queued:
            self._next.append(queued)
            self._go_on()
        super().hurry(job for job in jobs if not job.is_queued and not job.is_handed_over)

    def wait(self, jobs: Sequence[Job]) -> float:
        """See :meth:`Lanes.wait`."""
        began = time.perf_counter()
        self._hand_over(jobs, is_needed=True)  # before its turn, where that has not come
        self._land(jobs)
        super().wait(jobs)
        return time.perf_counter() - began

    def cancel(self, jobs: Iterable[Job]) -> None:
        """See :meth:`Lanes.cancel`; what was handed over is waited for."""
        jobs = list(jobs)
        super().cancel(self._taken_back(jobs))  # first: nothing of it may be handed over meanwhile
        self._land(jobs)
        super().cancel(jobs)

    def close(self) -> None:
        """See :meth:`Lanes.close`."""
        self.cancel(
            [job for queue in (self._next, self._later) for batch in queue for job in batch]
        )
        self._next.clear()
        self._later.clear()
        self._land(list(self._in_flight.values()))
        self._aio.close()
        super().close()
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _go_on(self) -> None:
        for queue in (self._next, self._later):
            while queue and not self._needed:
                self._hand_over(queue.popleft(), is_needed=queue is self._next)

    def _hand_over(self, jobs: Iterable[Job], *, is_needed: bool) -> None:
        """Those of ``jobs`` that are queued: to the kernel, or else to the threads."""
        rest: list[Job] = []
        batch: list[Submission] = []
        channel = self._channel if self.uses_kernel else None
        try:
            for job in jobs:
                if not job.is_queued:
                    continue
                read = job.read
                is_too_far = not is_needed and self._ahead_bytes >= AHEAD_BYTES
                is_for_threads = is_too_far or not read.aligned or read.is_fresh
                if channel is None or is_for_threads or not self._free:
                    rest.append(job)
                    continue
                key = self._free.pop()
                self._in_flight[key] = job
                job.is_handed_over, job.is_queued = True, False
                if is_needed:
                    self._needed.add(job)
                if job.is_ahead:
                    self._ahead_bytes += read.needed_bytes
                if not job.claim():  # somebody has taken it, or taken it back
                    self._forget(key)
                elif not self._has_seam or self._seams.hands_over(read.tensor, job.is_ahead):
                    fd = channel.direct(read.shard)
                    batch.append((key, fd, read.address, len(read.window), read.offset))
                else:
                    job.finish()
                    self._forget(key)
            taken = self._aio.submit(batch) if batch else 0
            self.n_kernel_reads += taken
            for key, *_ in batch[taken:]:
                job = self._in_flight[key]
                job.is_queued = True
                self._forget(key)
                job.disclaim()
                rest.append(job)
            if rest:
                self._leave_to_threads(rest, is_needed)
        except BaseException:
            self._start_again()
            raise

    def _leave_to_threads(self, jobs: list[Job], is_needed: bool) -> None:
        for job in jobs:
            job.is_queued = False
        super().submit(jobs)
        if is_needed:
            super().hurry(jobs)

    def _forget(self, key: int) -> None:
        """A read is in flight no more."""
        job = self._in_flight.pop(key)
        job.is_handed_over = False
        self._needed.discard(job)
        if job.is_ahead:
            self._ahead_bytes -= job.read.needed_bytes
        self._free.append(key)

    def _land(self, jobs: Iterable[Job]) -> None:
        while any(job.is_handed_over for job in jobs):
            self.reap(at_least=1)

    @staticmethod
    def _taken_back(jobs: Iterable[Job]) -> list[Job]:
        queued = [job for job in jobs if job.is_queued]
        for job in queued:
            job.is_queued = False
        return queued

    def _start_again(self) -> None:
        """Broken off midway (Ctrl-C): nobody knows what the kernel has. It ends all, then."""
        self._aio.close()
        for job in self._in_flight.values():
            job.is_handed_over = False
            if not job.is_done:
                job.claim()
                job.error = Cancelled("a read was broken off with its pass")
                job.finish()
        self._in_flight.clear()
        self._needed.clear()
        self._free, self._ahead_bytes = list(range(DEPTH)), 0
        try:
            self._aio = Aio(DEPTH)
        except OSError:
            self._serves = False  # the threads go on


def lanes_for(config: Config, reader: SliceReader, seams: Seams) -> Lanes:
    """The lanes that suit a session of ``config``.

    Raises:
        SystemFault: as :class:`Lanes`.
    """
    is_free = not acts(seams, "lane_reads", "lane_has_read")  # to leave the threads out
    if config.hides_reads and is_free and config.kernel_reads and reader.is_direct:
        with contextlib.suppress(OSError):
            return KernelLanes(reader, config.io_threads, seams=seams)
    return Lanes(reader, config.io_threads, helps=not config.hides_reads, seams=seams)
