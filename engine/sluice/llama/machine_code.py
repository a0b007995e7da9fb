"""A few instructions of x86-64, where a call into Python would cost too much or come too late."""

from __future__ import annotations

import mmap
import platform
import struct
import sys
from collections.abc import Sequence

from sluice.llama import libc

JE, JNE, JNS, JAE = b"\x74", b"\x75", b"\x79", b"\x73"
"""Short jumps; see :data:`Step`."""

Step = bytes | tuple[bytes, str] | str
"""An instruction; a short jump and the label that it goes to; or a label, for those before it."""


def runs_here() -> bool:
    """Whether this process runs x86-64 code that calls as System V has it."""
    is_64 = sys.maxsize > 1 << 32  # a 32-bit process is told the machine's name, too
    return sys.platform == "linux" and platform.machine() == "x86_64" and is_64


def assembled(steps: Sequence[Step]) -> bytes:
    """Instructions one after the other.

    Raises:
        struct.error: a label is further away than a short jump reaches.
    """
    code = b""
    labels: dict[str, int] = {}
    for step in reversed(steps):  # what a jump skips is known then
        if isinstance(step, str):
            labels[step] = len(code)
        elif isinstance(step, tuple):
            jump, label = step
            code = jump + struct.pack("<b", len(code) - labels[label]) + code
        else:
            code = step + code
    return code


def executable(code: bytes) -> mmap.mmap | None:
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
