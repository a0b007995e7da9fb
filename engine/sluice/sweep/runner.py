"""Makes the requests of a sweep, one at a time, and writes a row for each as it ends."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from sluice.errors import RequestError, SluiceError
from sluice.sweep.arm import Arm
from sluice.sweep.pace import Pace
from sluice.sweep.row import Key, Row
from sluice.sweep.rows import RowFile
from sluice.sweep.schedule import Request, Visit


class OpenArm(Protocol):
    """An arm that can be asked; closed before the next one is opened."""

    def ask(self, request: Request, blank: Row) -> Row:
        """Make the request; ``blank`` filled in with what it gave.

        Raises:
            SluiceError: it failed.
        """

    def close(self) -> None:
        """Give back what the arm holds; may be called again."""


class Target(Protocol):
    """What opens the arms."""

    def refusal(self, request: Request) -> str:
        """The rule that forbids the request, empty where none does."""

    def open(self, arm: Arm, first: Request) -> OpenArm:
        """The arm, warmed up by something short of ``first`` unless its requests are to be cold.

        Raises:
            SluiceError: it cannot be opened.
        """


class Watch(Protocol):
    """Is told where a sweep is."""

    def begins(self, request: Request, n_done: int, n_total: int, left_s: float | None) -> None:
        """``request`` is about to be made; ``left_s`` is a guess at the seconds left."""

    def wrote(self, n_done: int, n_total: int) -> None:
        """One more row is on the disk."""


class Runner:
    """Runs the visits of a sweep against one target.

    A request that is refused by rule, or that fails, costs its own row: the reason is in it, and
    the sweep goes on. An arm that cannot be opened costs what was to be asked of it in that
    visit.

    Args:
        target: opens the arms.
        rows: where rows go; requests that are done there are not made again.
        watch: is told of every request.
        writing: entered while a row is written, so that nothing ends the process meanwhile.
    """

    def __init__(
        self,
        target: Target,
        rows: RowFile,
        watch: Watch,
        writing: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self._target = target
        self._rows = rows
        self._watch = watch
        self._writing = writing
        self._pace = Pace()
        self._open: OpenArm | None = None
        self._warm: tuple[str, str] | None = None
        self._todo: dict[Key, Request] = {}
        self._n_total = 0

    def run(self, visits: Sequence[Visit]) -> None:
        """Make every request that is not done yet.

        Raises:
            SystemFault: the rows cannot be written.
        """
        done = self._rows.done
        requests = [request for visit in visits for request in visit.requests]
        self._n_total = len(requests)
        self._todo = {request.key: request for request in requests if request.key not in done}
        for visit in visits:
            asked = [request for request in visit.requests if request.key not in done]
            try:
                self._visit(asked)
            finally:
                self.close()

    def close(self) -> None:
        """Close the arm that is open, if any."""
        arm, self._open, self._warm = self._open, None, None
        if arm is not None:
            arm.close()

    def _visit(self, requests: Sequence[Request]) -> None:
        for place, request in enumerate(requests):
            if why := self._target.refusal(request):
                self._write(request, RequestError(why))
                continue
            began_s = time.monotonic()
            self._watch.begins(
                request,
                self._n_total - len(self._todo),
                self._n_total,
                self._pace.left_s(self._todo.values()),
            )
            try:
                arm = self._opened(request)
            except SluiceError as err:
                for rest in requests[place:]:
                    why = self._target.refusal(rest)
                    self._write(rest, RequestError(why) if why else err)
                return
            blank = request.blank(self._rows.identity)
            try:
                row = arm.ask(request, blank)
            except SluiceError as err:
                self._write(request, err)
                if not isinstance(err, RequestError):
                    self.close()  # what failed once is not asked again as it is
                continue
            self._warm = (request.workload.name, request.prompt.name)
            self._pace.note(request, time.monotonic() - began_s)
            self._write(request, row)

    def _opened(self, request: Request) -> OpenArm:
        """The arm in the state that the request is to find it in."""
        about = (request.workload.name, request.prompt.name)
        is_other = request.is_cold is False and self._warm != about
        if request.is_cold or is_other:
            self.close()
        if self._open is None:
            self._open = self._target.open(request.arm, request)
            if is_other:  # its cold request was made before the sweep was stopped, or failed
                self._open.ask(request, request.blank(self._rows.identity))
        return self._open

    def _write(self, request: Request, given: Row | SluiceError) -> None:
        if isinstance(given, SluiceError):
            # What is refused as it stands is refused whenever it is asked.
            given = dataclasses.replace(
                request.blank(self._rows.identity),
                outcome="refused" if isinstance(given, RequestError) else "failed",
                error=_plain(str(given)),
            )
        with self._writing():
            self._rows.append(given)
            self._todo.pop(request.key, None)
            self._watch.wrote(self._n_total - len(self._todo), self._n_total)


def _plain(text: str) -> str:
    """``text`` in one line; a server's words may hold what a terminal would obey."""
    return "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))
