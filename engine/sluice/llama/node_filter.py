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
from dataclasses import dataclass
from typing import Any

from llama_cpp import llama_cpp as api

from sluice.llama import libc, tensor

_JE, _JNE = b"\x74", b"\x75"


@dataclass(frozen=True, slots=True)
class Entry:
    """What llama.cpp is to call: ``function``, valid for as long as this object lives.

    ``page`` is the machine code, ``None`` where ``function`` is the callback itself.
    """

    function: Any  # an api.ggml_backend_sched_eval_callback
    page: mmap.mmap | None = None
    behind: tuple[object, ...] = ()  # what the machine code refers to


class NodeFilter:
    """Shows an eval hook the nodes whose name begins with a prefix, or every one while it is open.

    It starts open. A hook that was asked about a node is always told that the node is computed.
    Where no machine code can be run, hooks are shown every node all the time: they must not rely
    on being spared one. Contexts may share a filter.

    Args:
        prefix: 8 bytes (asserted): a name's first are compared as a number.
    """

    def __init__(self, prefix: bytes) -> None:
        assert len(prefix) == 8
        self.prefix = prefix
        self._is_open = ctypes.c_uint8(1)

    @property
    def is_open(self) -> bool:
        """Whether every node is shown; set it at any time, also in the hook."""
        return self._is_open.value != 0

    @is_open.setter
    def is_open(self, is_open: bool) -> None:
        self._is_open.value = is_open

    def entry(self, callback: Any) -> Entry:
        """What to give llama.cpp as ``cb_eval`` in the place of ``callback``.

        Keep it until the context is freed.
        """
        if not runs_here():
            return Entry(callback)
        # Not by ctypes.cast: what it is given refers to itself from then on.
        target = ctypes.c_uint64.from_buffer(callback).value
        page = _executable(_machine_code(self.prefix, ctypes.addressof(self._is_open), target))
        if page is None:
            return Entry(callback)
        function = api.ggml_backend_sched_eval_callback(libc.address_of(page))
        return Entry(function, page, (callback, self._is_open))


def runs_here() -> bool:
    """Whether this process runs x86-64 code that calls as System V has it."""
    is_64 = sys.maxsize > 1 << 32  # a 32-bit process is told the machine's name, too
    return sys.platform == "linux" and platform.machine() == "x86_64" and is_64


def _machine_code(prefix: bytes, is_open: int, callback: int) -> bytes:
    """bool (ggml_tensor * node: rdi, bool ask: sil, void * data: rdx), position-independent.

    ``is_open`` is the address of a byte, ``callback`` of a function of the same type.
    """
    into_python = (
        b"\x48\xb8" + struct.pack("<Q", callback)  # mov rax, callback
        + b"\xff\xe0"                              # jmp rax: its arguments are where they were
    )  # fmt: skip
    steps = [
        b"\xf3\x0f\x1e\xfa",                               # endbr64: it is called by its address
        b"\x40\x84\xf6",                                   # test sil, sil
        _JE,                                               # it is not asked, but told
        b"\x48\xb8" + prefix,                              # mov rax, prefix
        b"\x48\x39\x87" + struct.pack("<i", tensor.NAME),  # cmp [rdi + NAME], rax
        _JE,
        b"\x48\xb8" + struct.pack("<Q", is_open),          # mov rax, is_open
        b"\x80\x38\x00",                                   # cmp byte [rax], 0
        _JNE,
        b"\x31\xc0",                                       # xor eax, eax: false
        b"\xc3",                                           # ret
    ]  # fmt: skip
    code = b""
    for step in reversed(steps):
        is_jump = step in (_JE, _JNE)  # over what follows it here, into Python
        code = step + (bytes([len(code)]) if is_jump else b"") + code
    return code + into_python


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
