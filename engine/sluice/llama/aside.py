"""Work of ours on the calling thread while the other compute threads go on computing.

All of ggml's threads meet at a barrier before the rows of a matmul, then each takes a piece of
them and, when that is done, the next that nobody has. Who comes late leaves more to the others.
So right after that barrier is where the calling thread has time: whatever else it does there, the
rows are computed meanwhile, the same ones by the same code.

The barrier is libgomp's, and libggml-cpu calls it through a slot (see :mod:`sluice.llama.slots`).
A few instructions of machine code in that slot call the barrier and then, where work was given,
Python. They know a matmul's barrier by the address that it returns to, which small graphs tell.
x86-64 Linux with OpenMP only: elsewhere there is no :class:`Aside`.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from sluice.llama import ggml, libc, library
from sluice.llama.machine_code import (
    JAE,
    JE,
    JNE,
    JNS,
    Step,
    assembled,
    executable,
    runs_here,
)
from sluice.llama.repeated import Buffer, RepeatedGraph
from sluice.llama.slots import find_slot

Matmul = Literal["MUL_MAT", "MUL_MAT_ID"]
Operation = Matmul | Literal["MUL"]
_SEEN_MAX = 16
_ROWS, _WIDTH = 64, 256  # of the matmul whose barriers are looked at


class _State(ctypes.Structure):
    """What the machine code looks at, and in ``seen`` what it found."""

    _fields_ = (
        ("is_given", ctypes.c_uint32),  # what begins is looked for, and only then
        ("is_watched", ctypes.c_uint32),
        ("thread", ctypes.c_uint64),
        ("site", ctypes.c_uint64),
        ("after", ctypes.c_int32),
        ("n_seen", ctypes.c_uint32),
        ("seen", ctypes.c_uint64 * _SEEN_MAX),
    )


class Aside:
    """Does one thing at a time, of one owner. Get it by :func:`aside`."""

    def __init__(self, barrier: _Barrier) -> None:
        self._barrier = barrier
        self._work: Callable[[], None] | None = None
        self._raised: BaseException | None = None
        self._thread = 0  # that gave it

    def give(self, work: Callable[[], None], matmul: Matmul, *, after: int = 0) -> bool:
        """Do ``work`` on this thread in the next such matmul of more than one thread.

        It takes the place of what this thread gave before and has not begun, whoever its owner is.

        Args:
            work: is called once, unless :meth:`take_back` comes before; may give more.
            matmul: the operation.
            after: so many of them first.

        Returns:
            False where another thread's is still to be done: ``work`` is the caller's, then.
        """
        barrier, thread = self._barrier, threading.get_ident()
        state = barrier.state
        if state.is_given and state.thread != thread:
            return False
        state.is_given = 0  # while the rest is written
        self._work, self._thread = work, thread
        barrier.given[thread] = self
        state.thread, state.site, state.after = thread, barrier.sites[matmul], after
        state.is_given = 1
        return True

    def take_back(self) -> Callable[[], None] | None:
        """What was given and has not begun, if anything: it will not begin any more.

        Raises:
            BaseException: what the last that did begin has raised.
        """
        raised, work = self._raised, self._work
        self.drop()
        if raised is not None:
            raise raised
        return work

    def drop(self) -> None:
        """As :meth:`take_back`, and forget what it would return or raise."""
        self._raised = self._work = None
        barrier, thread = self._barrier, self._thread
        if barrier.given.get(thread) is self:  # it may be dropped by another than gave it
            del barrier.given[thread]
            if barrier.state.thread == thread:
                barrier.state.is_given = 0

    def begin(self) -> None:
        """Its turn has come. Raises nothing: ggml calls this."""
        work, self._work = self._work, None
        try:
            if work is not None:
                work()
        except BaseException as err:  # whoever takes back raises it
            self._raised = err


@dataclass(slots=True)
class _Barrier:
    """What stands in the slot, and whose work is to be done, by thread."""

    state: _State
    page: mmap.mmap | None = None
    callback: object = None
    sites: dict[Matmul, int] = field(default_factory=dict)
    given: dict[int, Aside] = field(default_factory=dict)

    def call(self) -> None:
        """A thread's turn has come."""
        owner = self.given.pop(threading.get_ident(), None)
        if owner is not None:
            owner.begin()


def aside() -> Aside | None:
    """A new owner's; ``None`` where this build or this processor has no such barrier."""
    with _INSTALLING:
        barrier = _barrier()
    return None if barrier is None else Aside(barrier)


def keeps_threads() -> bool:
    """Whether compute threads stay from one graph to the next: OpenMP's do, ggml's own are made."""
    return _slot() is not None


_INSTALLING = threading.Lock()


def _slot() -> int | None:
    path = library.loaded("libggml-cpu")
    return None if path is None else find_slot(path, "GOMP_barrier")


@functools.cache
def _barrier() -> _Barrier | None:
    slot = _slot() if runs_here() else None
    if slot is None:
        return None
    _compute("MUL")  # whoever binds late has bound now
    barrier = _installed(ctypes.c_uint64.from_address(slot))
    if barrier is None:
        return None
    others = _barriers_of("MUL", barrier.state)
    matmuls: tuple[Matmul, ...] = ("MUL_MAT", "MUL_MAT_ID")
    for matmul in matmuls:
        own = _barriers_of(matmul, barrier.state) - others
        if len(own) != 1:
            return None
        barrier.sites[matmul] = own.pop()
    return barrier


