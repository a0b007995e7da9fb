from __future__ import annotations

import contextlib
import mmap
import os
import random
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sluice.errors import ReadFault
from sluice.llama import libc
from sluice.streaming.reader import PAGE_BYTES, Channel, SliceReader

from .parts import PAGE, SIZE, exact, window

Make = Callable[..., SliceReader]
Open = Callable[[SliceReader], Channel]


@pytest.fixture
def direct(make: Make) -> None:
    """Skips where the disk under the tests' folder does not refuse a misaligned read."""
    reader = make(warn=lambda _text: None)
    if not reader.is_direct:
        pytest.skip("no O_DIRECT on this file system")
    fd = os.open(reader.paths[0], os.O_RDONLY | os.O_DIRECT)
    try:
        with contextlib.suppress(OSError):
            os.preadv(fd, [memoryview(mmap.mmap(-1, 2 * PAGE))[1 : PAGE + 1]], 0)
            pytest.skip("this file system takes misaligned O_DIRECT reads")
    finally:
        os.close(fd)


def slices(seed: int, count: int) -> list[tuple[int, int]]:
    chance = random.Random(seed)
    found = [(0, SIZE), (SIZE - 1, 1), (0, 1), (PAGE, PAGE), (PAGE - 1, 2)]
    while len(found) < count:
        offset = chance.randrange(SIZE)
        found.append((offset, min(chance.choice((1, 511, 4096, 70_001)), SIZE - offset)))
    return found


@pytest.mark.parametrize("is_direct", [True, False])
def test_slices_are_the_files_bytes(
    make: Make, channel: Open, content: bytes, is_direct: bool
) -> None:
    reader = make(direct=is_direct, warn=lambda _text: None)
    one = channel(reader)
    for offset, size in slices(1, 60):
        read = (
            window(offset, size, alignment=reader.alignment) if is_direct else exact(offset, size)
        )
        assert one.read(read) >= size
        before = offset - read.offset
        assert bytes(read.window[before : before + size]) == content[offset : offset + size]


@pytest.mark.usefixtures("direct")
def test_a_direct_window_brings_the_neighbours_own_bytes(
    make: Make, channel: Open, content: bytes
) -> None:
    reader = make()
    step = reader.alignment
    read = window(5000, 100, alignment=step)
    assert channel(reader).read(read) == len(read.window)
    assert len(read.window) % step == 0
    begin = 5000 // step * step
    assert bytes(read.window) == content[begin : begin + len(read.window)]


def test_a_buffered_read_delivers_exactly_the_slice(make: Make, channel: Open) -> None:
    one = channel(make(direct=False))
    assert one.read(exact(5000, 100)) == 100
    assert one.read(exact(1, 7)) == 7


def test_a_window_may_end_beyond_the_file(make: Make, channel: Open, content: bytes) -> None:
    read = window(SIZE - 10, 10)
    assert read.offset + len(read.window) > SIZE
    channel(make(warn=lambda _text: None)).read(read)
    before = SIZE - 10 - read.offset
    assert bytes(read.window[before : before + 10]) == content[-10:]


def test_every_shard_is_read_from_its_own_file(
    make: Make, channel: Open, file: Path, tmp_path: Path, content: bytes
) -> None:
    other = tmp_path / "second.bin"
    other.write_bytes(content[::-1])
    one = channel(make(file, other, direct=False))
    for shard, raw in enumerate((content, content[::-1])):
        read = exact(1000, 50, shard)
        one.read(read)
        assert bytes(read.window) == raw[1000:1050]
    with pytest.raises(ReadFault, match=rf"^{other}: reading 9 bytes .* the file ends there"):
        one.read(exact(SIZE, 9, 1))


# Alignment.


def test_the_alignment_is_what_the_file_system_says(make: Make, file: Path) -> None:
    said = libc.direct_alignment(file)
    reader = make(warn=lambda _text: None)
    if not said:
        pytest.skip("this file system does not say")
    assert (reader.is_direct, reader.alignment) == (True, said)
    assert reader.granule_bytes == max(said, PAGE_BYTES)


@pytest.mark.usefixtures("direct")
@pytest.mark.parametrize("said", [4096, 16384, 1 << 20])
def test_a_coarse_alignment_makes_a_coarse_granule(
    make: Make, channel: Open, monkeypatch: pytest.MonkeyPatch, content: bytes, said: int
) -> None:
    monkeypatch.setattr(libc, "direct_alignment", lambda _path: said)
    reader = make()
    assert (reader.alignment, reader.granule_bytes) == (said, said)
    read = window(20_000, 5, alignment=said)
    assert channel(reader).read(read) == len(read.window)
    assert bytes(read.window) == content[read.offset : read.offset + len(read.window)]


