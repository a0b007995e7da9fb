"""Instructions put one after the other, and run."""

from __future__ import annotations

import ctypes
import mmap
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sluice.llama import libc, machine_code
from sluice.llama.machine_code import JAE, JE, JNE, JNS, Step, assembled, executable

NOP, RET = b"\x90", b"\xc3"
FARTHEST = 127  # bytes that a short jump skips

runs_only = pytest.mark.skipif(not machine_code.runs_here(), reason="no machine code here")


def returns(number: int) -> bytes:
    """mov eax, number; ret."""
    return b"\xb8" + struct.pack("<i", number) + RET


def compares(number: int) -> bytes:
    """cmp edi, number: the first argument."""
    return b"\x81\xff" + struct.pack("<i", number)


def function(steps: Sequence[Step]) -> Callable[[int], int]:
    page = executable(assembled(steps))
    assert page is not None

    def call(argument: int) -> int:
        made = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(libc.address_of(page))
        return int(made(argument))

    return call


def permissions(address: int) -> str:
    """What may be done with the memory there."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, allowed, *_ = line.split()
        first, last = (int(one, 16) for one in where.split("-"))
        if first <= address < last:
            return allowed
    raise AssertionError("nothing is mapped there")


def test_instructions_follow_each_other_and_labels_take_no_room() -> None:
    assert assembled([]) == b""
    assert assembled([NOP, "here", RET, "there"]) == NOP + RET


def test_a_jump_skips_what_stands_before_its_label() -> None:
    steps: list[Step] = [(JE, "end"), NOP, (JNE, "middle"), NOP * 3, "middle", RET, "end"]
    assert assembled(steps) == b"\x74\x07" + NOP + b"\x75\x03" + NOP * 3 + RET


def test_a_jump_to_what_comes_next_skips_nothing() -> None:
    assert assembled([(JAE, "next"), "next", RET]) == b"\x73\x00" + RET


def test_a_label_that_is_too_far_is_an_error() -> None:
    assert assembled([(JE, "end"), NOP * FARTHEST, "end"])[1] == FARTHEST
    with pytest.raises(struct.error):
        assembled([(JE, "end"), NOP * (FARTHEST + 1), "end"])


@pytest.mark.parametrize("steps", [[(JE, "nowhere"), RET], ["before", NOP, (JE, "before")]])
def test_a_jump_to_no_label_after_it_is_an_error(steps: list[Step]) -> None:
    with pytest.raises(KeyError):
        assembled(steps)


@runs_only
def test_code_runs() -> None:
    assert function([returns(7)])(0) == 7


@runs_only
@pytest.mark.parametrize(
    ("jump", "jumped"),
    [
        (JE, [False, True, False]),
        (JNE, [True, False, True]),
        (JNS, [False, True, True]),
        (JAE, [False, True, True]),
    ],
)
def test_jumps_jump_where_they_should(jump: bytes, jumped: list[bool]) -> None:
    steps = [compares(5), (jump, "is"), returns(0), "is not", returns(2), "is", returns(1)]
    compare = function(steps)
    assert [compare(number) == 1 for number in (4, 5, 6)] == jumped
    assert {compare(number) for number in (4, 5, 6)} == {0, 1}


@runs_only
def test_a_page_that_runs_is_not_writable() -> None:
    page = executable(returns(7))
    assert page is not None
    assert permissions(libc.address_of(page)) == "r-xp"


@pytest.mark.skipif(sys.platform != "linux", reason="the page is Linux's")
def test_code_that_may_not_be_run_has_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[mmap.mmap] = []

    def refuse(page: mmap.mmap) -> bool:
        pages.append(page)
        return False

    monkeypatch.setattr(libc, "make_executable", refuse)
    assert executable(returns(7)) is None
    assert [page.closed for page in pages] == [True]


def test_where_no_memory_is_left_there_is_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_of_the_page: object, **_flags: object) -> mmap.mmap:
        raise OSError

    monkeypatch.setattr(mmap, "mmap", refuse)
    assert executable(returns(7)) is None
