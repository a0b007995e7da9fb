"""Ctrl-C that works at any moment, also inside llama.cpp.

Python runs signal handlers between bytecodes of the main thread: never while a long call into
llama.cpp lasts, and often inside a callback of llama.cpp's, where an exception is printed and
dropped. So the signal wakes a thread, and that thread ends the process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType

from sluice.cli.faults import INTERRUPTED, complain


class Interrupt:
    """While entered, SIGINT ends the process with exit code 130 and one line on stderr.

    Does nothing outside the main thread, or where SIGINT is ignored already (``nohup``).

    Args:
        before: called first, in the watching thread; its errors are ignored.
        line: what stderr is told, after ``sluice: ``.
        leave: ends the process with the exit code given.
    """

    def __init__(
        self,
        before: Callable[[], None],
        line: str = "interrupted",
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        self._before = before
        self.line = line
        self._leave = leave
        self._held = threading.Lock()
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Interrupt:
        inherited = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread():
            return self
        if inherited in (signal.SIG_IGN, None):
            return self
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        watcher = threading.Thread(target=self._watch, args=(ours,), daemon=True)
        previous_fd = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, _nothing)
        watcher.start()

        def restore() -> None:
            signal.signal(signal.SIGINT, inherited)
            signal.set_wakeup_fd(previous_fd)
            theirs.close()
            watcher.join()
            ours.close()

        self._undo.callback(restore)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._undo.close()

    @contextlib.contextmanager
    def held_back(self) -> Iterator[None]:
        """While entered, a SIGINT waits: for writing a file whole."""
        with self._held:
            yield

    def _watch(self, numbers: socket.socket) -> None:
        while received := numbers.recv(64):
            if signal.SIGINT in received:
                with self._held:
                    with contextlib.suppress(Exception):
                        self._before()
                    with contextlib.suppress(Exception):
                        if sys.stderr.isatty():
                            sys.stderr.write("\n")  # off the line with the terminal's ^C
                        complain(self.line)
                        sys.stderr.flush()
                    self._leave(INTERRUPTED)


def _nothing(number: int, frame: FrameType | None) -> None:
    """Keep Python's own handler from raising KeyboardInterrupt; the watcher acts."""
