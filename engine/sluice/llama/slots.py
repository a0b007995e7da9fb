"""Redirect one library's calls to an imported function, for as long as a block runs.

A shared library calls another one through a slot in its table of imported functions
(ELF: ``.rela.plt``, relocation ``JUMP_SLOT``). Writing another address into that slot of one
library changes what *that library* calls, and nothing else. Linux only; a platform or a build
without the slot is reported as such and the caller takes its plain path.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

_JUMP_SLOT = {"EM_X86_64": 7, "EM_AARCH64": 1026}


@functools.cache
def find_slot(library: Path, symbol: str) -> int | None:
    """Address of ``library``'s call slot for ``symbol`` in this process.

    ``None`` where there is no such slot: another platform, another binary format, a call that
    was bound at build time, or a table that the loader made read-only (RELRO).
    """
    if not sys.platform.startswith("linux"):
        return None
    offset = _slot_offset(library.resolve(), symbol)
    if offset is None:
        return None
    base, writable = _mapping(library.resolve())
    if base is None:
        return None
    address = base + offset
    return address if any(lo <= address < hi for lo, hi in writable) else None


@contextlib.contextmanager
def redirected(slots: dict[int, int]) -> Iterator[None]:
    """Point each slot address at a function address; the former targets come back at the end."""
    cells = {slot: ctypes.c_uint64.from_address(slot) for slot in slots}
    before = {slot: cell.value for slot, cell in cells.items()}
    try:
        for slot, target in slots.items():
            cells[slot].value = target
        yield
    finally:
        for slot, target in before.items():
            cells[slot].value = target


def _slot_offset(library: Path, symbol: str) -> int | None:
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile
    from elftools.elf.relocation import RelocationSection
    from elftools.elf.sections import SymbolTableSection

    try:
        with library.open("rb") as file:
            elf = ELFFile(file)
            table = elf.get_section_by_name(".rela.plt")
            kind = _JUMP_SLOT.get(elf["e_machine"])
            if not isinstance(table, RelocationSection) or kind is None:
                return None
            symbols = elf.get_section(table["sh_link"])
            if not isinstance(symbols, SymbolTableSection):
                return None
            for row in table.iter_relocations():
                named = symbols.get_symbol(row["r_info_sym"]).name
                if row["r_info_type"] == kind and named == symbol:
                    return int(row["r_offset"])
    except (OSError, ELFError):
        return None
    return None


def _mapping(library: Path) -> tuple[int | None, list[tuple[int, int]]]:
    base: int | None = None
    writable: list[tuple[int, int]] = []
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) < 6 or fields[5] != str(library):
            continue
        lo, hi = (int(part, 16) for part in fields[0].split("-"))
        if int(fields[2], 16) == 0 and base is None:
            base = lo
        if "w" in fields[1]:
            writable.append((lo, hi))
    return base, writable
