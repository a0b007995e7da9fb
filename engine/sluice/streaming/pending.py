"""The reads that a layer waits for, part by part: at once, or at stops before their matmuls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from sluice.errors import SystemFault
from sluice.seams import Seams, replaces
from sluice.streaming.lanes import Job, Lanes
from sluice.streaming.layout import ExpertTensor
from sluice.telemetry.metrics import ReadCounter

JobsByPart = dict[str, list[Job]]

Stops = Mapping[str, tuple[int, str]]
"""By the name of the node to stop after: the layer, and the part that the next matmul takes."""


class Pending:
    """What the layer that has routed last still waits for.

    Args:
        lanes: read it.
        seams: see :mod:`sluice.seams`.
        stops: where parts can be waited for later; without any, all is waited for at once.
        last: the node after which, by layer, all parts can be waited for together.
        slice_view: the bytes of one expert's slice where they stand, for the seams.
    """

    def __init__(
        self,
        lanes: Lanes,
        seams: Seams,
        stops: Stops,
        slice_view: Callable[[ExpertTensor, int], memoryview],
        last: Mapping[int, str] | None = None,
    ) -> None:
        self._lanes = lanes
        self._seams = seams
        self._stops = stops
        self._slice_view = slice_view
        self._later: dict[int, set[str]] = {}
        for layer, part in stops.values():
            self._later.setdefault(layer, set()).add(part)
        self._is_watched = replaces(seams, "slice_read")
        self._layer = -1
        self._jobs: JobsByPart = {}
        self._watched: list[tuple[ExpertTensor, int]] = []
        self._last = last or {}
        self._is_late = False

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def begin(self, layer: int) -> None:
        """Another layer has routed.

        Raises:
            SystemFault: the one before has never had what it was to wait for at its end.
        """
        if self._is_late and self._jobs:
            raise SystemFault(
                f"layer {self._layer}: the graph went on without the experts that were read late"
            )
        self._layer, self._jobs, self._watched, self._is_late = layer, {}, [], False

    def begin_late(self) -> None:
        """All that the layer waits for is waited for together, after its last matmul."""
        self._is_late = True

    @property
    def is_late(self) -> bool:
        """See :meth:`begin_late`."""
        return self._is_late

    def add(self, part: str, jobs: Iterable[Job]) -> None:
        """Wait for ``jobs`` before ``part`` is used."""
        self._jobs.setdefault(part, []).extend(jobs)

    def watch(self, tensors: Sequence[ExpertTensor], experts: Iterable[int]) -> None:
        """Show these slices to the seams once they are waited for."""
        if self._is_watched:
            self._watched += [(tensor, expert) for expert in experts for tensor in tensors]

    def submit(self, order: Iterable[str]) -> list[Job]:
        """Queue what is new and hurry what was read ahead, the part that is needed first before."""
        submitted: list[Job] = []
        parts = list(order)
        # Nothing looks at one part before all are there, where they are late.
        for group in [parts] if self._is_late else ([part] for part in parts):
            jobs = [job for part in group for job in self._jobs.get(part, ())]
            new = [job for job in jobs if not job.is_ahead]
            self._lanes.submit(new)
            if len(new) < len(jobs):
                self._lanes.hurry(job for job in jobs if job.is_ahead)
            submitted += new
        return submitted

    def wait(self, layer: int, order: Iterable[str], counter: ReadCounter) -> None:
        """For all that no stop is for.

        Raises:
            ReadFault: a read failed.
        """
        later: Collection[str] = self._later.get(layer, ())
        if self._is_late:
            order = later = tuple(order)
        for part in order:
            if part not in later:
                self._wait_for(layer, [part], counter)
        # What was read ahead is not of the bytes that were asked for here.
        jobs = (j for part in later for j in self._jobs.get(part, ()) if not j.is_ahead)
        counter.overlapped_bytes += sum(job.read.needed_bytes for job in jobs)

    def stops_after(self, name: str) -> bool:
        """Whether compute has to stop after the node ``name``: every stop costs a start."""
        if self._is_late and self._jobs:
            return name == self._last[self._layer]
        stop = self._stops.get(name) if self._jobs else None
        if stop is None or stop[0] != self._layer:  # a layer that was passed by waits for nothing
            return False
        self._lanes.reap()
        jobs = self._jobs.get(stop[1], ())
        return self._is_watched or any(job.error is not None or not job.is_done for job in jobs)

    def wait_after(self, name: str, counter: ReadCounter) -> bool:
        """Wait for the part that is used after the node ``name``; whether that is a stop at all.

        Raises:
            ReadFault: a read failed.
        """
        if self._is_late and name == self._last[self._layer]:
            self._wait_for(self._layer, list(self._jobs), counter)
            return True
        stop = self._stops.get(name)
        if stop is not None and stop[0] == self._layer:
            self._wait_for(stop[0], [stop[1]], counter)
        return stop is not None

    def wait_for_all(self) -> None:
        """For every part, which still counts as waited for at its stop."""
        self._lanes.wait([job for jobs in self._jobs.values() for job in jobs])

    def cancel(self) -> None:
        """After an error: no lane may still write into what the next pass uses."""
        self._lanes.cancel(job for jobs in self._jobs.values() for job in jobs)
        self._jobs, self._is_late = {}, False

    def _wait_for(self, layer: int, parts: Sequence[str], counter: ReadCounter) -> None:
        waiting: list[Job] = []
        for part in parts:
            jobs = self._jobs.pop(part, None)
            if jobs and self._seams.waits(layer, part):
                waiting += jobs
        if waiting:
            counter.stall_s += self._lanes.wait(waiting)
        for tensor, expert in self._watched:
            if tensor.part in parts:
                view = self._slice_view(tensor, expert)
                self._seams.slice_read(layer, tensor.part, expert, view)
