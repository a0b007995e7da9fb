from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.llama.aio import Aio
from sluice.seams import Seams
from sluice.streaming import kernel_lanes
from sluice.streaming.kernel_lanes import AHEAD_BYTES, DEPTH, KernelLanes
from sluice.streaming.lanes import Cancelled, Job
from sluice.streaming.reader import Read, SliceReader

from .kernel_parts import Given, Threads, all_right, held, page
from .parts import PAGE, SIZE, window

Make = Callable[..., SliceReader]
Start = Callable[..., KernelLanes]
N_PAGES = SIZE // PAGE
REST = SIZE % PAGE

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
    shifted = Read("t", 7, memoryview(bytearray(50)), 0, 50, aligned=False, is_fresh=False)
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
    assert given.offsets[1:] == [[12, 13]], "the rest would hold up what somebody waits for"
    lanes.wait(ahead[2:])
    assert given.offsets[2:] == [[10, 11]]
    lanes.hurry(ahead)  # it has been handed over: there is nothing to do
    lanes.wait(ahead)
    assert len(given.offsets) == 3
    assert all_right([*first, *ahead], content)


def test_nothing_is_handed_over_beside_a_read_ahead_that_somebody_waits_for(
    kernel: Start, content: bytes
) -> None:
    lanes = kernel()
    given = held(lanes)
    awaited, needed, later = [page(0, is_ahead=True)], [page(1)], [page(2, is_ahead=True)]
    lanes.submit(awaited)
    lanes.hurry(awaited)
    lanes.submit(needed)
    lanes.submit(later)
    assert given.offsets == [[0]]
    lanes.wait(awaited)
    assert given.offsets == [[0], [1]]
    lanes.wait(needed)
    assert given.offsets == [[0], [1], [2]]
    lanes.wait(later)
    assert len(lanes._needed) == lanes._ahead_bytes == 0
    assert all_right([*awaited, *needed, *later], content)


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
