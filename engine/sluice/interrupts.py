"""Ctrl-C while llama.cpp computes: held back until nothing is half done.

Python raises ``KeyboardInterrupt`` between any two of its instructions: also in the eval hook,
whose caller is C code that drops it, and between the lines that move an expert from one place to
another. So it is only noted during a decode, and raised where that may end.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

_is_pending = False


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """While the block runs, Ctrl-C is noted; then it is raised.

    Another handler than Python's own is left alone, and so is another thread than the main one.

    Raises:
        KeyboardInterrupt: after the block, in the place of whatever it raised.
    """
    is_ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not is_ours:
        yield
        return
    signal.signal(signal.SIGINT, _note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        raise_if_pending()


def raise_if_pending() -> None:
    """Raise what was held back; to be called where a pass may end."""
    global _is_pending  # signals are the process's, too
    if _is_pending:
        _is_pending = False
        raise KeyboardInterrupt


def _note(_number: int, _frame: object) -> None:
    global _is_pending
    _is_pending = True