@pytest.mark.usefixtures("direct")
def test_a_file_system_that_is_silent_is_tried(
    make: Make, monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    said = libc.direct_alignment(file)
    monkeypatch.setattr(libc, "direct_alignment", lambda _path: None)
    reader = make()
    assert reader.is_direct
    assert reader.alignment in (512, 4096, 65536)
    assert not said or reader.alignment >= said


@pytest.mark.parametrize("said", [0, 3, 1000, 1 << 21, -4096])
def test_an_alignment_that_cannot_be_is_not_used(
    make: Make, channel: Open, monkeypatch: pytest.MonkeyPatch, content: bytes, said: int
) -> None:
    warned: list[str] = []
    monkeypatch.setattr(libc, "direct_alignment", lambda _path: said)
    reader = make(warn=warned.append)
    if reader.is_direct:  # a disk that is not particular
        assert reader.alignment == said
        return
    assert len(warned) == 1
    assert "does not take O_DIRECT; slices are read through the page cache" in warned[0]
    read = exact(77, 5)
    channel(reader).read(read)
    assert bytes(read.window) == content[77:82]


@pytest.mark.usefixtures("direct")
def test_shards_are_aligned_for_the_strictest_of_them(
    make: Make, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "second.bin"
    shutil.copy(file, other)
    monkeypatch.setattr(libc, "direct_alignment", lambda path: {file: 4096, other: 8192}[path])
    assert make(file, other).alignment == make(other, file).alignment == 8192


def test_a_file_system_without_o_direct_is_warned_of_once(make: Make, channel: Open) -> None:
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
    channel(reader).read(read)
    assert bytes(read.window) == path.read_bytes()[:5]
    assert len(warned) == 1


def test_a_buffered_reader_does_not_warn(make: Make) -> None:
    reader = make(direct=False)
    assert (reader.alignment, reader.granule_bytes) == (1, PAGE_BYTES)


# What the disk refuses, and what it gives in pieces.


@pytest.mark.usefixtures("direct")
def test_a_read_that_is_refused_falls_back_with_one_warning(
    make: Make, channel: Open, file: Path, content: bytes
) -> None:
    warned: list[str] = []
    reader = make(warn=warned.append)
    one, other = channel(reader), channel(reader)
    assert reader.is_direct
    for i in range(6):
        read = window(i * 10_000, 5000, shift=1)
        (one if i % 2 else other).read(read)
        before = i * 10_000 - read.offset
        assert bytes(read.window[before : before + 5000]) == content[i * 10_000 :][:5000]
    assert warned == [
        f"{file}: its file system refused an O_DIRECT read; slices are read through the page cache"
    ]
    assert (reader.is_direct, reader.alignment) == (False, 1)
    one.read(window(0, 100))  # planned before that
    assert len(warned) == 1


@pytest.mark.usefixtures("direct")
def test_channels_that_are_refused_at_once_warn_once(
    make: Make, channel: Open, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    warned: list[str] = []
    reader = make(warn=warned.append)
    whole, meeting = os.preadv, threading.Barrier(4)
    channels = [channel(reader) for _ in range(4)]
    fds = {fd for one in channels for fd in one._direct}

    def together(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        try:
            return whole(fd, buffers, offset)
        finally:
            if fd in fds:
                meeting.wait(10)

    monkeypatch.setattr(os, "preadv", together)
    reads = [window(i * 10_000, 5000, shift=1) for i in range(4)]
    threads = [
        threading.Thread(target=c.read, args=(r,)) for c, r in zip(channels, reads, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(warned) == 1
    for read in reads:
        assert bytes(read.window[:5000]) == content[read.offset : read.offset + 5000]


def test_a_read_that_arrives_in_pieces_is_continued(make: Make, channel: Open) -> None:
    path = Path("/proc/kallsyms")  # comes by the page, however much is asked for
    if not path.exists() or len(path.read_bytes()) < 30_000:
        pytest.skip("no long file in /proc")
    expected = path.read_bytes()[100:20_100]
    with path.open("rb", buffering=0) as raw:
        assert os.preadv(raw.fileno(), [bytearray(20_000)], 100) < 20_000
    read = exact(100, 20_000)
    assert channel(make(path, direct=False)).read(read) == 20_000
    assert bytes(read.window) == expected


@pytest.mark.parametrize("pieces", [(1,), (4096,), (512, 4096, 7)])
def test_a_direct_read_that_arrives_in_pieces_is_continued(
    make: Make,
    channel: Open,
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
        piece = memoryview(mmap.mmap(-1, PAGE))
        got = whole(one._buffered[0], [piece[: pieces[calls % len(pieces)]]], offset)
        got = min(got, len(buffers[0]))
        buffers[0][:got] = piece[:got]
        return got

    one = channel(make(warn=lambda _text: None))
    read = window(9000, 6000)
    monkeypatch.setattr(os, "preadv", short)
    assert one.read(read) >= read.needed_bytes
    before = 9000 - read.offset
    assert bytes(read.window[before : before + 6000]) == content[9000:15_000]
    assert calls > 1
