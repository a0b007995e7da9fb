from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.llama import library, opening, slots
from sluice.llama.model import Model

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="call slots are ELF's")


def libllama() -> Path:
    library.start()
    found = library.loaded("libllama")
    assert found is not None
    return found


def target(slot: int) -> int:
    return ctypes.c_uint64.from_address(slot).value


@linux
@pytest.mark.parametrize("symbol", ["mmap", "posix_madvise"])
def test_the_slots_of_opening_are_found(symbol: str) -> None:
    slot = slots.find_slot(libllama(), symbol)
    assert slot is not None
    assert slot % 8 == 0


@linux
def test_a_slot_holds_an_address_of_executable_memory() -> None:
    slot = slots.find_slot(libllama(), "mmap")
    assert slot is not None
    executable = [
        line.split()[0].split("-")
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "x" in line.split()[1]
    ]
    assert any(int(lo, 16) <= target(slot) < int(hi, 16) for lo, hi in executable)


@pytest.mark.parametrize("symbol", ["no_such_function", "", "mma", "llama_decode"])
def test_there_is_no_slot_for_what_is_not_imported(symbol: str) -> None:
    assert slots.find_slot(libllama(), symbol) is None


def test_there_is_no_slot_in_what_is_no_library(tmp_path: Path) -> None:
    text = tmp_path / "libtext.so"
    text.write_text("not a library")
    cut = tmp_path / "libcut.so"
    cut.write_bytes(libllama().read_bytes()[:5000])
    for path in (text, cut, tmp_path / "libnone.so"):
        assert slots.find_slot(path, "mmap") is None


def test_there_is_no_slot_in_a_library_that_is_not_loaded(tmp_path: Path) -> None:
    copy = tmp_path / "libllama.so"
    copy.write_bytes(libllama().read_bytes())
    assert slots.find_slot(copy, "mmap") is None


def test_there_is_no_slot_on_another_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert slots.find_slot.__wrapped__(libllama(), "mmap") is None


def test_a_redirection_ends_with_its_block() -> None:
    cell = ctypes.c_uint64(5)
    slot = ctypes.addressof(cell)
    with slots.redirected({slot: 7}):
        assert cell.value == 7
        with slots.redirected({slot: 8}):
            assert cell.value == 8
        assert cell.value == 7
    assert cell.value == 5


def test_a_redirection_ends_on_an_exception_too() -> None:
    cell = ctypes.c_uint64(5)
    with pytest.raises(KeyError), slots.redirected({ctypes.addressof(cell): 7}):
        raise KeyError
    assert cell.value == 5


@linux
def test_a_failed_load_gives_the_slots_back(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    slot = slots.find_slot(libllama(), "mmap")
    assert slot is not None
    before = target(slot)
    with pytest.raises(Exception, match="cannot open it"):
        Model(path, load_mtp=False, by_header=True)
    assert target(slot) == before


@linux
def test_loads_in_two_threads_leave_the_slots_as_they_were(model: Path) -> None:
    slot = slots.find_slot(libllama(), "mmap")
    assert slot is not None
    before = target(slot)
    failures: list[BaseException] = []

    def load() -> None:
        try:
            for _ in range(8):
                Model(model, load_mtp=False, by_header=True).close()
        except BaseException as err:
            failures.append(err)

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert target(slot) == before


def cached_share(path: Path) -> float:
    """The share of a file's pages that the page cache holds."""
    import mmap

    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, 3) as mapped:
        n_pages = -(-len(mapped) // mmap.PAGESIZE)
        seen = (ctypes.c_ubyte * n_pages)()
        anchor = ctypes.c_char.from_buffer(mapped)
        address = ctypes.c_void_p(ctypes.addressof(anchor))
        status = libc.mincore(address, ctypes.c_size_t(len(mapped)), seen)
        del anchor
        assert status == 0
        return sum(page & 1 for page in seen) / n_pages


@pytest.fixture
def uncached(model: Path, tmp_path: Path) -> Callable[[], Path]:
    """Makes a copy of the model that the page cache does not hold."""
    import os

    def make() -> Path:
        path = tmp_path / "m.gguf"
        path.write_bytes(model.read_bytes())
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if cached_share(path) > 0.01:
            pytest.skip("this file system keeps its files in memory")
        return path

    return make


@linux
@pytest.mark.parametrize(("by_header", "low", "high"), [(True, 0.0, 0.15), (False, 0.95, 1.0)])
def test_opening_by_header_reads_the_header(
    uncached: Callable[[], Path], by_header: bool, low: float, high: float
) -> None:
    path = uncached()
    opened = Model(path, load_mtp=True, by_header=by_header)
    time.sleep(0.3)  # what was only asked for comes a little later
    share = cached_share(path)
    opened.close()
    assert opened.opened_by_header is by_header
    assert low <= share <= high


@linux
def test_a_whole_load_stays_whole_beside_one_by_header(uncached: Callable[[], Path]) -> None:
    path = uncached()
    inside, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with opening.by_header_only():
            inside.set()
            go_on.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait(10)
    threading.Timer(0.2, go_on.set).start()
    Model(path, load_mtp=False, by_header=False).close()
    holder.join()
    assert cached_share(path) > 0.95


def test_a_build_without_slots_loads_plainly(
    model: Path, monkeypatch: pytest.MonkeyPatch, opened: Callable[..., Any]
) -> None:
    libllama()
    monkeypatch.setattr(slots, "find_slot", lambda _library, _symbol: None)
    warned: list[str] = []
    session = opened(moe_stream=True, session={"warn": warned.append})
    assert len(warned) == 1
    assert "no call slots" in warned[0]
    assert session.generate("x = ", n=2).run().ids
