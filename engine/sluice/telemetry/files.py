"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from sluice.errors import SystemFault


@contextlib.contextmanager
def atomic(out: Path) -> Iterator[Path]:
    """A file to write to, beside ``out`` with its links followed, that takes its place at the end.

    Any error leaves what was at ``out``, and nothing beside it. Permissions are those of any
    file that this user makes.

    Raises:
        SystemFault: the folder does not exist, is not writable, or the disk is full; an
            ``OSError`` within the block is taken for such.
    """
    out = out.resolve()  # a rename would replace a link itself, not the file that it names
    try:
        part = _made_beside(out)
    except OSError as err:
        raise SystemFault(f"{out}: cannot be written: {err.strerror or err}") from None
    try:
        yield part
        os.replace(part, out)
    except OSError as err:
        raise SystemFault(f"{out}: cannot be written: {err.strerror or err}") from None
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Write ``text`` (UTF-8, LF) to ``path`` so that it is there whole or not at all.

    Raises:
        SystemFault: the folder does not exist, is not writable, or the disk is full.
    """
    with atomic(path) as part:
        part.write_text(text, encoding="utf-8", newline="\n")


def _made_beside(out: Path) -> Path:
    # Not mkstemp: its files are the owner's alone, whatever the umask.
    part = out.with_name(f".{out.name}.{secrets.token_hex(8)}")
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    return part
