from __future__ import annotations

import contextlib
import mmap
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.errors import ReadFault, SystemFault
from sluice.streaming.reader import ALIGNMENT, Read, SliceReader

SIZE = 3 * 1024 * 1024 + 777


@pytest.fixture(scope="module")
def content() -> bytes:
    return np.random.default_rng(5).bytes(SIZE)


@pytest.fixture
def file(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "weights.bin"
    path.write_bytes(content)
    return path


@pytest.fixture
def make(file: Path) -> Iterator[Callable[..., SliceReader]]:
    made: list[SliceReader] = []

    def make_(path: Path = file, **changes: Any) -> SliceReader:
        wanted: dict[str, Any] = {"lanes": 1, "direct": True, "warn": no_warning} | changes
        made.append(SliceReader(path, **wanted))
        return made[-1]

    yield make_
    for reader in made:
        reader.close()


def no_warning(text: str) -> None:
    raise AssertionError(text)


@pytest.fixture
def direct(make: Callable[..., SliceReader]) -> None:
    """Skips where the disk under the tests' folder does not refuse a misaligned read."""
    reader = make(warn=lambda _text: None)
    if not reader.is_direct:
        pytest.skip("no O_DIRECT on this file system")
    probe = mmap.mmap(-1, 2 * ALIGNMENT)
    with contextlib.suppress(OSError):
        os.preadv(reader._direct, [memoryview(probe)[1 : ALIGNMENT + 1]], 0)
        pytest.skip("this file system takes misaligned O_DIRECT reads")


def page_buffer(size: int) -> memoryview:
    return memoryview(mmap.mmap(-1, size))


def exact(offset: int, size: int) -> Read:
    return Read("t", offset, memoryview(bytearray(size)), size, aligned=False)


def window(offset: int, size: int, shift: int = 0) -> Read:
    """An aligned read of [offset, offset + size); ``shift`` spoils the address."""
    before = offset % ALIGNMENT
    length = -(-(before + size) // ALIGNMENT) * ALIGNMENT
    buffer = page_buffer(length + ALIGNMENT)[shift : shift + length]
    return Read("t", offset - before, buffer, before + size, aligned=True)


def slices(seed: int, count: int) -> list[tuple[int, int]]:
    chance = random.Random(seed)
    found = [(0, SIZE), (SIZE - 1, 1), (0, 1), (ALIGNMENT, ALIGNMENT), (ALIGNMENT - 1, 2)]
    while len(found) < count:
        offset = chance.randrange(SIZE)
        found.append((offset, min(chance.choice((1, 511, 4096, 70_001)), SIZE - offset)))
    return found


@pytest.mark.parametrize("is_direct", [True, False])
@pytest.mark.parametrize("lanes", range(1, 9))
def test_slices_are_the_files_bytes(
    make: Callable[..., SliceReader], content: bytes, lanes: int, is_direct: bool
) -> None:
    warned: list[str] = []
    reader = make(lanes=lanes, direct=is_direct, warn=warned.append)
    wanted = slices(lanes, 40)
    reads = [window(*w) if is_direct else exact(*w) for w in wanted]
    total = reader.read(reads)
    for (offset, size), read in zip(wanted, reads, strict=True):
        before = offset - read.offset
        assert bytes(read.window[before : before + size]) == content[offset : offset + size]
    assert total >= sum(size for _, size in wanted)
    assert not warned or not reader.is_direct


@pytest.mark.usefixtures("direct")
def test_a_direct_window_is_read_whole_and_counted(
    make: Callable[..., SliceReader], content: bytes
) -> None:
    read = window(5000, 100)
    assert make().read([read]) == ALIGNMENT
    assert bytes(read.window) == content[ALIGNMENT : 2 * ALIGNMENT]


def test_a_buffered_read_delivers_exactly_the_slice(make: Callable[..., SliceReader]) -> None:
    assert make(direct=False).read([exact(5000, 100), exact(1, 7)]) == 107


def test_a_window_may_end_beyond_the_file(make: Callable[..., SliceReader], content: bytes) -> None:
    read = window(SIZE - 10, 10)
    assert read.offset + len(read.window) > SIZE
    make(warn=lambda _text: None).read([read])
    before = SIZE - 10 - read.offset
    assert bytes(read.window[before : before + 10]) == content[-10:]


def test_no_reads_are_no_bytes(make: Callable[..., SliceReader]) -> None:
    assert make(lanes=4).read([]) == 0


@pytest.mark.parametrize("is_direct", [True, False])
@pytest.mark.parametrize("lanes", [1, 4])
def test_the_end_of_the_file_is_a_fault_in_words(
    make: Callable[..., SliceReader], file: Path, lanes: int, is_direct: bool
) -> None:
    reader = make(lanes=lanes, direct=is_direct, warn=lambda _text: None)
    offset = SIZE - 100
    read = window(offset, 8000) if is_direct else exact(offset, 8000)
    there = SIZE - read.offset
    with pytest.raises(ReadFault) as fault:
        reader.read([exact(0, 10), read, exact(50, 10)])
    assert str(fault.value) == (
        f"{file}: reading {read.needed_bytes} bytes of t at offset {read.offset} stopped after"
        f" {there}: the file ends there"
    )


def test_a_file_that_shrank_is_a_fault(make: Callable[..., SliceReader], file: Path) -> None:
    reader = make(warn=lambda _text: None)
    os.truncate(file, 4096)
    with pytest.raises(ReadFault, match="offset 8192 stopped after 0: the file ends there"):
        reader.read([window(8192, 100)])


def test_an_error_of_the_system_is_a_fault_in_its_words(
    make: Callable[..., SliceReader], file: Path
) -> None:
    reader = make(direct=False)
    read = Read("t", -5, memoryview(bytearray(10)), 10, aligned=False)
    with pytest.raises(ReadFault, match=r"offset -5 stopped after 0: Invalid argument"):
        reader.read([read])


def test_all_lanes_are_done_when_a_fault_comes_out(
    make: Callable[..., SliceReader], content: bytes
) -> None:
    reader = make(lanes=4, direct=False)
    good = [exact(i * 4096, 4096) for i in range(200)]
    with pytest.raises(ReadFault):
        reader.read([*good[:100], exact(SIZE, 1), *good[100:]])
    assert all(bytes(r.window) in (content[r.offset : r.offset + 4096], bytes(4096)) for r in good)
    seen = [bytes(r.window) for r in good]
    threading.Event().wait(0.02)
    assert [bytes(r.window) for r in good] == seen
    assert reader.read(good) == 200 * 4096


@pytest.mark.usefixtures("direct")
@pytest.mark.parametrize("lanes", [1, 4, 8])
def test_a_read_that_is_refused_falls_back_with_one_warning(
    make: Callable[..., SliceReader], file: Path, content: bytes, lanes: int
) -> None:
    warned: list[str] = []
    reader = make(lanes=lanes, warn=warned.append)
    assert (reader.is_direct, reader.alignment) == (True, ALIGNMENT)
    reads = [window(i * 10_000, 5000, shift=1) for i in range(24)]
    reader.read(reads)
    assert warned == [
        f"{file}: its file system refused an O_DIRECT read; slices are read through the page cache"
    ]
    assert (reader.is_direct, reader.alignment) == (False, 1)
    for i, read in enumerate(reads):
        before = i * 10_000 - read.offset
        assert bytes(read.window[before : before + 5000]) == content[i * 10_000 :][:5000]
    reader.read([window(0, 100), window(0, 100, shift=1)])
    assert len(warned) == 1


@pytest.mark.usefixtures("direct")
def test_lanes_that_are_refused_at_once_warn_once(
    make: Callable[..., SliceReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    warned: list[str] = []
    reader = make(lanes=4, warn=warned.append)
    whole, meeting = os.preadv, threading.Barrier(4)

    def together(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        try:
            return whole(fd, buffers, offset)
        finally:
            if fd == reader._direct:
                meeting.wait(10)

    monkeypatch.setattr(os, "preadv", together)
    reader.read([window(i * 10_000, 5000, shift=1) for i in range(4)])
    assert len(warned) == 1


def test_a_file_system_without_o_direct_is_warned_of_once(
    make: Callable[..., SliceReader],
) -> None:
    path = Path("/proc/version")  # /proc refuses O_DIRECT when a file is opened
    if not path.exists():
        pytest.skip("no /proc here")
    warned: list[str] = []
    reader = make(path, warn=warned.append)
    assert warned == [
        f"{path}: its file system does not take O_DIRECT; slices are read through the page cache"
    ]
    assert (reader.is_direct, reader.alignment) == (False, 1)
    read = exact(0, 5)
    reader.read([read])
    assert bytes(read.window) == path.read_bytes()[:5]
    assert len(warned) == 1


def test_a_buffered_reader_does_not_warn(make: Callable[..., SliceReader]) -> None:
    assert make(direct=False).alignment == 1


def test_a_read_that_arrives_in_pieces_is_continued(make: Callable[..., SliceReader]) -> None:
    path = Path("/proc/kallsyms")  # comes by the page, however much is asked for
    if not path.exists() or len(path.read_bytes()) < 30_000:
        pytest.skip("no long file in /proc")
    reader = make(path, direct=False)
    expected = path.read_bytes()[100:20_100]
    assert os.preadv(reader._buffered, [bytearray(20_000)], 100) < 20_000
    read = exact(100, 20_000)
    assert reader.read([read]) == 20_000
    assert bytes(read.window) == expected


@pytest.mark.parametrize("pieces", [(1,), (4096,), (512, 4096, 7)])
def test_a_direct_read_that_arrives_in_pieces_is_continued(
    make: Callable[..., SliceReader],
    content: bytes,
    monkeypatch: pytest.MonkeyPatch,
    pieces: tuple[int, ...],
) -> None:
    whole = os.preadv
    calls = 0

    def short(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        nonlocal calls
        calls += 1
        # A piece of a direct read is read through a page-aligned buffer of our own.
        got = os.pread(reader._buffered, pieces[calls % len(pieces)], offset)
        got = got[: len(buffers[0])]
        buffers[0][: len(got)] = got
        return len(got)

    reader = make(warn=lambda _text: None)
    read = window(9000, 6000)
    monkeypatch.setattr(os, "preadv", short)
    got = reader.read([read])
    monkeypatch.setattr(os, "preadv", whole)
    before = 9000 - read.offset
    assert bytes(read.window[before : before + 6000]) == content[9000:15_000]
    assert got >= read.needed_bytes
    assert calls > 1


def test_a_missing_file_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(SystemFault, match="cannot be opened: No such file"):
        SliceReader(tmp_path / "none", lanes=1, direct=True, warn=no_warning)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted in /proc")
def test_nothing_is_left_open(file: Path) -> None:
    def refuse(text: str) -> None:
        raise RuntimeError(text)

    before = descriptors()
    for _ in range(20):
        reader = SliceReader(file, lanes=4, direct=True, warn=lambda _text: None)
        reader.read([exact(0, 10), exact(10, 10)])
        reader.close()
        # Whoever is warned may raise.
        with pytest.raises(RuntimeError, match="does not take O_DIRECT"):
            SliceReader(Path("/proc/version"), lanes=2, direct=True, warn=refuse)
    assert descriptors() == before
    assert not [t for t in threading.enumerate() if t.name.startswith("lane")]
