"""What ends a read, files that are others by now, and what is left behind."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.errors import ReadFault, SystemFault
from sluice.streaming.reader import Channel, Read, SliceReader

from .parts import PAGE, SIZE, descriptors, exact, window

Make = Callable[..., SliceReader]
Open = Callable[[SliceReader], Channel]


@pytest.mark.parametrize("is_direct", [True, False])
def test_the_end_of_the_file_is_a_fault_in_words(
    make: Make, channel: Open, file: Path, is_direct: bool
) -> None:
    one = channel(make(direct=is_direct, warn=lambda _text: None))
    offset = SIZE - 100
    read = window(offset, 8000) if is_direct else exact(offset, 8000)
    with pytest.raises(ReadFault) as fault:
        one.read(read)
    assert str(fault.value) == (
        f"{file}: reading {read.needed_bytes} bytes of t at offset {read.offset} stopped after"
        f" {SIZE - read.offset}: the file ends there"
    )


def test_a_file_that_was_cut_under_a_read_is_a_fault(make: Make, channel: Open, file: Path) -> None:
    one = channel(make(warn=lambda _text: None))
    os.truncate(file, 4096)
    with pytest.raises(ReadFault, match="offset 8192 stopped after 0: the file ends there"):
        one.read(window(8192, 100))


def test_an_error_of_the_system_is_a_fault_in_its_words(make: Make, channel: Open) -> None:
    read = Read("t", -5, memoryview(bytearray(10)), 0, 10, aligned=False)
    with pytest.raises(ReadFault, match=r"offset -5 stopped after 0: Invalid argument"):
        channel(make(direct=False)).read(read)


def test_an_io_error_names_what_had_been_read(make: Make, channel: Open) -> None:
    """Our own memory as the file: it ends in an I/O error where nothing is mapped."""
    path = Path("/proc/self/mem")
    end, size = _end_of_a_mapping()
    one = channel(make(path, direct=False))
    with pytest.raises(ReadFault) as fault:
        one.read(exact(end - size, size + 100))
    assert str(fault.value) == (
        f"{path}: reading {size + 100} bytes of t at offset {end - size} stopped after {size}:"
        " Input/output error"
    )


def _end_of_a_mapping() -> tuple[int, int]:
    """Where a readable mapping ends before a gap, and how much of it may be read."""
    if not Path("/proc/self/maps").exists():
        pytest.skip("no /proc here")
    spans = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights, *_ = line.split()
        begin, end = (int(n, 16) for n in span.split("-"))
        spans.append((begin, end, rights, line))
    for (begin, end, rights, line), following in itertools.pairwise(spans):
        if rights.startswith("r") and end < 1 << 47 and end < following[0] and "[" not in line:
            return end, min(end - begin, 3 * PAGE)
    pytest.skip("no gap between mappings")


def test_a_missing_file_is_a_fault(make: Make, tmp_path: Path) -> None:
    with pytest.raises(ReadFault, match=r"none: cannot be found any more: No such file"):
        make(tmp_path / "none")


def test_a_file_that_may_not_be_read_is_a_fault(make: Make, file: Path) -> None:
    reader = make(direct=False)
    file.unlink()
    with pytest.raises(SystemFault, match=rf"^{file}: cannot be opened: No such file"):
        reader.channel()


# A file that is another one by now.


def _replace(file: Path) -> None:
    copy = file.with_suffix(".new")
    shutil.copy2(file, copy)
    copy.replace(file)


def _rewrite_in_place(file: Path) -> None:
    with file.open("r+b") as out:
        out.write(b"x")
    _touch(file)  # whatever the clock's step is


def _append(file: Path) -> None:
    with file.open("ab") as out:
        out.write(b"x")


def _touch(file: Path) -> None:
    now = file.stat()
    os.utime(file, ns=(now.st_atime_ns, now.st_mtime_ns + 1))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (_replace, "inode"),
        (lambda file: os.truncate(file, SIZE - 1), f"size {SIZE - 1} was {SIZE}"),
        (_append, f"size {SIZE + 1} was {SIZE}"),
        (_touch, "time of change"),
        (_rewrite_in_place, "time of change"),
        (Path.unlink, "cannot be found any more: No such file or directory"),
    ],
)
@pytest.mark.parametrize("shard", [0, 1])
def test_a_file_that_has_changed_is_refused(
    make: Make, file: Path, tmp_path: Path, change: Callable[[Path], None], what: str, shard: int
) -> None:
    other = tmp_path / "second.bin"
    shutil.copy(file, other)
    paths = (file, other)
    reader = make(*paths, direct=False)
    reader.check_unchanged()
    reader.check_unchanged(7)
    change(paths[shard])
    reader.check_unchanged(7)  # the same moment
    for moment in (None, 8, 8):
        with pytest.raises(ReadFault) as fault:
            reader.check_unchanged(moment)
        said = str(fault.value)
        assert said.startswith(f"{paths[shard]}: ")
        assert what in said
        assert "nothing more is read from it" in said
    if change is _touch:
        assert "size" not in said
        assert "inode" not in said


# What is left behind.


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted in /proc")
def test_nothing_is_left_open(make: Make, file: Path, tmp_path: Path) -> None:
    def refuse(text: str) -> None:
        raise RuntimeError(text)

    gone = tmp_path / "gone.bin"
    shutil.copy(file, gone)
    half = make(file, gone, direct=False)
    gone.unlink()
    before = descriptors()
    for _ in range(20):
        one = make(warn=lambda _text: None).channel()
        one.read(exact(0, 10))
        one.close()
        one.close()
        # Whoever is warned may raise.
        with pytest.raises(RuntimeError, match="does not take O_DIRECT"):
            make(Path("/proc/version"), warn=refuse)
        with pytest.raises(SystemFault, match=r"gone\.bin: cannot be opened"):
            half.channel()
    assert descriptors() == before
