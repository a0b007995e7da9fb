"""Lanes: they read, each through its own descriptors, what is needed first.

A lane takes a read that somebody waits for before one that is only read ahead. Jobs are claimed
by one lane each, so a job may stand in both queues: that is how a read-ahead becomes urgent.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from queue import SimpleQueue

from sluice.errors import SystemFault
from sluice.llama import libc
from sluice.seams import Seams
from sluice.streaming.reader import Channel, Read, SliceReader

_STATES = threading.Lock()
"""Of every job's state: held for a moment at a time. A lock of each job's own costs more."""


class Job:
    """One read on its way.

    ``error`` is set before :attr:`is_done`; ``read_bytes`` is what the disk delivered.
    """

    __slots__ = (
        "_is_claimed", "_waited", "error", "is_ahead", "is_done", "is_handed_over", "is_queued",
        "read", "read_bytes",
    )  # fmt: skip

    def __init__(self, read: Read, *, is_ahead: bool = False) -> None:
        self.read = read
        self.is_ahead = is_ahead
        self.is_queued = False  # for the kernel
        self.is_handed_over = False  # to the kernel, and not known to be done
        self.is_done = False
        """Whether it has been read, or has failed."""
        self.error: BaseException | None = None
        self.read_bytes = 0
        self._is_claimed = False
        self._waited: threading.Lock | None = None  # held until it is done

    def claim(self) -> bool:
        """Take it, unless somebody has."""
        with _STATES:
            was_claimed, self._is_claimed = self._is_claimed, True
        return not was_claimed

    def disclaim(self) -> None:
        """Leave it to somebody else after all."""
        with _STATES:
            self._is_claimed = False

    def finish(self) -> None:
        """Release everyone who waits."""
        with _STATES:
            self.is_done = True
            waited, self._waited = self._waited, None
        if waited is not None:
            waited.release()

    def wait(self) -> None:
        """Until it is done; does not raise :attr:`error`."""
        with _STATES:
            if self.is_done:
                return
            waited = self._waited
            if waited is None:
                waited = threading.Lock()
                waited.acquire()
                self._waited = waited
        with waited:
            pass


class Lanes:
    """``n`` lanes over the files of ``reader``.

    Args:
        reader: the files.
        n: reads in flight at once.
        helps: the caller that waits is one of the lanes: it reads instead of sleeping. Its lane
            is then idle while it computes, so this suits reads that are waited for at once.
        seams: see :mod:`sluice.seams`.

    Raises:
        SystemFault: a file cannot be opened, or a lane cannot be started.
    """

    def __init__(self, reader: SliceReader, n: int, *, helps: bool, seams: Seams) -> None:
        self.n_kernel_reads = 0
        """Reads that the kernel was given, so far."""
        self._seams = seams
        self._urgent: deque[Job] = deque()
        self._ahead: deque[Job] = deque()
        self._calls: SimpleQueue[bool] = SimpleQueue()
        self._own = reader.channel() if helps else None
        self._threads: list[threading.Thread] = []
        try:
            for i in range(n - 1 if helps else n):
                channel = reader.channel()
                thread = threading.Thread(
                    target=self._run, args=(channel,), name=f"lane-{i}", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError as err:  # Python's, for a system that refuses
                    channel.close()
                    raise SystemFault(
                        f"lane {i + 1} of {n}: {err}; lower --io-threads, or allow more threads"
                        " and memory (ulimit -u, ulimit -v)"
                    ) from None
                self._threads.append(thread)
        except BaseException:
            self.close()
            raise

    def submit(self, jobs: Iterable[Job]) -> None:
        """Queue ``jobs``; those that are read ahead come after every other."""
        for job in jobs:
            (self._ahead if job.is_ahead else self._urgent).append(job)
            self._calls.put(True)

    @property
    def uses_kernel(self) -> bool:
        """Whether reads are handed over to the kernel."""
        return False

    def serve(self, *, memory_stays: bool) -> None:
        """The model is loaded: reads run under compute, into memory that stays or not."""

    def reap(self) -> None:
        """See what is done, where no thread does that by itself."""

    def hurry(self, jobs: Iterable[Job]) -> None:
        """Somebody waits for these now: those that no lane has taken go before the others."""
        for job in jobs:
            if job.is_ahead and not job.is_done:
                self._urgent.append(job)
                self._calls.put(True)

    def wait(self, jobs: Sequence[Job]) -> float:
        """Until all ``jobs`` are done; the seconds that it took.

        Raises:
            ReadFault: the first error among them, once all are done: no lane may still write
                when the caller goes on.
        """
        began = time.perf_counter()
        if self._own is not None:
            for job in jobs:
                if job.claim():
                    self._perform(job, self._own)
        for job in jobs:
            if not job.is_done:
                job.wait()
        for job in jobs:
            if job.error is not None:
                raise job.error
        return time.perf_counter() - began

    def cancel(self, jobs: Iterable[Job]) -> None:
        """Take back what no lane has begun, and wait for the rest. Errors are kept in the jobs."""
        waiting = []
        for job in jobs:
            if job.claim():
                job.error = Cancelled("a read was taken back before it began")
                job.finish()
            else:
                waiting.append(job)
        for job in waiting:
            job.wait()

    def close(self) -> None:
        """Stop the lanes after what they are reading, and close their descriptors."""
        for queue in (self._urgent, self._ahead):
            self.cancel(list(queue))
            queue.clear()
        for _ in self._threads:
            self._calls.put(False)
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        if self._own is not None:
            self._own.close()

    def _run(self, channel: Channel) -> None:
        libc.run_promptly()
        try:
            while self._calls.get():
                for queue in (self._urgent, self._ahead):
                    job = _take(queue)
                    if job is not None:
                        self._perform(job, channel)
                        break
        finally:
            channel.close()

    def _perform(self, job: Job, channel: Channel) -> None:
        try:
            self._seams.lane_reads(job.read.tensor, job.is_ahead)
            job.read_bytes = channel.read(job.read)
            self._seams.lane_has_read(job.read.tensor, job.is_ahead)
        except BaseException as err:  # whoever waits raises it
            job.error = err
        finally:
            job.finish()


class Cancelled(SystemFault):
    """The read was taken back, or broken off, before it was done."""


def _take(queue: deque[Job]) -> Job | None:
    with contextlib.suppress(IndexError):
        while True:
            job = queue.popleft()
            if job.claim():
                return job
    return None
