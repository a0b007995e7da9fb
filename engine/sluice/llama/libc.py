"""The calls of the C library that Python has no name for."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import platform
import struct
import sys
from collections.abc import Callable
from pathlib import Path

_AT_FDCWD = -100
_STATX_DIOALIGN = 0x2000
_STATX_BYTES = 256
_NUMBERS = {
    "x86_64": {"io_setup": 206, "io_destroy": 207, "io_getevents": 208, "io_submit": 209,
               "sched_setattr": 314},
    "aarch64": {"io_setup": 0, "io_destroy": 1, "io_submit": 2, "io_getevents": 4,
                "sched_setattr": 274},
}  # fmt: skip
_QUANTUM_NS = 100_000
_MASK, _MEM_ALIGN, _OFFSET_ALIGN = 0, 152, 156  # uint32 each, in struct statx


def direct_alignment(path: Path) -> int | None:
    """What addresses, offsets and lengths of an O_DIRECT read of ``path`` must be multiples of.

    0 where the file system says that it takes none; ``None`` where it does not say (Linux before
    6.1, another system). Source: ``statx``, ``STATX_DIOALIGN``.
    """
    statx = _statx()
    if statx is None:
        return None
    out = ctypes.create_string_buffer(_STATX_BYTES)
    if statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_DIOALIGN, out) != 0:
        return None
    if not ctypes.c_uint32.from_buffer(out, _MASK).value & _STATX_DIOALIGN:
        return None
    memory = ctypes.c_uint32.from_buffer(out, _MEM_ALIGN).value
    offset = ctypes.c_uint32.from_buffer(out, _OFFSET_ALIGN).value
    return max(memory, offset) if memory and offset else 0


def run_promptly() -> bool:
    """Let the calling thread run as soon as it wakes, before threads that compute.

    A thread that reads needs a core for microseconds at a time, and often. Where every core
    computes, the scheduler lets it wait for the rest of somebody's slice; asking for shorter
    slices than theirs is how a thread says that it will not stay long (Linux 6.12 and later; an
    older one takes the call and does nothing). Its niceness stays, and another policy than the
    usual one is left alone. Source: ``sched_setattr``, ``sched_runtime``.

    Returns:
        Whether the system took the call.
    """
    set_attributes = system_call("sched_setattr")
    if set_attributes is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)  # of this thread, on Linux
    attributes = struct.pack("=IIQiIQQQ", 48, os.SCHED_OTHER, 0, nice, 0, _QUANTUM_NS, 0, 0)
    return set_attributes(ctypes.c_long(0), attributes, ctypes.c_uint(0)) == 0


def address_of(mapping: mmap.mmap) -> int:
    """Where a writable mapping begins."""
    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))


def make_executable(mapping: mmap.mmap) -> bool:
    """Let the code in ``mapping`` be run, and no longer be written.

    Returns:
        Whether the system allows it: a policy may refuse memory that was ever written to.
    """
    protect = getattr(ctypes.CDLL(None), "mprotect", None)
    if protect is None:
        return False
    protect.restype = ctypes.c_int
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    wanted = mmap.PROT_READ | mmap.PROT_EXEC
    return bool(protect(address_of(mapping), len(mapping), wanted) == 0)


def system_call(name: str) -> Callable[..., int] | None:
    """A call of Linux that has no function; ``None`` on a system whose number for it is not known.

    Pass ``ctypes`` values; -1 is an error, which ``ctypes.get_errno`` names.
    """
    is_64 = sys.platform.startswith("linux") and sys.maxsize > 1 << 32
    number = _NUMBERS.get(platform.machine(), {}).get(name) if is_64 else None
    if number is None:
        return None
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    return functools.partial(call, ctypes.c_long(number))


@functools.cache
def _statx() -> ctypes._NamedFuncPointer | None:
    function = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
    if function is not None:
        function.restype = ctypes.c_int
        function.argtypes = (
            ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p,
        )  # fmt: skip
    return function
