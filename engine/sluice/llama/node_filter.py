"""Which nodes of a graph an eval hook is shown, decided before Python is entered.

llama.cpp asks about every node of a graph. A call into Python costs more than the test of a name,
so on x86-64 Linux that test is a few instructions of machine code in front of the callback.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from llama_cpp import llama_cpp as api

from sluice.llama import libc, tensor

_JE, _JNE = b"\x74", b"\x75"  # each with one byte: how far
_PREFIX_BYTES, _REST_BYTES, _RESTS_MAX = 8, 4, 8


class _State(ctypes.Structure):
    """What the machine code looks at."""

    _fields_ = (
        ("is_open", ctypes.c_uint8),
        ("is_narrow", ctypes.c_uint8),
        ("rests", ctypes.c_uint32 * _RESTS_MAX),
    )


@dataclass(frozen=True, slots=True)
class Entry:
    """What llama.cpp is to call: ``function``, valid for as long as this object lives.

    ``page`` is the machine code, ``None`` where ``function`` is the callback itself.
    """

    function: Any  # an api.ggml_backend_sched_eval_callback
    page: mmap.mmap | None = None
    behind: tuple[object, ...] = ()  # what the machine code refers to


class NodeFilter:
    """Shows an eval hook the nodes whose names begin as it says, or every one while it is open.

    It starts open. A hook that was asked about a node is always told that the node is computed.
    Where no machine code can be run, hooks are shown every node all the time: they must not rely
    on being spared one. Contexts may share a filter.

    Args:
        prefix: 8 bytes (asserted): a name's first are compared as a number.
    """

    def __init__(self, prefix: bytes) -> None:
        assert len(prefix) == _PREFIX_BYTES
        self.prefix = prefix
        self._state = _State(1, 0)

    def narrow(self, names: Iterable[bytes]) -> None:
        """Show only what begins as one of ``names`` does, as far as 4 bytes after the prefix.

        Names with another prefix are not shown. More than 8 different beginnings show as much as
        the prefix alone.
        """
        wanted = {
            name[_PREFIX_BYTES:].ljust(_REST_BYTES, b"\0")[:_REST_BYTES]
            for name in names
            if name.startswith(self.prefix)
        }
        self._state.is_narrow = 0  # while the rest is written
        if not 0 < len(wanted) <= _RESTS_MAX:
            return
        rests = sorted(wanted) + [min(wanted)] * (_RESTS_MAX - len(wanted))
        self._state.rests[:] = [int.from_bytes(rest, sys.byteorder) for rest in rests]
        self._state.is_narrow = 1

    @property
    def is_open(self) -> bool:
        """Whether every node is shown; set it at any time, also in the hook."""
        return bool(self._state.is_open)

    @is_open.setter
    def is_open(self, is_open: bool) -> None:
        self._state.is_open = is_open

    def entry(self, callback: Any) -> Entry:
        """What to give llama.cpp as ``cb_eval`` in the place of ``callback``.

        Keep it until the context is freed.
        """
        if not runs_here():
            return Entry(callback)
        # Not by ctypes.cast: what it is given refers to itself from then on.
        target = ctypes.c_uint64.from_buffer(callback).value
        page = _executable(_machine_code(self.prefix, ctypes.addressof(self._state), target))
        if page is None:
            return Entry(callback)
        function = api.ggml_backend_sched_eval_callback(libc.address_of(page))
        return Entry(function, page, (callback, self._state))


def runs_here() -> bool:
    """Whether this process runs x86-64 code that calls as System V has it."""
    is_64 = sys.maxsize > 1 << 32  # a 32-bit process is told the machine's name, too
    return sys.platform == "linux" and platform.machine() == "x86_64" and is_64


def _machine_code(prefix: bytes, state: int, callback: int) -> bytes:
    """bool (ggml_tensor * node: rdi, bool ask: sil, void * data: rdx), position-independent.

    ``state`` is the address of a :class:`_State`, ``callback`` of a function of the same type.
    """
    steps: list[bytes | tuple[bytes, str]] = [
        b"\xf3\x0f\x1e\xfa",                               # endbr64: it is called by its address
        b"\x40\x84\xf6",                                   # test sil, sil
        (_JE, "into Python"),                              # it is not asked, but told
        b"\x48\xb9" + struct.pack("<Q", state),            # mov rcx, state
        b"\x80\x39\x00",                                   # cmp byte [rcx], 0: is_open
        (_JNE, "into Python"),
        b"\x48\xb8" + prefix,                              # mov rax, prefix
        b"\x48\x39\x87" + struct.pack("<i", tensor.NAME),  # cmp [rdi + NAME], rax
        (_JNE, "no"),
        b"\x80\x79\x01\x00",                               # cmp byte [rcx + 1], 0: is_narrow
        (_JE, "into Python"),
        b"\x8b\x87" + struct.pack("<i", tensor.NAME + _PREFIX_BYTES),  # mov eax, [rdi + …]
    ]  # fmt: skip
    for i in range(_RESTS_MAX):
        at = _State.rests.offset + _REST_BYTES * i
        steps += [b"\x3b\x41" + bytes([at]), (_JE, "into Python")]  # cmp eax, [rcx + at]
    no = [b"\x31\xc0", b"\xc3"]  # xor eax, eax: false; ret
    into_python = [
        b"\x48\xb8" + struct.pack("<Q", callback),  # mov rax, callback
        b"\xff\xe0",                                # jmp rax: its arguments are where they were
    ]  # fmt: skip
    ends = {"no": 0, "into Python": sum(map(len, no))}  # from the end of the steps on
    code = b""
    for step in reversed(steps):
        code = (
            step if isinstance(step, bytes) else step[0] + bytes([ends[step[1]] + len(code)])
        ) + code
    return code + b"".join(no + into_python)


def _executable(code: bytes) -> mmap.mmap | None:
    """A page with ``code``, never writable and executable at a time; ``None`` where refused."""
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        return None
    page.write(code)
    if not libc.make_executable(page):
        page.close()
        return None
    return page
