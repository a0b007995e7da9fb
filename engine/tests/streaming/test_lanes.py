from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.errors import ReadFault, SystemFault
from sluice.seams import Seams
from sluice.streaming.lanes import Cancelled, Job, Lanes
from sluice.streaming.reader import Read, SliceReader

from .parts import SIZE, descriptors, exact, window

Start = Callable[..., Lanes]
WAIT_S = 20


class Gate(Seams):
    """Keeps the order in which reads begin; a read named "held" begins when it is let go."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.holding, self.let_go = threading.Event(), threading.Event()

    def lane_reads(self, tensor: str, is_ahead: bool) -> None:
        self.began.append(tensor)
        if tensor == "held":
            self.holding.set()
            assert self.let_go.wait(WAIT_S)


def named(name: str, offset: int = 0, size: int = 10, *, is_ahead: bool = False) -> Job:
    read = Read(name, offset, memoryview(bytearray(size)), 0, size, aligned=False)
    return Job(read, is_ahead=is_ahead)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def held(start: Start, gate: Gate) -> Lanes:
    """One lane, which is busy until the gate lets it go."""
    lanes = start(seams=gate)
    lanes.submit([named("held")])
    assert gate.holding.wait(WAIT_S)
    return lanes


@pytest.mark.parametrize("is_direct", [True, False])
@pytest.mark.parametrize("helps", [True, False])
@pytest.mark.parametrize("n", [1, 2, 4, 8, 64])
def test_what_is_waited_for_is_there(
    start: Start, content: bytes, n: int, helps: bool, is_direct: bool
) -> None:
    lanes = start(n, helps=helps, direct=is_direct)
    places = [(i * 9973 % (SIZE - 5000), 1 + i * 37 % 5000) for i in range(80)]
    jobs = [Job(window(*p) if is_direct else exact(*p)) for p in places]
    lanes.submit(jobs)
    assert lanes.wait(jobs) >= 0
    for (offset, size), job in zip(places, jobs, strict=True):
        before = offset - job.read.offset
        assert bytes(job.read.window[before : before + size]) == content[offset : offset + size]
        assert job.is_done
        assert job.read_bytes >= size


def test_nothing_to_wait_for(start: Start) -> None:
    assert start(4).wait([]) < WAIT_S


def test_the_one_lane_that_helps_is_the_caller(start: Start, gate: Gate) -> None:
    before = threading.active_count()
    lanes = start(1, helps=True, seams=gate)
    assert threading.active_count() == before
    jobs = [named("a"), named("b")]
    lanes.submit(jobs)
    assert gate.began == []
    lanes.wait(jobs)
    assert gate.began == ["a", "b"]


@pytest.mark.parametrize("helps", [True, False])
def test_a_job_is_read_once_whoever_claims_it(start: Start, gate: Gate, helps: bool) -> None:
    lanes = start(4, helps=helps, seams=gate)
    jobs = [named(str(i), i, is_ahead=i % 2 == 0) for i in range(200)]
    lanes.submit(jobs)
    lanes.hurry(jobs)
    lanes.hurry(jobs)
    lanes.wait(jobs)
    lanes.close()
    assert sorted(gate.began, key=int) == [str(i) for i in range(200)]


def test_what_is_urgent_comes_before_what_is_read_ahead(held: Lanes, gate: Gate) -> None:
    ahead = [named(f"ahead {i}", is_ahead=True) for i in range(3)]
    urgent = [named(f"urgent {i}") for i in range(3)]
    held.submit(ahead)
    held.submit(urgent)
    gate.let_go.set()
    held.wait([*ahead, *urgent])
    assert gate.began == ["held", "urgent 0", "urgent 1", "urgent 2",
                          "ahead 0", "ahead 1", "ahead 2"]  # fmt: skip


def test_what_somebody_waits_for_by_now_goes_first(held: Lanes, gate: Gate) -> None:
    ahead = [named(f"ahead {i}", is_ahead=True) for i in range(4)]
    held.submit(ahead)
    held.hurry([ahead[2], ahead[3]])
    gate.let_go.set()
    held.wait(ahead)
    assert gate.began == ["held", "ahead 2", "ahead 3", "ahead 0", "ahead 1"]


@pytest.mark.parametrize("helps", [True, False])
def test_an_error_comes_out_when_all_are_done(start: Start, content: bytes, helps: bool) -> None:
    lanes = start(4, helps=helps, direct=False)
    good = [Job(exact(i * 4096, 4096)) for i in range(200)]
    bad = [named("second", SIZE), named("third", SIZE + 5)]
    jobs = [*good[:100], *bad, *good[100:]]
    lanes.submit(jobs)
    with pytest.raises(ReadFault, match=r"10 bytes of second .* the file ends there"):
        lanes.wait(jobs)
    assert all(job.is_done for job in jobs)
    for i, job in enumerate(good):
        assert job.error is None
        assert bytes(job.read.window) == content[i * 4096 : (i + 1) * 4096]
    # The lanes are none the worse.
    again = [Job(exact(0, 4096)) for _ in range(8)]
    lanes.submit(again)
    lanes.wait(again)


def test_anything_that_goes_wrong_in_a_lane_comes_out(start: Start) -> None:
    class Broken(Seams):
        def lane_has_read(self, tensor: str, is_ahead: bool) -> None:
            raise KeyError(tensor)

    lanes = start(2, seams=Broken())
    jobs = [named("a"), named("b")]
    lanes.submit(jobs)
    with pytest.raises(KeyError, match="a"):
        lanes.wait(jobs)
    assert isinstance(jobs[1].error, KeyError)


def test_what_is_taken_back_is_not_read(held: Lanes, gate: Gate) -> None:
    queued = [named("a"), named("b", is_ahead=True)]
    held.submit(queued)
    held.cancel(queued)
    assert all(isinstance(job.error, Cancelled) for job in queued)
    assert all(job.is_done for job in queued)
    with pytest.raises(Cancelled):
        held.wait(queued)
    gate.let_go.set()
    later = named("later")
    held.submit([later])
    held.wait([later])
    assert gate.began == ["held", "later"]


def test_taking_back_waits_for_what_a_lane_has_begun(start: Start, gate: Gate) -> None:
    lanes, running = start(seams=gate), named("held")
    lanes.submit([running])
    assert gate.holding.wait(WAIT_S)
    other = threading.Thread(target=lanes.cancel, args=([running],))
    other.start()
    other.join(0.05)
    assert other.is_alive()
    gate.let_go.set()
    other.join(WAIT_S)
    assert not other.is_alive()
    assert running.is_done
    assert running.error is None


def test_closing_takes_back_what_is_queued(held: Lanes, gate: Gate) -> None:
    queued = [named(str(i), is_ahead=i % 2 == 0) for i in range(20)]
    held.submit(queued)
    closing = threading.Thread(target=held.close)
    closing.start()
    while not all(job.is_done for job in queued):
        assert closing.is_alive()
    assert all(isinstance(job.error, Cancelled) for job in queued)
    gate.let_go.set()
    closing.join(WAIT_S)
    assert not closing.is_alive()
    assert gate.began == ["held"]
    held.close()


def lane_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("lane")]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted in /proc")
@pytest.mark.parametrize("helps", [True, False])
def test_closing_leaves_no_descriptor_and_no_thread(
    make: Callable[..., SliceReader], helps: bool
) -> None:
    reader = make(warn=lambda _text: None)
    before = descriptors()
    each = 2 if reader.is_direct else 1
    for n in (1, 3, 8):
        lanes = Lanes(reader, n, helps=helps, seams=Seams())
        assert descriptors() == before + n * each
        assert len(lane_threads()) == n - helps
        jobs = [named(str(i)) for i in range(5)]
        lanes.submit(jobs)
        lanes.wait(jobs)
        lanes.close()
        assert descriptors() == before
        assert lane_threads() == []


@pytest.mark.parametrize("helps", [True, False])
def test_a_thread_that_cannot_be_started_is_a_fault(
    make: Callable[..., SliceReader], monkeypatch: pytest.MonkeyPatch, helps: bool
) -> None:
    reader = make(direct=False)
    before = descriptors()
    whole, started = threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        if len(started) == 3:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        whole(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(SystemFault, match=r"lane .*can't start new thread.*--io-threads"):
        Lanes(reader, 8, helps=helps, seams=Seams())
    assert len(started) == 3
    assert lane_threads() == []
    assert descriptors() == before


@pytest.mark.parametrize("helps", [True, False])
def test_a_file_that_has_gone_is_a_fault_and_leaves_nothing(
    make: Callable[..., SliceReader], file: Path, helps: bool
) -> None:
    reader = make(direct=False)
    file.unlink()
    before = descriptors()
    with pytest.raises(SystemFault, match="cannot be opened: No such file"):
        Lanes(reader, 4, helps=helps, seams=Seams())
    assert descriptors() == before
    assert lane_threads() == []
