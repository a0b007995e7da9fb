"""Checks of output paths, made before a model is loaded so that no work is lost to them."""

from __future__ import annotations

import os
from pathlib import Path

from sluice.errors import RequestError


def check_output_file(flag: str, path: Path) -> Path:
    """Return ``path`` if a regular file can be put there.

    Raises:
        RequestError: names the flag and the path; its folder does not exist or cannot be
            written, or something else than a file is in its place.
    """
    folder = path.parent
    if not folder.is_dir():
        raise RequestError(f"{flag} {path}: the folder {folder} does not exist; make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise RequestError(f"{flag} {path}: the folder {folder} cannot be written")
    if path.exists() and not path.is_file():
        raise RequestError(f"{flag} {path}: is not a regular file; give the name of a file")
    return path


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
