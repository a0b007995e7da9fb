"""The calls of the C library that Python has no name for."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

_AT_FDCWD = -100
_STATX_DIOALIGN = 0x2000
_STATX_BYTES = 256
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


@functools.cache
def _statx() -> ctypes._NamedFuncPointer | None:
    function = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
    if function is not None:
        function.restype = ctypes.c_int
        function.argtypes = (
            ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p,
        )  # fmt: skip
    return function
