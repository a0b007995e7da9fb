"""Which nodes of a graph an eval hook is shown, decided before Python is entered.

llama.cpp asks about every node of a graph. A call into Python costs more than the test of a name,
so on x86-64 Linux that test is a few instructions of machine code in front of the callback.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from llama_cpp import llama_cpp as api

from sluice.llama import libc, tensor
from sluice.llama.machine_code import JE, JNE, Step, assembled, executable, runs_here

_PREFIX_BYTES = 8
_NEXT_BYTES, _NEXT_MAX = 3, 8  # after the prefix; a fourth is the layer's number after "up-"
_NO_OPERATION = 0xFFFFFFFF


class _State(ctypes.Structure):
    """What the machine code looks at."""

    _fields_ = (
        ("is_open", ctypes.c_uint8),
        ("is_narrow", ctypes.c_uint8),
        ("operation", ctypes.c_uint32),
        ("next", ctypes.c_uint32 * _NEXT_MAX),
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
    """Shows an eval hook the nodes whose name begins with a prefix, or every one while it is open.

    Those of one more :attr:`operation`, too, where that is said. It starts open; :meth:`narrow`
    makes it show fewer while it is closed. A hook that was asked about a node is always told that
    the node is computed. Where no machine code can be run, hooks are shown every node all the time:
    they must not rely on being spared one. Contexts may share a filter.

    Args:
        prefix: 8 bytes (asserted): a name's first are compared as a number.
    """

    def __init__(self, prefix: bytes) -> None:
        assert len(prefix) == _PREFIX_BYTES
        self.prefix = prefix
        self._state = _State(1, 0, _NO_OPERATION)

    def narrow(self, names: Iterable[bytes]) -> None:
        """Show what begins as one of ``names`` does, as far as 3 bytes after the prefix.

        Names with another prefix are not shown. All with the prefix are where ``names`` has none
        of them, one that is shorter than that, or more than 8 different beginnings.
        """
        begin, end = _PREFIX_BYTES, _PREFIX_BYTES + _NEXT_BYTES
        wanted = sorted({name[begin:end] for name in names if name.startswith(self.prefix)})
        self._state.is_narrow = 0  # while the rest is written
        if not 0 < len(wanted) <= _NEXT_MAX or len(min(wanted, key=len)) < _NEXT_BYTES:
            return
        wanted += wanted[:1] * (_NEXT_MAX - len(wanted))
        self._state.next[:] = [int.from_bytes(one, "little") for one in wanted]
        self._state.is_narrow = 1

    @property
    def is_open(self) -> bool:
        """Whether every node is shown; set it at any time, also in the hook."""
        return bool(self._state.is_open)

    @is_open.setter
    def is_open(self, is_open: bool) -> None:
        self._state.is_open = is_open

    @property
    def operation(self) -> int | None:
        """Whose nodes are shown as well, whatever their names; set it at any time, too.

        A number that :func:`sluice.llama.tensor.op_number` gives.
        """
        number = int(self._state.operation)
        return None if number == _NO_OPERATION else number

    @operation.setter
    def operation(self, number: int | None) -> None:
        self._state.operation = _NO_OPERATION if number is None else number

    def entry(self, callback: Any) -> Entry:
        """What to give llama.cpp as ``cb_eval`` in the place of ``callback``.

        Keep it until the context is freed.
        """
        if not runs_here():
            return Entry(callback)
        # Not by ctypes.cast: what it is given refers to itself from then on.
        target = ctypes.c_uint64.from_buffer(callback).value
        page = executable(_machine_code(self.prefix, ctypes.addressof(self._state), target))
        if page is None:
            return Entry(callback)
        function = api.ggml_backend_sched_eval_callback(libc.address_of(page))
        return Entry(function, page, (callback, self._state))


def _machine_code(prefix: bytes, state: int, callback: int) -> bytes:
    """bool (ggml_tensor * node: rdi, bool ask: sil, void * data: rdx), position-independent.

    ``state`` is the address of a :class:`_State`, ``callback`` of a function of the same type.
    """
    is_open, is_narrow = _State.is_open.offset, _State.is_narrow.offset
    operation = _State.operation.offset
    name, after = struct.pack("<i", tensor.NAME), struct.pack("<i", tensor.NAME + _PREFIX_BYTES)
    steps: list[Step] = [
        b"\xf3\x0f\x1e\xfa",                    # endbr64: it is called by its address
        b"\x40\x84\xf6",                        # test sil, sil
        (JE, "into Python"),                   # it is not asked, but told
        b"\x48\xb9" + struct.pack("<Q", state),  # mov rcx, state
        bytes([0x80, 0x79, is_open, 0]),        # cmp byte [rcx + is_open], 0
        (JNE, "into Python"),
        bytes([0x8B, 0x47, tensor.OP]),         # mov eax, [rdi + op]
        bytes([0x3B, 0x41, operation]),         # cmp eax, [rcx + operation]
        (JE, "into Python"),
        b"\x48\xb8" + prefix,                   # mov rax, prefix
        b"\x48\x39\x87" + name,                 # cmp [rdi + name], rax
        (JNE, "no"),
        bytes([0x80, 0x79, is_narrow, 0]),      # cmp byte [rcx + is_narrow], 0
        (JE, "into Python"),
        b"\x8b\x87" + after,                    # mov eax, [rdi + after]
        b"\x25\xff\xff\xff\x00",                # and eax, 0xffffff: three bytes of it
    ]  # fmt: skip
    for i in range(_NEXT_MAX):
        at = _State.next.offset + ctypes.sizeof(ctypes.c_uint32) * i
        steps += [bytes([0x3B, 0x41, at]), (JE, "into Python")]  # cmp eax, [rcx + at]
    steps += [
        "no",
        b"\x31\xc0\xc3",                        # xor eax, eax: false; ret
        "into Python",
        # Its arguments are where they were.
        b"\x48\xb8" + struct.pack("<Q", callback),  # mov rax, callback
        b"\xff\xe0",                            # jmp rax
    ]  # fmt: skip
    return assembled(steps)
