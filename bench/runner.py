"""Whoever is measured in turns: a worker's process, or a peer's command."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

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
        self._is_late = False
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            text=True, errors="replace",
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout

    def begin(self) -> Measured:
        """See :meth:`worker.Turns.begin`."""
        return self._ask(BEGIN)

    def turn(self) -> Measured:
        """See :meth:`worker.Turns.turn`."""
        return self._ask(TURN)

    @property
    def has_failed(self) -> bool:
        """Whether it will measure nothing any more."""
        return bool(self._error)

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self._input.close()  # the end of its input
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0 if self._error else self._timeout_s)
        self._process.kill()
        self._process.wait()
        self._output.close()
        self._errors.close()

    def _ask(self, what: str) -> Measured:
        if self._error:
            return Measured(error=self._error)
        timer = threading.Timer(self._timeout_s, self._kill)
        timer.start()
        try:
            with contextlib.suppress(OSError):  # it has ended; what it said last is there to read
                self._input.write(what + "\n")
                self._input.flush()
            measured = _measured(self._output.readline())
            if measured is None:
                self._process.wait()
                measured = Measured(error=self._why_it_ended())
        finally:
            timer.cancel()
        self._error = measured.error
        return measured

    def _kill(self) -> None:
        self._is_late = True
        self._process.kill()

    def _why_it_ended(self) -> str:
        if self._is_late:
            return f"still running after {self._timeout_s:g} s"
        self._errors.seek(0)
        said = self._errors.read().strip().splitlines()
        return f"ended with {self._process.returncode}{': ' + said[-1] if said else ''}"


def _measured(line: str) -> Measured | None:
    """What a worker said; ``None`` where that is the end of its output, or no whole line."""
    if not line.endswith("\n"):
        return None
    try:
        return Measured(**json.loads(line))
    except (ValueError, TypeError):
        return Measured(error=f"said something else than what it measured: {line.strip()[:80]!r}")


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
        self._middle = turns // 2
        self._taken = 0

    def begin(self) -> Measured:
        """See :meth:`worker.Turns.begin`."""
        return Measured()

    def turn(self) -> Measured:
        """See :meth:`worker.Turns.turn`."""
        is_mine = self._taken == self._middle
        self._taken += 1
        return self._measured() if is_mine else Measured()

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
