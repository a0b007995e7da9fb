"""What a layer that has routed needs: counted where it is here, read where it is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sluice.seams import Seams
from sluice.streaming.arena import Arena
from sluice.streaming.cache import ExpertCache
from sluice.streaming.lanes import Job
from sluice.streaming.layout import ExpertLayout, ExpertTensor
from sluice.streaming.pending import Pending
from sluice.streaming.reader import SliceReader
from sluice.streaming.slice_jobs import SliceJobs
from sluice.telemetry.metrics import ReadCounter


@dataclass(slots=True)
class Reads:
    """Hands the reads of a layer's pass over to ``pending``, and charges them.

    ``orders`` are each layer's parts as their matmuls come.
    """

    layout: ExpertLayout
    reader: SliceReader
    pending: Pending
    orders: Mapping[int, Sequence[str]]

    def submit(self, layer: int, experts: Sequence[int], number: int, counter: ReadCounter) -> None:
        """What ``pending`` was given for ``experts`` of a layer, in pass ``number``.

        Raises:
            ReadFault: a file is no longer the one that was opened.
        """
        tensors = self.layout.layers[layer]
        self.reader.check_unchanged(number)
        jobs = self.pending.submit(self.orders[layer])
        counter.read_bytes += sum(job.read.needed_bytes for job in jobs)
        counter.slice_bytes += sum(t.slice_bytes for t in tensors) * len(experts)
        counter.n_slices += len(tensors) * len(experts)
        self.pending.watch(tensors, experts)


class UncachedDemand:
    """Without a cache: all of it is read, every time.

    Args:
        reads: takes the reads.
        jobs: makes them.
        arena: where the experts go.
        load_all: read every expert of the layer, not only those that it routed to.
        poison: fill the layer's memory with what spoils every result, first.
    """

    def __init__(
        self, reads: Reads, jobs: SliceJobs, arena: Arena, *, load_all: bool, poison: bool
    ) -> None:
        self._reads = reads
        self._jobs = jobs
        self._arena = arena
        self._load_all = load_all
        self._poison = poison

    def meet(self, layer: int, experts: Sequence[int], number: int, counter: ReadCounter) -> None:
        """Begin to read ``experts``, which pass ``number`` through ``layer`` routes to."""
        tensors, pending = self._reads.layout.layers[layer], self._reads.pending
        if self._poison:
            for tensor in tensors:
                self._arena.poison(tensor)
        for tensor in tensors:
            pending.add(tensor.part, self._reads_of(tensor, experts))
        if self._load_all:
            experts = range(tensors[0].n_expert)
        counter.n_misses += len(experts)
        self._reads.submit(layer, experts, number, counter)

    def _reads_of(self, tensor: ExpertTensor, experts: Sequence[int]) -> list[Job]:
        if self._load_all:
            alignment = self._reads.reader.alignment
            return [Job(read) for read in self._arena.whole_reads(tensor, alignment)]
        return [job for expert in experts for job in self._jobs.of_slice(tensor, expert)]


class CachedDemand:
    """With one: what is in the cache is used, what is not is read into it.

    Args:
        reads: takes the reads.
        cache: where the experts are.
        passed: told of each layer that has been met (see :meth:`ReadAhead.passed`).
        seams: see :mod:`sluice.seams`.
    """

    def __init__(
        self, reads: Reads, cache: ExpertCache, passed: Callable[[int], None], seams: Seams
    ) -> None:
        self._reads = reads
        self._cache = cache
        self._passed = passed
        self._waits_for = seams.waits_for_ahead

    def meet(self, layer: int, experts: Sequence[int], number: int, counter: ReadCounter) -> None:
        """See :meth:`UncachedDemand.meet`."""
        cache, pending = self._cache, self._reads.pending
        found = cache.request(layer, experts, number)
        missing = found.missing
        awaited = [entry for entry in found.in_flight if self._waits_for(layer, entry.expert)]
        counter.n_hits += found.n_hits
        counter.n_ahead_used += found.n_ahead
        counter.n_ahead_awaited += found.n_ahead_awaited
        counter.n_misses += len(missing)
        self._passed(layer)
        evicted = cache.n_evicted
        loaded = cache.load(layer, missing, number) if missing else []
        counter.n_evicted += cache.n_evicted - evicted
        for entry in (*awaited, *loaded):
            for part, jobs in entry.jobs.items():
                pending.add(part, jobs)
        if loaded:
            self._reads.submit(layer, missing, number, counter)
        elif awaited:
            pending.submit(self._reads.orders[layer])
        if awaited:
            tensors = self._reads.layout.layers[layer]
            pending.watch(tensors, [entry.expert for entry in awaited])
