"""Standard output as a stream of whole characters: UTF-8 whatever the locale, never held back."""

from __future__ import annotations

import sys

from sluice.cli.faults import PipeClosed
from sluice.errors import SystemFault


class Output:
    """Writes text to standard output and flushes it at once.

    Raises:
        SystemFault: standard output is closed from the start.
    """

    def __init__(self) -> None:
        if sys.stdout is None:
            raise SystemFault("standard output is closed; open it, or send it to a file")
        sys.stdout.flush()
        self._raw = sys.stdout.buffer

    def write(self, text: str) -> None:
        """Write and flush ``text``.

        Raises:
            PipeClosed: the reader has gone.
            SystemFault: the disk is full, or the like.
        """
        try:
            self._raw.write(text.encode("utf-8"))
            self._raw.flush()
        except BrokenPipeError:
            raise PipeClosed from None
        except OSError as err:
            raise SystemFault(f"standard output cannot be written: {err.strerror}") from None
