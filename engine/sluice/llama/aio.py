"""Reads that the kernel performs while no thread waits for them (Linux AIO).

Only O_DIRECT makes them so: a buffered read is done by whoever submits it.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence

from sluice.llama import libc

_IOCB = struct.Struct("=QIiHhIQqqQII")  # data, key, rw_flags, opcode, priority, fd, buffer, …
_EVENT = struct.Struct("=QQqq")  # data, iocb, result, result 2
_PREAD = 0  # IOCB_CMD_PREAD
_HEAD, _MAGIC = 8, 16  # of struct aio_ring, which the context's number is the address of
_RING_MAGIC = 0xA10A10A1


Submission = tuple[int, int, int, int, int]
"""One read: a key that comes back with its result, descriptor, address, length and offset."""


class Aio:
    """At most ``depth`` reads on their way at once.

    Raises:
        OSError: this system has no AIO, or gives no more of it (``fs.aio-max-nr``).
    """

    def __init__(self, depth: int) -> None:
        setup, destroy, events, submit = map(
            libc.system_call, ("io_setup", "io_destroy", "io_getevents", "io_submit")
        )
        if setup is None or destroy is None or events is None or submit is None:
            raise OSError("no AIO on this system")
        self._destroy, self._get_events, self._submit = destroy, events, submit
        context = ctypes.c_ulong(0)
        if setup(ctypes.c_uint(depth), ctypes.byref(context)) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._context = context
        self._iocbs = ctypes.create_string_buffer(_IOCB.size * depth)
        first = ctypes.addressof(self._iocbs)
        self._pointers = (ctypes.c_uint64 * depth)(*(first + _IOCB.size * i for i in range(depth)))
        self._events = ctypes.create_string_buffer(_EVENT.size * depth)
        self._depth = ctypes.c_long(depth)
        ring = context.value
        has_ring = ctypes.c_uint32.from_address(ring + _MAGIC).value == _RING_MAGIC
        self._ring = (ctypes.c_uint32 * 2).from_address(ring + _HEAD) if has_ring else None

    def submit(self, reads: Sequence[Submission]) -> int:
        """Hand reads over, at most ``depth``; how many of them the kernel took, from the first."""
        at = 0
        for key, fd, address, length, offset in reads:
            _IOCB.pack_into(
                self._iocbs, at, key, 0, 0, _PREAD, 0, fd, address, length, offset, 0, 0, 0
            )
            at += _IOCB.size
        return max(self._submit(self._context, ctypes.c_long(len(reads)), self._pointers), 0)

    def done(self, *, at_least: int) -> list[tuple[int, int]]:
        """Key and result of what is done: bytes, or a negative errno. May be fewer on a signal."""
        if not self._context.value:
            return []
        if at_least == 0 and self._ring is not None and self._ring[0] == self._ring[1]:
            return []
        n = self._get_events(
            self._context, ctypes.c_long(at_least), self._depth, self._events, None
        )
        events = (_EVENT.unpack_from(self._events, _EVENT.size * i) for i in range(max(n, 0)))
        return [(key, result) for key, _, result, _ in events]

    def close(self) -> None:
        """Wait for what is on its way, and give everything back."""
        if self._context.value:
            self._ring = None
            self._destroy(self._context)
            self._context.value = 0
