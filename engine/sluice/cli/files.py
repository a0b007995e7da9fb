"""Checks of output paths, made before a model is loaded so that no work is lost to them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from sluice.errors import RequestError

_DEVICES = (Path("/dev"), Path("/proc"), Path("/sys"))


def check_output_file(flag: str, path: Path, *, inputs: Iterable[Path] = ()) -> Path:
    """Return the file to write for ``path``, its links followed, if one can be put there.

    Args:
        flag: the flag that named it.
        path: as it was given.
        inputs: files that the run reads; none of them may be overwritten.

    Raises:
        RequestError: names the flag and the path; its folder does not exist or cannot be
            written, something else than a file is in its place, or it is an input.
    """
    if str(path) in ("", ".", "-"):
        raise RequestError(f"{flag}: give the name of a file")
    if any(part in _DEVICES for part in path.absolute().parents):
        raise RequestError(f"{flag} {path}: is not a regular file; give the name of a file")
    # A file is written beside and renamed into place: that would replace a link itself.
    target = path.resolve()
    for read in inputs:
        if target.exists() and read.exists() and target.samefile(read):
            raise RequestError(f"{flag} {path}: the run reads that file; give another name")
    folder = target.parent if path.is_symlink() else path.parent
    if not folder.is_dir():
        raise RequestError(f"{flag} {path}: the folder {folder} does not exist; make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise RequestError(f"{flag} {path}: the folder {folder} cannot be written")
    if target.exists() and not target.is_file():
        raise RequestError(f"{flag} {path}: is not a regular file; give the name of a file")
    return target


def check_output_folder(flag: str, path: Path) -> Path:
    """Return ``path`` as an existing, writable folder, made if need be.

    Raises:
        RequestError: names the flag and the path.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise RequestError(f"{flag} {path}: cannot be made: {err.strerror}") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise RequestError(f"{flag} {path}: cannot be written")
    return path
