"""Reads that the kernel performs while no thread waits for them (Linux AIO).

Only O_DIRECT makes them so: a buffered read is done by whoever submits it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import time
from collections.abc import Sequence

from sluice.llama import libc

_IOCB = struct.Struct("=QIiHhIQqqQII")  # data, key, rw_flags, opcode, priority, fd, buffer, …
_EVENT = struct.Struct("=QQqq")  # data, iocb, result, result 2
_PREAD = 0  # IOCB_CMD_PREAD
# Of struct aio_ring, which the context's number is the address of.
_N_EVENTS, _HEAD, _MAGIC, _EVENTS = 4, 8, 16, 32
_RING_MAGIC = 0xA10A10A1

_SPIN_S = 1e-3
"""For so long somebody who waits looks again and again: most reads are done by then, and a core
that went to sleep is woken slowly, above all a virtual one.
"""


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
        self._ring = _Ring.at(context.value)

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
        ring, found = self._ring, []
        if ring is not None:
            if at_least > 0:
                ring.spin()
            elif ring.is_empty:
                return []
            found = ring.taken()
        if found and len(found) >= at_least:
            return found
        return found + self._asked_for(max(at_least - len(found), 0))

    def _asked_for(self, at_least: int) -> list[tuple[int, int]]:
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


class _Ring:
    """What is done, where the kernel writes it down: ``struct aio_ring``, read as libaio does."""

    def __init__(self, address: int) -> None:
        self._ends = (ctypes.c_uint32 * 2).from_address(address + _HEAD)
        """Head and tail: the kernel moves the tail, whoever reads moves the head."""
        self._n = ctypes.c_uint32.from_address(address + _N_EVENTS).value
        self._events = (ctypes.c_char * (_EVENT.size * self._n)).from_address(address + _EVENTS)
        # Elsewhere a processor may see the tail before it sees what stands there.
        self._is_ordered = platform.machine() == "x86_64"

    @classmethod
    def at(cls, address: int) -> _Ring | None:
        """The one at ``address``; ``None`` where something else is there."""
        magic = ctypes.c_uint32.from_address(address + _MAGIC).value
        return cls(address) if magic == _RING_MAGIC else None

    @property
    def is_empty(self) -> bool:
        """Whether nothing more is done."""
        return self._ends[0] == self._ends[1]

    def spin(self) -> None:
        """Look again and again, for a while."""
        ends, until = self._ends, time.perf_counter() + _SPIN_S
        while ends[0] == ends[1] and time.perf_counter() < until:
            pass

    def taken(self) -> list[tuple[int, int]]:
        """Key and result of what is done, without a call; nothing where that is not safe."""
        found: list[tuple[int, int]] = []
        if self._is_ordered:
            head, tail = self._ends
            while head != tail:
                key, _, result, _ = _EVENT.unpack_from(self._events, _EVENT.size * head)
                found.append((key, result))
                head = (head + 1) % self._n
            self._ends[0] = head
        return found
