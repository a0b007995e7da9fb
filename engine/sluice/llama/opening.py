"""Open a model by its header: map the file, but read none of its weights.

llama.cpp maps a model with MAP_POPULATE and asks for it with posix_madvise, so opening reads
every byte. For the length of the load, libllama's own call slots for the two are pointed at
functions that drop MAP_POPULATE and do nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import threading
from collections.abc import Iterator

from sluice.llama import library, slots

_MMAP_ARGUMENTS = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
)  # fmt: skip
_MMAP = ctypes.CFUNCTYPE(ctypes.c_void_p, *_MMAP_ARGUMENTS, use_errno=True)
_MADVISE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_MAP_FAILED = ctypes.c_void_p(-1).value


def _map_lazily(
    address: int | None, length: int, prot: int, flags: int, fd: int, offset: int
) -> int | None:
    mapped: int | None = _mmap()(address, length, prot, flags & ~mmap.MAP_POPULATE, fd, offset)
    return _MAP_FAILED if mapped is None else mapped


def _advise_nothing(_address: int | None, _length: int, _advice: int) -> int:
    return 0


_lazily = _MMAP(_map_lazily)
_nothing = _MADVISE(_advise_nothing)
# One load at a time: the slots are the whole process's, and so are llama.cpp's last words.
_loading = threading.RLock()
_TARGETS = {"mmap": _lazily, "posix_madvise": _nothing}


@functools.cache
def _mmap() -> ctypes._NamedFuncPointer:
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = _MMAP_ARGUMENTS
    return function


def slots_found() -> dict[str, bool]:
    """Every imported function that is redirected here, and whether its call slot was found."""
    return {symbol: slot is not None for symbol, slot in _slots().items()}


@contextlib.contextmanager
def by_header_only() -> Iterator[bool]:
    """While the block runs, models open by their header only.

    Yields:
        Whether that holds; False where the build has no such slots, and the load then reads
        the whole file.
    """
    found = _slots()
    redirections = {
        slot: int(ctypes.cast(_TARGETS[symbol], ctypes.c_void_p).value or 0)
        for symbol, slot in found.items()
        if slot is not None
    }
    if found["mmap"] is None:
        redirections = {}
    with _loading, slots.redirected(redirections):
        yield bool(redirections)


@contextlib.contextmanager
def whole() -> Iterator[bool]:
    """While the block runs, models open as llama.cpp opens them, whatever other threads do."""
    with _loading:
        yield False


def _slots() -> dict[str, int | None]:
    libllama = library.loaded("libllama")
    if libllama is None:
        return dict.fromkeys(_TARGETS)
    found = {symbol: slots.find_slot(libllama, symbol) for symbol in _TARGETS}
    # mmap64 is the name that a 32-bit or large-file build imports.
    found["mmap"] = found["mmap"] or slots.find_slot(libllama, "mmap64")
    return found
