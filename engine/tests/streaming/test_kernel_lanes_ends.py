"""How reads of the kernel end: short, refused, broken off, closed; and who has such lanes."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.config import Config
from sluice.decoding.session import Session
from sluice.errors import ReadFault
from sluice.llama.aio import Aio
from sluice.seams import NO_SEAMS, Seams
from sluice.streaming import kernel_lanes
from sluice.streaming.kernel_lanes import DEPTH, KernelLanes, lanes_for
from sluice.streaming.lanes import Cancelled, Job, Lanes
from sluice.streaming.reader import Channel, Read, SliceReader

from .kernel_parts import Given, Threads, all_right, held, is_right, page
from .parts import PAGE, SIZE, address_of, descriptors

Make = Callable[..., SliceReader]
Start = Callable[..., KernelLanes]
N_PAGES = SIZE // PAGE
REST = SIZE % PAGE


def test_the_end_of_the_file_is_what_the_ordinary_road_says(
    kernel: Start, content: bytes, file: Path
) -> None:
    lanes = kernel()
    bad, beyond = page(0, n=4), page(0)
    bad.read = replace(bad.read, tensor="blk.9.up", offset=(N_PAGES - 1) * PAGE)
    beyond.read = replace(beyond.read, tensor="blk.9.down", offset=2 * N_PAGES * PAGE)
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
    memory = memoryview(bytearray(100))
    bad = Job(Read("t", 2 * PAGE + 3, memory, address_of(memory), 100, True, is_fresh=False))
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
