"""A process that starts another and never lets it outlive the one that asked for it.

usage: guard.py GRACE_S COMMAND...

Standard input is a pipe whose other end is held by whoever asked. However that process ends,
also by SIGKILL, the pipe closes then, and the command with all that it started gets SIGTERM,
and SIGKILL ``GRACE_S`` seconds later. Run by its path, so that it imports nothing of Sluice.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from types import FrameType

NOT_STARTED = 127


def main(arguments: list[str]) -> int:
    """Run the command; its exit code, or 128 and the signal that killed it."""
    if os.getpgrp() != os.getpid():  # what follows signals the whole group
        os.setpgid(0, 0)
    # Handlers are not inherited by the command, as SIG_IGN would be.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _nothing)
    try:
        command = subprocess.Popen(arguments[1:], stdin=subprocess.DEVNULL)
    except OSError as err:
        print(f"{arguments[1]}: {err.strerror or err}", file=sys.stderr, flush=True)
        return NOT_STARTED
    alone = threading.Event()
    threading.Thread(target=_watch, args=(alone, float(arguments[0])), daemon=True).start()
    code = command.wait()
    # What it started and left behind; this process ends with it if nobody waits for the code.
    os.killpg(0, signal.SIGKILL if alone.is_set() else signal.SIGTERM)
    return code if code >= 0 else 128 - code


def _watch(alone: threading.Event, grace_s: float) -> None:
    while os.read(0, 4096):
        pass
    alone.set()
    os.killpg(0, signal.SIGTERM)
    time.sleep(grace_s)
    os.killpg(0, signal.SIGKILL)


def _nothing(number: int, frame: FrameType | None) -> None:
    pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
