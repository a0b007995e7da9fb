"""Whoever is measured in turns: a worker's process, or a peer's command."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from peer import PeerRun
from sluice.errors import SystemFault
from worker import BEGIN, TURN, Measured, Spec, Turns

WORKER = Path(__file__).with_name("worker.py")


class Runner:
    """A worker's process; see :class:`worker.Turns`.

    Whatever goes wrong with it is the :attr:`Measured.error` of what it was asked for, and of
    everything after that.

    Args:
        spec: what it measures.
        timeout_s: most that it may take to answer.
        wrap: the command line to the one that is run, as in a control group.
    """

    def __init__(
        self,
        spec: Spec,
        timeout_s: float,
        wrap: Callable[[list[str]], list[str]] = lambda line: line,
    ) -> None:
        line = wrap([sys.executable, str(WORKER), json.dumps(dataclasses.asdict(spec))])
        self._timeout_s = timeout_s
        self._error = ""
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def begin(self) -> Measured:
        """See :meth:`worker.Turns.begin`."""
        return self._ask(BEGIN)

    def turn(self) -> Measured:
        """See :meth:`worker.Turns.turn`."""
        return self._ask(TURN)

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            try:
                self._process.stdin.close()  # the end of its input
                self._process.wait(self._timeout_s)
            except (OSError, subprocess.TimeoutExpired):
                pass
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def _ask(self, what: str) -> Measured:
        if self._error:
            return Measured(error=self._error)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        is_late = threading.Event()

        def kill() -> None:
            is_late.set()
            self._process.kill()

        timer = threading.Timer(self._timeout_s, kill)
        timer.start()
        try:
            self._process.stdin.write(what + "\n")
            self._process.stdin.flush()
            said = self._process.stdout.readline()
        except OSError:  # it has ended; what it last said may still be there to read
            said = self._process.stdout.readline()
        finally:
            timer.cancel()
        if said:
            measured = Measured(**json.loads(said))
            self._error = measured.error
        else:
            self._error = self._why_it_ended(is_late=is_late.is_set())
            measured = Measured(error=self._error)
        return measured

    def _why_it_ended(self, *, is_late: bool) -> str:
        code = self._process.wait()
        if is_late:
            return f"still running after {self._timeout_s:.0f} s"
        self._errors.seek(0)
        said = self._errors.read().strip().splitlines()
        return f"ended with {code}{': ' + said[-1] if said else ''}"


class PeerRunner:
    """A peer's command, which can only be run as a whole: in the middle of the others' turns.

    Args:
        run: runs it for so many tokens.
        warm, n: tokens before those that count, and those.
        turns: that will be asked for.
    """

    def __init__(self, run: Callable[[int], PeerRun], *, warm: int, n: int, turns: int) -> None:
        self._run = run
        self._warm = warm
        self._n = n
        self._waits = turns // 2

    def begin(self) -> Measured:
        """See :meth:`worker.Turns.begin`."""
        return Measured()

    def turn(self) -> Measured:
        """See :meth:`worker.Turns.turn`."""
        self._waits -= 1
        return self._measured() if self._waits == -1 else Measured()

    def _measured(self) -> Measured:
        try:
            runs = [self._run(n) for n in (self._warm, self._warm + self._n)]
        except SystemFault as err:
            return Measured(error=str(err))
        wall_s = runs[1].wall_s - runs[0].wall_s
        peak = max(run.peak_rss_bytes for run in runs)
        if wall_s <= 0:
            return Measured(error="its longer run was not the slower one", peak_rss_bytes=peak)
        return Measured(n_tokens=self._n, wall_s=wall_s, peak_rss_bytes=peak, maxrss_bytes=peak)


def in_turns(
    own: Turns, beside: Mapping[str, Turns], turns: int
) -> tuple[Measured, dict[str, Measured]]:
    """``turns`` of each, one after the other: what the machine does meanwhile, all of them see.

    Returns:
        What ``own`` measured, and what each of ``beside`` did.
    """
    measured = own.begin()
    others = {name: one.begin() for name, one in beside.items()}
    for _ in range(turns):
        if measured.error:
            break
        for name, one in beside.items():
            others[name].add(one.turn())
        measured.add(own.turn())
    return measured, others
