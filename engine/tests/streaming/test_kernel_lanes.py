from __future__ import annotations

import errno
import itertools
import mmap
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.config import Config
from sluice.decoding.session import Session
from sluice.errors import ReadFault
from sluice.llama.aio import Aio, Submission
from sluice.seams import NO_SEAMS, Seams
from sluice.streaming import kernel_lanes
from sluice.streaming.kernel_lanes import AHEAD_BYTES, DEPTH, KernelLanes, lanes_for
from sluice.streaming.lanes import Cancelled, Job, Lanes
from sluice.streaming.reader import Channel, Read, SliceReader

from .parts import PAGE, SIZE, descriptors, window

Make = Callable[..., SliceReader]
Start = Callable[..., KernelLanes]
N_PAGES = SIZE // PAGE
REST = SIZE % PAGE


@pytest.fixture
def kernel(make: Make) -> Iterator[Start]:
    """Kernel lanes over the file (or ``reader=``), already serving; closed when the test ends."""
    made: list[KernelLanes] = []

    def kernel_(n: int = 2, *, serves: bool = True, **rest: Any) -> KernelLanes:
        reader = rest.pop("reader", None) or make()
        if not reader.is_direct:
            pytest.skip("this file system takes no O_DIRECT")
        try:
            made.append(KernelLanes(reader, n, seams=rest.pop("seams", NO_SEAMS)))
        except OSError as err:
            pytest.skip(f"this system gives no AIO: {err}")
        if serves:
            made[-1].serve(memory_stays=True)
        return made[-1]

    yield kernel_
    for one in made:
        one.close()


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
        self.offsets.append([read.offset // PAGE for read in reads])
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
    read = Read(name, number * PAGE, memory, needed, aligned=True, is_fresh=False)
    return Job(read, is_ahead=is_ahead)


def is_right(job: Job, content: bytes) -> bool:
    read = job.read
    return bytes(read.window[: read.needed_bytes]) == content[read.offset :][: read.needed_bytes]


def all_right(jobs: list[Job], content: bytes) -> bool:
    return all(job.is_done and job.error is None and is_right(job, content) for job in jobs)


# What goes where.


def test_until_it_serves_the_threads_read(kernel: Start, content: bytes) -> None:
    seams = Threads()
    lanes = kernel(serves=False, seams=seams)
    given = held(lanes)
    jobs = [page(i, name=str(i)) for i in range(20)]
    lanes.submit(jobs)
    lanes.wait(jobs)
    assert all_right(jobs, content)
    assert sorted(seams.read, key=int) == [str(i) for i in range(20)]
    assert given.offsets == []


@pytest.mark.parametrize("is_ahead", [False, True])
def test_what_the_kernel_does_not_do_alone_goes_to_the_threads(
    kernel: Start, content: bytes, is_ahead: bool
) -> None:
    seams = Threads()
    lanes = kernel(seams=seams)
    given = held(lanes)
    fresh, plain = window(3 * PAGE, PAGE), window(5 * PAGE, PAGE)
    assert fresh.is_fresh
    plain.is_fresh = plain.aligned = False
    shifted = Read("t", 7, memoryview(bytearray(50)), 50, aligned=False, is_fresh=False)
    jobs = [Job(read, is_ahead=is_ahead) for read in (fresh, plain, shifted)]
    there = page(9, is_ahead=is_ahead)
    lanes.submit([*jobs, there])
    lanes.wait([*jobs, there])
    assert all_right([*jobs, there], content)
    assert given.offsets == [[9]]
    assert len(seams.read) == 3


def test_once_reads_are_buffered_the_threads_read(
    kernel: Start, make: Make, content: bytes, file: Path
) -> None:
    reader = make(warn=lambda _text: None)
    lanes = kernel(reader=reader)
    given = held(lanes)
    reader.fall_back(file)
    jobs = [page(i) for i in range(5)]
    lanes.submit(jobs)
    lanes.wait(jobs)
    assert all_right(jobs, content)
    assert given.offsets == []


@pytest.mark.parametrize("n", [1, 3, DEPTH, DEPTH + 1, 5 * DEPTH])
def test_what_is_waited_for_is_there(kernel: Start, content: bytes, n: int) -> None:
    lanes = kernel()
    for round_ in range(3):
        jobs = [page((round_ + i * 37) % N_PAGES, n=1 + i % 3) for i in range(n)]
        lanes.submit(jobs)
        assert lanes.wait(jobs) >= 0
        assert all_right(jobs, content)
        assert all(job.read_bytes >= job.read.needed_bytes for job in jobs)
        assert not any(job.is_handed_over or job.is_queued for job in jobs)
    assert len(lanes._free) == DEPTH
    assert not lanes._in_flight
    assert len(lanes._needed) == lanes._ahead_bytes == 0


def test_more_than_the_kernel_has_room_for_goes_to_the_threads(
    kernel: Start, content: bytes
) -> None:
    seams = Threads()
    lanes = kernel(seams=seams)
    given = held(lanes)
    jobs = [page(i) for i in range(DEPTH + 9)]
    lanes.submit(jobs)
    assert [len(call) for call in given.offsets] == [DEPTH]
    lanes.wait(jobs)
    assert len(seams.read) == 9
    assert all_right(jobs, content)


def test_what_the_kernel_does_not_take_goes_to_the_threads(
    kernel: Start, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    seams = Threads()
    lanes = kernel(seams=seams)
    whole = Aio.submit
    monkeypatch.setattr(Aio, "submit", lambda aio, reads: whole(aio, reads[:3]))
    jobs = [page(i, name=str(i), is_ahead=i >= 8) for i in range(12)]
    lanes.submit(jobs[:8])
    lanes.submit(jobs[8:])
    lanes.wait(jobs)
    assert all_right(jobs, content)
    read = sorted(map(int, seams.read))
    # The last one may still be given to the kernel when its batch's turn comes.
    assert read in ([3, 4, 5, 6, 7], [3, 4, 5, 6, 7, 11])
    assert len(lanes._free) == DEPTH
    assert len(lanes._needed) == lanes._ahead_bytes == 0


def test_too_much_read_ahead_goes_to_the_threads(
    kernel: Start, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert AHEAD_BYTES >= 1 << 20
    monkeypatch.setattr(kernel_lanes, "AHEAD_BYTES", 4 * PAGE)
    seams = Threads()
    lanes = kernel(seams=seams)
    given = held(lanes)
    jobs = [page(i, name=str(i), is_ahead=True) for i in range(10)]
    lanes.submit(jobs)
    assert given.offsets == [[0, 1, 2, 3]]
    needed = [page(20 + i) for i in range(10)]  # for these there is no such bound
    lanes.submit(needed)
    assert given.offsets[1:] == [list(range(20, 30))]
    lanes.wait([*jobs, *needed])
    assert all_right([*jobs, *needed], content)
    assert sorted(map(int, seams.read)) == [4, 5, 6, 7, 8, 9]
    lanes.submit(again := [page(30, is_ahead=True)])  # there is room for it again
    assert given.offsets[2:] == [[30]]
    lanes.wait(again)


# In which order.


def test_a_second_batch_waits_for_the_first(kernel: Start, content: bytes) -> None:
    lanes = kernel()
    given = held(lanes)
    first, second, third = ([page(10 * b + i) for i in range(3)] for b in range(3))
    ahead = [page(40 + i, is_ahead=True) for i in range(2)]
    lanes.submit(ahead[:1])
    for batch in (first, ahead[1:], second, third):
        lanes.submit(batch)
    assert given.offsets == [[40], [0, 1, 2]]
    assert all(job.is_queued and not job.is_handed_over for job in [*second, *third])
    lanes.reap()
    assert len(given.offsets) == 2
    lanes.wait(first)
    assert given.offsets[2:] == [[10, 11, 12]]
    lanes.wait(second)
    assert given.offsets[3:] == [[20, 21, 22]]
    lanes.wait(third)
    assert given.offsets[4:] == [[41]]  # after all that somebody waits for
    lanes.wait(ahead)
    assert all_right([*first, *second, *third, *ahead], content)


def test_a_look_is_enough_to_go_on(kernel: Start, content: bytes) -> None:
    lanes = kernel()
    first, second = [page(1)], [page(2)]
    lanes.submit(first)
    lanes.submit(second)
    for _ in range(10_000):
        lanes.reap()
        if second[0].is_done:
            break
        signal.pthread_sigmask(signal.SIG_BLOCK, ())  # a system call
    lanes.wait(second)
    assert all_right([*first, *second], content)


def test_who_waits_does_not_wait_for_a_turn(kernel: Start, content: bytes) -> None:
    lanes = kernel()
    given = held(lanes)
    first, second, third = ([page(10 * b + i) for i in range(3)] for b in range(3))
    for batch in (first, second, third):
        lanes.submit(batch)
    lanes.wait(third)
    assert given.offsets[:2] == [[0, 1, 2], [20, 21, 22]]
    lanes.wait(second)
    assert given.offsets == [[0, 1, 2], [20, 21, 22], [10, 11, 12]]
    assert all_right([*first, *second, *third], content)


def test_what_is_read_ahead_hurries_before_what_is_not(kernel: Start, content: bytes) -> None:
    lanes = kernel()
    given = held(lanes)
    first, ahead = [page(0)], [page(10 + i, is_ahead=True) for i in range(4)]
    lanes.submit(first)
    lanes.submit(ahead)
    lanes.hurry(ahead[2:])
    lanes.hurry(ahead[2:])
    assert given.offsets == [[0]]
    lanes.wait(first)
    assert given.offsets[1:] == [[12, 13]]
    lanes.hurry(ahead[2:])  # it has been handed over: there is nothing to do
    lanes.wait(ahead)
    assert given.offsets[1:] == [[12, 13], [10, 11]]
    assert all_right([*first, *ahead], content)


def test_nothing_is_read_twice(kernel: Start, content: bytes) -> None:
    seams = Threads()
    lanes = kernel(seams=seams)
    given = Given(lanes._aio)
    lanes._aio = given  # type: ignore[assignment]
    jobs = [page(i, is_ahead=i % 2 == 0) for i in range(DEPTH)]
    for job in jobs:
        lanes.submit([job])
        lanes.hurry(jobs)
    lanes.wait(jobs)
    offsets = list(itertools.chain(*given.offsets))
    assert len(offsets) + len(seams.read) == DEPTH
    assert len(set(offsets)) == len(offsets)
    assert all_right(jobs, content)


def test_nothing_to_do(kernel: Start) -> None:
    lanes = kernel()
    given = held(lanes)
    lanes.submit([])
    lanes.wait([])
    lanes.cancel([])
    lanes.hurry([])
    lanes.reap()
    assert given.offsets == []


def test_a_seam_may_keep_a_read_from_the_kernel(kernel: Start) -> None:
    class Missing(Seams):
        def hands_over(self, tensor: str, is_ahead: bool) -> bool:
            return tensor != "missing"

    lanes = kernel(seams=Missing())
    jobs = [page(0), page(1, name="missing")]
    lanes.submit(jobs)
    lanes.wait(jobs)
    assert bytes(jobs[1].read.window) == b"\xff" * PAGE


# What goes wrong.


def test_what_is_taken_back(kernel: Start, content: bytes) -> None:
    lanes = kernel()
    given = held(lanes)
    flying = [page(i) for i in range(3)]
    queued, ahead = [page(10)], [page(11, is_ahead=True)]
    for batch in (flying, queued, ahead):
        lanes.submit(batch)
    lanes.cancel(job for job in [*queued, *ahead])
    assert all(isinstance(job.error, Cancelled) and job.is_done for job in [*queued, *ahead])
    assert not flying[0].is_done
    lanes.cancel(flying)
    assert all_right(flying, content)  # what the kernel was given is waited for
    assert given.offsets == [[0, 1, 2]]
    with pytest.raises(Cancelled):
        lanes.wait(queued)
    lanes.submit(later := [page(20)])
    lanes.wait(later)
    assert given.offsets == [[0, 1, 2], [20]]
    assert bytes(queued[0].read.window) == b"\xff" * PAGE


def test_taking_back_what_comes_before_what_it_waits_for(kernel: Start, content: bytes) -> None:
    """What lands must not let go on what is being taken back."""
    lanes = kernel()
    held(lanes)
    flying, queued = [page(0)], [page(1)]
    lanes.submit(flying)
    lanes.submit(queued)
    lanes.cancel([*queued, *flying])
    assert isinstance(queued[0].error, Cancelled)
    assert all_right(flying, content)


def test_the_end_of_the_file_is_what_the_ordinary_road_says(
    kernel: Start, content: bytes, file: Path
) -> None:
    lanes = kernel()
    memory = page(0, n=4).read.window
    bad = Job(Read("blk.9.up", (N_PAGES - 1) * PAGE, memory, 4 * PAGE, True, is_fresh=False))
    beyond = Job(Read("blk.9.down", 2 * N_PAGES * PAGE, page(0).read.window, 9, True, 0, False))
    good = [page(i) for i in range(5)]
    jobs = [*good, bad, beyond]
    lanes.submit(jobs)
    with pytest.raises(ReadFault) as fault:
        lanes.wait(jobs)
    assert str(fault.value) == (
        f"{file}: reading {4 * PAGE} bytes of blk.9.up at offset {(N_PAGES - 1) * PAGE}"
        f" stopped after {PAGE + REST}: the file ends there"
    )
    assert all(job.is_done for job in jobs)
    assert isinstance(beyond.error, ReadFault)
    assert all_right(good, content)
    lanes.submit(again := [page(3)])
    lanes.wait(again)
    assert all_right(again, content)


def test_a_window_that_ends_beyond_the_file_is_no_error(kernel: Start, content: bytes) -> None:
    lanes = kernel()
    last = page(N_PAGES, n=1)
    lanes.submit([last])
    lanes.wait([last])
    assert last.read_bytes == last.read.needed_bytes == REST
    assert is_right(last, content)


@pytest.mark.parametrize("got", [0, 512, PAGE])
def test_a_short_read_goes_on_where_it_ended(
    kernel: Start, content: bytes, monkeypatch: pytest.MonkeyPatch, got: int
) -> None:
    lanes = kernel()
    whole = Aio.done

    def short(aio: Aio, *, at_least: int) -> list[tuple[int, int]]:
        return [(key, min(result, got)) for key, result in whole(aio, at_least=at_least)]

    monkeypatch.setattr(Aio, "done", short)
    jobs = [page(i, n=2) for i in range(4)]
    lanes.submit(jobs)
    lanes.wait(jobs)
    assert all_right(jobs, content)


def test_a_refused_read_is_buffered_and_said_once(
    kernel: Start, make: Make, content: bytes, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both roads refuse O_DIRECT from some moment on, as a file system may."""
    warnings: list[str] = []
    reader = make(warn=warnings.append)
    lanes = kernel(reader=reader)
    whole_done, whole_read = Aio.done, Channel.read

    def refused(aio: Aio, *, at_least: int) -> list[tuple[int, int]]:
        return [(key, -errno.EINVAL) for key, _ in whole_done(aio, at_least=at_least)]

    def read(channel: Channel, one: Read) -> int:
        if reader.is_direct:
            reader.fall_back(file)
        return whole_read(channel, one)

    monkeypatch.setattr(Aio, "done", refused)
    monkeypatch.setattr(Channel, "read", read)
    jobs = [page(i) for i in range(6)]
    for job in jobs:
        job.read.window[:] = b"\xff" * PAGE
    lanes.submit(jobs)
    lanes.wait(jobs)
    later = [page(10 + i) for i in range(3)]
    lanes.submit(later)
    lanes.wait(later)
    assert all_right([*jobs, *later], content)
    assert len(warnings) == 1
    assert "refused an O_DIRECT read" in warnings[0]
    assert not reader.is_direct


def test_a_read_that_the_kernel_finds_unaligned_is_buffered(
    kernel: Start, make: Make, content: bytes
) -> None:
    """A real one: the reader takes it for aligned, and the file system does not."""
    warnings: list[str] = []
    lanes = kernel(reader=make(warn=warnings.append))
    jobs = [page(i) for i in range(3)]
    bad = Job(Read("t", 2 * PAGE + 3, memoryview(bytearray(100)), 100, True, is_fresh=False))
    lanes.submit([*jobs[:2], bad, jobs[2]])
    lanes.wait([*jobs, bad])
    assert all_right([*jobs, bad], content)
    assert len(warnings) == 1


class Breaking:
    """Ctrl-C that arrives right after a call into the kernel, once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        whole: Callable[..., Any] = getattr(Aio, name)
        self.n_times = 1

        def broken(aio: Aio, *arguments: Any, **rest: Any) -> Any:
            found = whole(aio, *arguments, **rest)
            if self.n_times and found:
                self.n_times -= 1
                raise KeyboardInterrupt
            return found

        monkeypatch.setattr(Aio, name, broken)


@pytest.mark.parametrize("name", ["submit", "done"])
def test_broken_off_midway_it_starts_again(
    kernel: Start, content: bytes, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    seams = Threads()
    lanes = kernel(seams=seams)
    breaking = Breaking(monkeypatch, name)
    batches = [[page(10 * b + i, is_ahead=b == 2) for i in range(4)] for b in range(3)]

    def run() -> None:
        for batch in batches:
            lanes.submit(batch)
        lanes.wait(batches[0])

    with pytest.raises(KeyboardInterrupt):
        run()
    assert breaking.n_times == 0
    jobs = [job for batch in batches for job in batch]
    assert all(job.is_done and isinstance(job.error, Cancelled) for job in batches[0])
    lanes.cancel(jobs)
    ended = threading.Thread(target=lambda: [job.wait() for job in jobs], daemon=True)
    ended.start()
    ended.join(20)
    assert not ended.is_alive()  # every job is done, and nobody writes into its memory any more
    assert not any(job.is_handed_over for job in jobs)
    again = [page(i) for i in range(20)]
    lanes.submit(again)
    lanes.wait(again)
    assert all_right(again, content)
    assert len(lanes._free) == DEPTH
    assert len(lanes._needed) == lanes._ahead_bytes == 0
    assert seams.read == []


def test_where_it_cannot_start_again_the_threads_go_on(
    kernel: Start, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    seams = Threads()
    lanes = kernel(seams=seams)
    Breaking(monkeypatch, "submit")

    def refuse(_depth: int) -> Aio:
        raise OSError(errno.EAGAIN, "no more")

    monkeypatch.setattr(kernel_lanes, "Aio", refuse)
    with pytest.raises(KeyboardInterrupt):
        lanes.submit([page(0)])
    jobs = [page(i) for i in range(5)]
    lanes.submit(jobs)
    lanes.wait(jobs)
    lanes.reap()
    assert all_right(jobs, content)
    assert len(seams.read) == 5


def test_closing_with_reads_on_their_way(kernel: Start, content: bytes) -> None:
    lanes = kernel()
    held(lanes)
    flying = [page(i, n=8) for i in range(40)]
    queued, ahead = [page(10)], [page(11, is_ahead=True)]
    for batch in (flying, queued, ahead):
        lanes.submit(batch)
    lanes.close()
    assert all_right(flying, content)
    assert all(job.is_done and isinstance(job.error, Cancelled) for job in [*queued, *ahead])
    lanes.close()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted in /proc")
def test_closing_leaves_no_descriptor_and_no_thread(make: Make, kernel: Start) -> None:
    reader = make()
    kernel(reader=reader).close()
    before = descriptors(), threading.active_count()
    for n in (1, 4, 8):
        lanes = kernel(n, reader=reader)
        assert descriptors() == before[0] + 2 * (n + 1)
        jobs = [page(i) for i in range(5)]
        lanes.submit(jobs)
        lanes.close()
        assert (descriptors(), threading.active_count()) == before


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted in /proc")
def test_lanes_that_cannot_be_made_leave_nothing(
    make: Make, kernel: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = make()
    kernel(reader=reader).close()
    before = descriptors(), threading.active_count()
    closed: list[Aio] = []
    whole = Aio.close
    monkeypatch.setattr(Aio, "close", lambda aio: (closed.append(aio), whole(aio)))
    monkeypatch.setattr(threading.Thread, "start", _refused)
    with pytest.raises(Exception, match="lane 1 of 3"):
        KernelLanes(reader, 3, seams=NO_SEAMS)
    assert (descriptors(), threading.active_count()) == before
    assert closed


def _refused(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


# Which lanes a session has.

BUSY: dict[str, Any] = {"moe_stream": True, "cache_mb": 8, "overlap": True}


def chosen(config: Config, reader: SliceReader, seams: Seams = NO_SEAMS) -> type[Lanes]:
    lanes = lanes_for(config, reader, seams)
    lanes.close()
    return type(lanes)


@pytest.mark.parametrize(
    "changes",
    [BUSY, BUSY | {"overlap": False, "predict_prefetch": True}, BUSY | {"prefetch": 2}],
    ids=str,
)
def test_under_compute_the_kernel_reads(
    config: Config, make: Make, kernel: Start, changes: dict[str, Any]
) -> None:
    kernel().close()
    assert chosen(config.replace(**changes), make()) is KernelLanes


def test_otherwise_threads_do(
    config: Config, make: Make, kernel: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel().close()
    busy = config.replace(**BUSY)
    assert chosen(busy.replace(overlap=False), make()) is Lanes
    assert chosen(busy.replace(kernel_reads=False), make()) is Lanes
    assert chosen(busy, make(direct=False)) is Lanes
    assert chosen(busy, make(), Threads()) is Lanes  # that want to see each read
    before = threading.active_count()

    def refuse(_depth: int) -> Aio:
        raise OSError(errno.EAGAIN, "no more")

    monkeypatch.setattr(kernel_lanes, "Aio", refuse)
    assert chosen(busy, make()) is Lanes
    assert threading.active_count() == before


# In a session.

AHEAD = BUSY | {"cache_mb": 4, "predict_prefetch": True}


def lanes_of(session: Session) -> Lanes:
    assert session.streamer is not None
    return session.streamer.lanes


@pytest.mark.parametrize(
    "changes",
    [AHEAD, AHEAD | {"cache_memory": "pages"}, AHEAD | {"cache_mb": 2}, BUSY | {"cache_mb": 0}],
    ids=str,
)
def test_a_session_is_the_resident_one(
    opened: Callable[..., Session], kernel: Start, prompt: str, changes: dict[str, Any]
) -> None:
    kernel().close()
    sound = opened().generate(prompt).run().evidence()
    session = opened(**changes)
    lanes = lanes_of(session)
    assert isinstance(lanes, KernelLanes)
    given = Given(lanes._aio)
    lanes._aio = given  # type: ignore[assignment]
    for _ in range(2):
        found = session.generate(prompt).run().evidence()
        assert (found.ids, found.logits_sha256) == (sound.ids, sound.logits_sha256)
    # A page that was given back has to come again first, and no layer keeps the shared memory.
    assert bool(given.offsets) == (changes["cache_mb"] != 0 and "cache_memory" not in changes)


def test_bytes_are_spread_over_the_file(content: bytes) -> None:
    """Pages differ, or the tests above would show less than they seem to."""
    pages = np.frombuffer(content[: N_PAGES * PAGE], np.uint8).reshape(N_PAGES, PAGE)
    assert len({one.tobytes() for one in pages}) == N_PAGES