def _installed(slot: ctypes.c_uint64) -> _Barrier | None:
    barrier = _Barrier(_State())
    callback = ctypes.CFUNCTYPE(None)(barrier.call)
    target = ctypes.c_uint64.from_buffer(callback).value
    page = executable(_machine_code(ctypes.addressof(barrier.state), slot.value, target))
    if page is None:
        return None
    barrier.page, barrier.callback = page, callback
    _kept.append(barrier)
    slot.value = libc.address_of(page)
    return barrier


_kept: list[_Barrier] = []
"""For good: a thread may be in it at any time."""


def _barriers_of(operation: Operation, state: _State) -> set[int]:
    """Where the barriers return to that this thread meets in a graph of one operation."""
    state.n_seen, state.thread, state.is_watched = 0, threading.get_ident(), 1
    try:
        _compute(operation)
    finally:
        state.is_watched = 0
    return set(state.seen[: state.n_seen])


def _compute(operation: Operation) -> None:
    graph = _Graph(operation)
    try:
        graph.compute()
    finally:
        graph.close()


class _Graph(RepeatedGraph):
    """One operation."""

    def __init__(self, operation: Operation, *, threads: int = 2) -> None:
        super().__init__(threads=threads)
        self.operation = operation
        out = Buffer(4 * _WIDTH * _ROWS)
        self.out = out.raw
        self._weight, self._row, self._ids = (
            Buffer(4 * _WIDTH * _ROWS), Buffer(4 * _WIDTH), Buffer(4)
        )  # fmt: skip
        sources = [
            self.tensor(ggml.F32, _WIDTH, _ROWS, self._weight.address),
            self.tensor(ggml.F32, _WIDTH, 1, self._row.address),
        ]
        if operation == "MUL_MAT_ID":
            sources.append(self.tensor(ggml.I32, 1, 1, self._ids.address))
        make = {"MUL": self.base.ggml_mul, "MUL_MAT": self.base.ggml_mul_mat,
                "MUL_MAT_ID": self.base.ggml_mul_mat_id}[operation]  # fmt: skip
        self.build(self.node(make, *sources, into=out))

    def fill(self, value: float) -> None:
        """Every factor is ``value``."""
        for buffer in (self._weight, self._row):
            buffer.fill(struct.pack("=f", value) * (len(buffer.raw) // 4))


def _machine_code(state: int, barrier: int, callback: int) -> bytes:
    """void (void), position-independent: ``barrier``, and ``callback`` where its turn has come.

    Both are void (void); ``state`` is the address of a :class:`_State`.
    """
    at = {name: getattr(_State, name).offset for name, *_ in _State._fields_}
    steps: list[Step] = [
        b"\xf3\x0f\x1e\xfa",                            # endbr64
        b"\x48\xb8" + struct.pack("<Q", state),         # mov rax, state
        bytes([0x48, 0x83, 0x78, at["is_given"], 0]),   # cmp qword [rax + is_given], 0: both
        (JE, "barrier"),
        b"\x64\x48\x8b\x0c\x25\x00\x00\x00\x00",        # mov rcx, fs:[0]: which thread this is
        bytes([0x48, 0x3B, 0x48, at["thread"]]),        # cmp rcx, [rax + thread]
        (JNE, "barrier"),
        b"\x48\x8b\x14\x24",                            # mov rdx, [rsp]: where this returns to
        bytes([0x83, 0x78, at["is_watched"], 0]),       # cmp dword [rax + is_watched], 0
        (JE, "not watched"),
        bytes([0x8B, 0x48, at["n_seen"]]),              # mov ecx, [rax + n_seen]
        bytes([0x83, 0xF9, _SEEN_MAX]),                 # cmp ecx, _SEEN_MAX
        (JAE, "barrier"),
        bytes([0x48, 0x89, 0x54, 0xC8, at["seen"]]),    # mov [rax + 8 * rcx + seen], rdx
        bytes([0xFF, 0x40, at["n_seen"]]),              # inc dword [rax + n_seen]
        "not watched",
        bytes([0x83, 0x78, at["is_given"], 0]),         # cmp dword [rax + is_given], 0
        (JE, "barrier"),
        bytes([0x48, 0x3B, 0x50, at["site"]]),          # cmp rdx, [rax + site]
        (JNE, "barrier"),
        bytes([0x83, 0x68, at["after"], 1]),            # sub dword [rax + after], 1
        (JNS, "barrier"),
        bytes([0xC7, 0x40, at["is_given"], 0, 0, 0, 0]),  # mov dword [rax + is_given], 0
        b"\x48\x83\xec\x08",                            # sub rsp, 8: as calls want it
        b"\x48\xb8" + struct.pack("<Q", barrier),       # mov rax, barrier
        b"\xff\xd0",                                    # call rax
        b"\x48\x83\xc4\x08",                            # add rsp, 8
        b"\x48\xb8" + struct.pack("<Q", callback),      # mov rax, callback
        b"\xff\xe0",                                    # jmp rax
        "barrier",
        b"\x48\xb8" + struct.pack("<Q", barrier),       # mov rax, barrier
        b"\xff\xe0",                                    # jmp rax
    ]  # fmt: skip
    return assembled(steps)
