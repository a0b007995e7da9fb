from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from sluice.llama.aio import Aio, Submission
from sluice.llama.machine_code import runs_here

PAGE = mmap.PAGESIZE
N_PAGES = 64
REST = 700  # bytes after the last whole page
CONTENT = np.random.default_rng(8).bytes(N_PAGES * PAGE + REST)
Make = Callable[..., Aio]


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "weights.bin"
    path.write_bytes(CONTENT)
    try:
        opened = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        pytest.skip("this file system takes no O_DIRECT")
    yield opened
    os.close(opened)


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Aio] = []

    def make_(depth: int) -> Aio:
        try:
            made.append(Aio(depth))
        except OSError as err:
            pytest.skip(f"this system gives no AIO: {err}")
        return made[-1]

    yield make_
    for one in made:
        one.close()


def address_of(memory: memoryview) -> int:
    return int(np.frombuffer(memory, np.uint8).ctypes.data)


class Target:
    """Pages that are there, and a read of the file's page ``page`` into them."""

    def __init__(self, key: int, fd: int, page: int, *, n_pages: int = 1) -> None:
        self.window = memoryview(mmap.mmap(-1, n_pages * PAGE))
        self.window[:] = b"\xff" * (n_pages * PAGE)
        address = address_of(self.window)
        self.read: Submission = key, fd, address, len(self.window), page * PAGE


def all_done(aio: Aio, n: int) -> dict[int, int]:
    found: dict[int, int] = {}
    while len(found) < n:
        for key, result in aio.done(at_least=1):
            assert key not in found
            found[key] = result
    return found


def test_many_reads_at_depth(make: Make, fd: int) -> None:
    aio = make(N_PAGES)
    targets = [Target(1000 + i, fd, i * 37 % N_PAGES) for i in range(N_PAGES)]
    assert aio.submit([t.read for t in targets]) == N_PAGES
    assert all_done(aio, N_PAGES) == {1000 + i: PAGE for i in range(N_PAGES)}
    for target in targets:
        begin = target.read[4]
        assert bytes(target.window) == CONTENT[begin : begin + PAGE]
    assert aio.done(at_least=0) == []


def test_a_second_lot_is_not_of_the_first(make: Make, fd: int) -> None:
    aio = make(4)
    for round_ in range(20):
        targets = [Target(i, fd, (round_ * 4 + i) % N_PAGES, n_pages=1) for i in range(3)]
        assert aio.submit([t.read for t in targets[:1]]) == 1
        assert aio.submit([t.read for t in targets[1:]]) == 2  # the first may still be on its way
        assert all_done(aio, 3) == dict.fromkeys(range(3), PAGE)
        for target in targets:
            begin = target.read[4]
            assert bytes(target.window) == CONTENT[begin : begin + PAGE]


def test_nothing_is_done_where_nothing_was_given(make: Make) -> None:
    aio = make(2)
    assert aio.done(at_least=0) == []
    assert aio.submit([]) == 0
    assert aio.done(at_least=0) == []


def test_without_the_kernels_ring_it_asks_the_kernel(make: Make, fd: int) -> None:
    aio = make(2)
    aio._ring = None  # as on a kernel that lays it out in another way
    assert aio.done(at_least=0) == []
    target = Target(5, fd, 3)
    assert aio.submit([target.read]) == 1
    assert all_done(aio, 1) == {5: PAGE}
    assert bytes(target.window) == CONTENT[3 * PAGE : 4 * PAGE]


def test_the_end_of_the_file_is_a_short_read(make: Make, fd: int) -> None:
    aio = make(2)
    last, beyond = Target(1, fd, N_PAGES - 1, n_pages=4), Target(2, fd, N_PAGES + 1)
    assert aio.submit([last.read, beyond.read]) == 2
    assert all_done(aio, 2) == {1: PAGE + REST, 2: 0}
    assert bytes(last.window[: PAGE + REST]) == CONTENT[-PAGE - REST :]


