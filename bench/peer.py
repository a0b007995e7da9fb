"""Another engine's command, timed from outside.

What a command prints about its own speed cannot be compared, and its start (opening, prompt,
warm-up) is in its wall time. So it is run twice, for few tokens and for more, and the rate is
that of the tokens between: the start is the same in both.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from sluice.errors import RequestError, SystemFault

FIELDS = ("{model}", "{n}", "{cache_mb}")


@dataclass(frozen=True, slots=True)
class PeerRun:
    """Wall time and peak of memory of one run of the command."""

    wall_s: float
    peak_rss_bytes: int


def check_template(template: str) -> str:
    """``template``, if it says where model and tokens go.

    Raises:
        RequestError: it does not.
    """
    for wanted in FIELDS[:2]:
        if wanted not in template:
            raise RequestError(
                f"BENCH_PEER {template!r}: has no {wanted}; it is a command with"
                f" {', '.join(FIELDS)}"
            )
    return template


def peer_command(template: str, *, model: Path, n: int, cache_mb: int) -> list[str]:
    """The words of the command; a path with spaces stays one word."""
    values = dict(zip(FIELDS, (str(model), str(n), str(cache_mb)), strict=True))
    words = shlex.split(template)
    for name, value in values.items():
        words = [word.replace(name, value) for word in words]
    return words


def run_peer(command: list[str], timeout_s: float) -> PeerRun:
    """Run the command to its end.

    Raises:
        SystemFault: it cannot be started, fails, or takes longer than ``timeout_s``.
    """
    began = time.perf_counter()
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    except OSError as err:
        raise SystemFault(f"BENCH_PEER: {command[0]}: {err.strerror}") from None
    timer = threading.Timer(timeout_s, process.kill)
    timer.start()
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        timer.cancel()
    wall_s = time.perf_counter() - began
    code = process.returncode = os.waitstatus_to_exitcode(status)
    if code:
        late = f" after {timeout_s:g} s" if wall_s >= timeout_s else ""
        raise SystemFault(f"BENCH_PEER: {command[0]} ended with {code}{late}")
    return PeerRun(wall_s, usage.ru_maxrss << 10)
