"""What a layer that has routed needs: counted where it is here, read where it is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from sluice.seams import Seams
from sluice.streaming.arena import Arena
from sluice.streaming.cache import ExpertCache
from sluice.streaming.lanes import Job
from sluice.streaming.late import LateExperts
from sluice.streaming.layout import ExpertLayout, ExpertTensor
from sluice.streaming.pending import Pending
from sluice.streaming.readahead import ReadAhead
from sluice.streaming.reader import SliceReader
from sluice.streaming.slice_jobs import SliceJobs
from sluice.telemetry.metrics import ReadCounter


@dataclass(slots=True)
class LayerReads:
    """Hands the reads of a layer's pass over to ``pending``, and charges them.

    ``orders`` are each layer's parts as their matmuls come.
    """

    layout: ExpertLayout
    reader: SliceReader
    pending: Pending
    orders: Mapping[int, Sequence[str]]

    def submit(self, layer: int, experts: Sequence[int], number: int, counter: ReadCounter) -> None:
        """Queue what ``pending`` was given for ``experts``, and charge it to ``counter``.

        Args:
            layer: that was routed to.
            experts: that are read.
            number: of the pass: files are looked at once in each.
            counter: charged.

        Raises:
            ReadFault: a file is no longer the one that was opened.
        """
        tensors = self.layout.layers[layer]
        self.reader.check_unchanged(number)
        jobs = self.pending.submit(self.orders[layer])
        counter.read_bytes += sum(job.read.needed_bytes for job in jobs)
        counter.slice_bytes += sum(t.slice_bytes for t in tensors) * len(experts)
        counter.n_slices += len(tensors) * len(experts)
        self.watch(layer, experts)

    def hurry(self, layer: int) -> None:
        """Somebody waits now for what ``pending`` was given of what was read ahead."""
        self.pending.submit(self.orders[layer])

    def watch(self, layer: int, experts: Sequence[int]) -> None:
        """See :meth:`Pending.watch`."""
        self.pending.watch(self.layout.layers[layer], experts)


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
        self, reads: LayerReads, jobs: SliceJobs, arena: Arena, *, load_all: bool, poison: bool
    ) -> None:
        self._reads = reads
        self._jobs = jobs
        self._arena = arena
        self._load_all = load_all
        self._poison = poison

    def meet(
        self, layer: int, experts: Sequence[int], number: int, counter: ReadCounter, *, rows: int
    ) -> Set[int]:
        """Begin to read ``experts``, which ``rows`` of pass ``number`` through ``layer`` route to.

        Returns:
            Those that are computed after the others; the layer does not wait for them.

        Raises:
            ReadFault: a file is no longer the one that was opened.
        """
        del rows  # all are waited for
        tensors = self._reads.layout.layers[layer]
        if self._poison:
            for tensor in tensors:
                self._arena.poison(tensor)
        if self._load_all:
            experts = range(tensors[0].n_expert)
        for tensor in tensors:
            self._reads.pending.add(tensor.part, self._jobs_of(tensor, experts))
        counter.n_misses += len(experts)
        self._reads.submit(layer, experts, number, counter)
        return frozenset()

    def _jobs_of(self, tensor: ExpertTensor, experts: Sequence[int]) -> list[Job]:
        if self._load_all:  # in longer reads than slices
            alignment = self._reads.reader.alignment
            return [Job(read) for read in self._arena.whole_reads(tensor, alignment)]
        return [job for expert in experts for job in self._jobs.of_slice(tensor, expert)]


class CachedDemand:
    """With a cache: what is in it is used, what is not is read into it.

    Args:
        reads: takes the reads.
        cache: where the experts are.
        ahead: what reads ahead; told of each layer that has been met.
        late: what computes later what is read later, where there is such a thing.
        seams: see :mod:`sluice.seams`.
    """

    def __init__(
        self,
        reads: LayerReads,
        cache: ExpertCache,
        ahead: ReadAhead | None,
        seams: Seams,
        late: LateExperts | None = None,
    ) -> None:
        self._reads = reads
        self._cache = cache
        self._ahead = ahead
        self._late = late
        self._waits_for = seams.waits_for_ahead

    def meet(
        self, layer: int, experts: Sequence[int], number: int, counter: ReadCounter, *, rows: int
    ) -> Set[int]:
        """See :meth:`UncachedDemand.meet`."""
        cache, reads = self._cache, self._reads
        found = cache.request(layer, experts, number)
        missing = found.missing
        awaited = [entry for entry in found.in_flight if self._waits_for(layer, entry.expert)]
        counter.n_hits += found.n_hits
        counter.n_ahead_used += found.n_ahead
        counter.n_ahead_awaited += found.n_ahead_awaited
        counter.n_misses += len(missing)
        if self._ahead is not None:
            self._ahead.passed(layer)
        evicted = cache.n_evicted
        loaded = cache.load(layer, missing, number) if missing else []
        counter.n_evicted += cache.n_evicted - evicted
        entries = (*awaited, *loaded)
        for entry in entries:
            for part, jobs in entry.jobs.items():
                reads.pending.add(part, jobs)
        late = self._late
        if rows == 1 and late is not None and late.takes(layer, len(entries), len(experts)):
            reads.pending.begin_late()
        if loaded:
            reads.submit(layer, missing, number, counter)
        elif awaited:
            reads.hurry(layer)
        reads.watch(layer, [entry.expert for entry in awaited])
        if not reads.pending.is_late:
            return frozenset()
        counter.n_late += len(entries)
        return {entry.expert for entry in entries}