def test_an_unaligned_read_is_refused_by_number(make: Make, fd: int) -> None:
    aio = make(4)
    target = Target(3, fd, 0, n_pages=2)
    good = Target(4, fd, 1)
    bad = 3, fd, target.read[2] + 3, PAGE, 5
    # The kernel may refuse it at once, then takes what stood before it.
    taken = aio.submit([good.read, bad])
    assert taken in (1, 2)
    found = all_done(aio, taken)
    assert found[4] == PAGE
    if taken == 2:
        assert found[3] == -errno.EINVAL
    assert bytes(target.window) == b"\xff" * 2 * PAGE


def test_a_descriptor_that_is_none(make: Make) -> None:
    aio = make(2)
    window = memoryview(mmap.mmap(-1, PAGE))
    assert aio.submit([(1, 99999, address_of(window), PAGE, 0)]) == 0
    assert aio.done(at_least=0) == []


def test_more_than_there_is_room_for_is_not_taken(make: Make, fd: int) -> None:
    """The kernel rounds the depth up; what it takes comes back, the rest is the caller's."""
    aio = make(1)
    n_taken, targets = 0, []
    for i in range(10_000):
        target = Target(i, fd, i % N_PAGES)
        targets.append(target)
        if aio.submit([target.read]) == 0:
            break
        n_taken += 1
    assert 1 <= n_taken < 10_000
    found: dict[int, int] = {}
    while len(found) < n_taken:
        found |= dict(aio.done(at_least=1))
    assert found == dict.fromkeys(range(n_taken), PAGE)
    assert aio.submit([targets[-1].read]) == 1  # there is room again
    assert all_done(aio, 1) == {n_taken: PAGE}


def test_more_than_the_depth_in_one_call_is_an_error(make: Make, fd: int) -> None:
    aio = make(2)
    with pytest.raises(Exception, match=r"."):
        aio.submit([Target(i, fd, 0).read for i in range(3)])
    assert aio.done(at_least=0) == []


def test_closing_waits_for_what_is_on_its_way(make: Make, fd: int) -> None:
    aio = make(N_PAGES)
    targets = [Target(i, fd, 0, n_pages=N_PAGES) for i in range(N_PAGES)]
    assert aio.submit([t.read for t in targets]) == N_PAGES
    aio.close()
    for target in targets:
        assert bytes(target.window) == CONTENT[: N_PAGES * PAGE]
    aio.close()


def test_a_system_of_another_kind_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "z80")
    with pytest.raises(OSError, match="no AIO on this system"):
        Aio(4)


def test_more_than_the_system_gives_is_an_oserror() -> None:
    with pytest.raises(OSError, match=r"\[Errno \d+\]"):
        Aio(1 << 31)


def test_what_waits_looks_for_a_while_before_it_calls_the_kernel(
    make: Make, fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    aio, target = make(4), Target(1, fd, 3)
    calls: list[int] = []
    real = aio._get_events
    monkeypatch.setattr(aio, "_get_events", lambda *a: calls.append(1) or real(*a))
    assert aio.submit([target.read]) == 1
    monkeypatch.setattr("sluice.llama.aio._SPIN_S", 60.0)
    assert aio.done(at_least=1) == [(1, PAGE)]
    assert len(calls) == (0 if runs_here() else 1)
    monkeypatch.setattr("sluice.llama.aio._SPIN_S", 0.0)
    assert aio.submit([target.read]) == 1
    assert aio.done(at_least=1) == [(1, PAGE)]
    assert bytes(target.window) == CONTENT[3 * PAGE : 4 * PAGE]


def test_what_is_taken_goes_round_the_kernels_ring_many_times(make: Make, fd: int) -> None:
    aio = make(2)
    assert aio._ring is not None
    n = 3 * aio._ring._n
    for i in range(n):
        target = Target(i, fd, i % N_PAGES)
        assert aio.submit([target.read]) == 1
        assert aio.done(at_least=1) == [(i, PAGE)]
