"""The prompt of a run: from the command line, a file or standard input."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sluice.errors import RequestError

STDIN = "-"


def check_source(text: str | None, file: str | None) -> None:
    """Refuse anything but exactly one source.

    Raises:
        RequestError: both or neither were given.
    """
    if text is not None and file is not None:
        raise RequestError("-p with -f: there is one prompt; drop one of them")
    if text is None and file is None:
        raise RequestError("no prompt: give it with -p TEXT, or with -f FILE (-f - reads stdin)")


def read_prompt(text: str | None, file: str | None) -> str:
    """The prompt as it stands in its source, line ends included.

    Args:
        text: the text itself, or ``None``.
        file: a path, or ``-`` for standard input, or ``None``.

    Raises:
        RequestError: not exactly one source, unreadable, or not UTF-8.
    """
    check_source(text, file)
    if text is not None:
        return _argument(text)
    assert file is not None
    try:
        return _bytes(file).decode("utf-8")
    except UnicodeDecodeError as err:
        raise RequestError(
            f"-f {file}: not UTF-8 at byte {err.start}; convert the file to UTF-8"
        ) from None


def _argument(text: str) -> str:
    """``text`` as the shell gave it, also where the locale could not say what its bytes mean."""
    try:
        if any("\udc80" <= c <= "\udcff" for c in text):
            text = os.fsencode(text).decode("utf-8")
        text.encode("utf-8")
    except UnicodeError:
        raise RequestError("-p: not UTF-8; give the prompt in UTF-8, or in a file (-f)") from None
    return text


def _bytes(file: str) -> bytes:
    if file == STDIN and sys.stdin is None:
        raise RequestError("-f -: standard input is closed")
    try:
        return sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
    except OSError as err:
        raise RequestError(f"-f {file}: cannot be read: {err.strerror}") from None
    except ValueError as err:  # a NUL in the name
        raise RequestError(f"-f {file}: cannot be read: {err}") from None
