"""The eval hook: sees the router's choice of each layer and puts those experts in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from sluice.config import Config
from sluice.errors import SystemFault
from sluice.gguf.header import Header
from sluice.llama import tensor as node
from sluice.seams import Seams
from sluice.streaming import memory
from sluice.streaming.architectures import router_layer
from sluice.streaming.arena import Arena
from sluice.streaming.budget import cache_bytes
from sluice.streaming.cache import CacheMemory, Entry, ExpertCache
from sluice.streaming.capture import MOE, ROUTER, ROUTING, Capture
from sluice.streaming.dense import DenseWeights, Progress
from sluice.streaming.lanes import Job, Lanes
from sluice.streaming.layout import ExpertLayout, ExpertTensor
from sluice.streaming.pages import PagedMemory
from sluice.streaming.plan import streaming_plan
from sluice.streaming.readahead import ReadAhead
from sluice.streaming.reader import SliceReader
from sluice.streaming.slots import slot_memory
from sluice.streaming.standin import StandIn
from sluice.telemetry.metrics import CacheReport, Metrics, ReadCounter

JobsByPart = dict[str, list[Job]]
I32 = npt.NDArray[np.int32]


class Streamer:
    """Streams one model's experts, for every context over it.

    Give :meth:`hook` to each context, :meth:`capture` each context's graph once, then
    :meth:`settle`, and decode. Point :attr:`target_counter` and :attr:`head_counter` at what the
    next decode of either context should be charged to.

    Args:
        config: of the session, resolved.
        header: of the whole model.
        layout: what is streamed.
        reader: the model's files, as they were before llama.cpp opened them.
        seams: see :mod:`sluice.seams`.
        progress: called with (stage, done, total).
    """

    def __init__(
        self,
        config: Config,
        header: Header,
        layout: ExpertLayout,
        *,
        reader: SliceReader,
        seams: Seams,
        progress: Progress,
    ) -> None:
        self.config = config
        self.layout = layout
        self.reader = reader
        self.plan = streaming_plan(header, layout)
        self.dense = DenseWeights(header, layout.by_name)
        self.cache: ExpertCache | None = None
        self.target_counter = ReadCounter()
        self.head_counter = ReadCounter()
        self._header = header
        self._seams = seams
        self._progress = progress
        self._watched = type(seams).slice_read is not Seams.slice_read
        self._capture = Capture(layout.by_name, frozenset(header.tensors))
        self._capturing = False
        self._place: Arena | CacheMemory  # settle() says which
        self._standin: StandIn | None = None
        is_busy = config.overlap or config.prefetch or config.predict_prefetch
        self.lanes = Lanes(reader, config.io_threads, helps=not is_busy, seams=seams)
        self._stops: dict[str, tuple[int, str]] = {}
        self._later: dict[int, frozenset[str]] = {}
        self._ahead: ReadAhead | None = None
        self._number = 0  # of the pass through a layer
        self._pending: JobsByPart = {}  # of this layer, to be waited for at its stops
        self._watching: list[tuple[ExpertTensor, int]] = []

    def hook(self, is_head: bool, address: int, ask: bool) -> bool:
        """The eval hook of every context: captures or streams, whichever pass this is."""
        if self._capturing:
            self._capture.see(address)
            return False
        if ask and self._standin is not None and self._standin.is_expected:
            self._standin.give(address)
        if not node.name_starts_with(address, MOE):
            return False
        if ask:
            return self._asks(address)
        counter = self.head_counter if is_head else self.target_counter
        try:
            self._computed(address, counter)
        except BaseException:
            self._settle_down()
            raise
        return True

    def capture(self, build_only: Callable[[], None], layers: Iterable[int]) -> None:
        """See the experts of ``layers`` while ``build_only`` shows their graph.

        Raises:
            SystemFault: the graph did not use an expert tensor that the file holds.
        """
        self._capturing = True
        try:
            build_only()
        finally:
            self._capturing = False
        wanted = [t for layer in layers for t in self.layout.layers[layer]]
        missed = sorted(t.name for t in wanted if t.name not in self._capture.found)
        if missed:
            raise SystemFault(
                f"{self._path}: {missed[0]} is not used by the graph that llama.cpp built"
                f" ({len(missed)} of {len(wanted)} expert tensors missed); it would stay resident"
            )

    def settle(self) -> None:
        """After every capture: bring the dense weights in, make room for experts, find routers.

        Raises:
            RequestError: a cache that is too small, or a router that cannot be run early.
            SystemFault: no memory, or a read failed.
        """
        config, found = self.config, self._capture.found
        self._capture.check_sizes(self._path)
        if config.dense_weights == "anon":
            self.dense.own(found, self.reader, self.lanes, self._progress)
        elif config.dense_weights == "warm":
            self.dense.warm(found, self._progress)
        if config.cache_mb:
            self._place = self._cache_memory()
            self.cache = ExpertCache(self._place, self.lanes, self._plan_jobs, self._seams)
        else:
            self._place = Arena(self.layout, granule_bytes=self.reader.granule_bytes, shared=True)
            self._bind(self._place)
        if config.overlap:
            self._stops = dict(self._capture.stops)
            for layer, part in self._stops.values():
                self._later[layer] = self._later.get(layer, frozenset()) | {part}
        if config.prefetch or config.predict_prefetch or config.predict_log:
            self._ahead = ReadAhead(
                config,
                self._header,
                self.layout,
                self._capture,
                self.cache,
                self.lanes,
                self.reader,
            )

    def resize(self, config: Config) -> None:
        """Another ``cache_mb`` from now on.

        Raises:
            RequestError: one that is too small.
        """
        assert self.cache is not None  # apply_overrides refuses it otherwise
        budget = self._budget_bytes(config, self.cache.resident_bytes)
        if self._standin is not None and not config.force_cache:
            self._standin.memory.check_budget(budget)
        self.cache.report = CacheReport(self.cache.budget_bytes)  # the last one has ended
        self.cache.resize(budget)

    def await_reads(self) -> None:
        """Wait for what the layer that has just routed needs; its matmuls would only then."""
        self.lanes.wait([job for jobs in self._pending.values() for job in jobs])

    @property
    def place(self) -> Arena | CacheMemory:
        """Where the experts stand."""
        return self._place

    @property
    def cache_mb(self) -> int:
        """The cache's budget as a setting: never 0 where there is one."""
        return 0 if self.cache is None else max(self.cache.budget_bytes >> 20, 1)

    def begin(self, metrics: Metrics) -> None:
        """A new sequence begins, to be charged to ``metrics``."""
        self.target_counter = self.head_counter = metrics.prefill
        if self._ahead is not None:
            self._ahead.begin(metrics)
        if self.cache is not None:
            self.cache.report = metrics.cache = CacheReport(
                self.cache.budget_bytes, self.cache.resident_bytes
            )

    def close(self) -> None:
        """Stop the lanes; the buffers stay, for the model's tensors point into them."""
        self.lanes.close()
        # The cache refers to this object: a cycle would keep the buffers until a collection.
        self.cache = self._ahead = None

    @property
    def _path(self) -> str:
        return str(self._header.path)

    def _budget_bytes(self, config: Config, resident_bytes: int) -> int:
        available = memory.available_bytes()
        return cache_bytes(
            config,
            self.plan,
            available_bytes=None if available is None else available + resident_bytes,
            mapped_bytes=self.dense.mapped_bytes(self._capture.found),
        )

    def _cache_memory(self) -> CacheMemory:
        config = self.config
        budget = self._budget_bytes(config, 0)
        ubatch = min(config.ubatch, config.ctx)
        slots = slot_memory(
            config.replace(ubatch=ubatch),
            self.layout,
            self.plan,
            others=self._capture.others,
            alignment=self.reader.alignment,
            budget_bytes=budget,
        )
        if slots is not None:
            found, top_k = self._capture.found, self.plan.n_used
            self._standin = StandIn(slots, self.layout, found, rows=ubatch, top_k=top_k)
            return slots
        arena = Arena(self.layout, granule_bytes=self.reader.granule_bytes, shared=False)
        self._bind(arena)
        return PagedMemory(self.layout, arena, budget)

    def _bind(self, arena: Arena) -> None:
        for tensor in self._capture.found_experts():
            for address in self._capture.found[tensor.name]:
                node.rebind(address, arena.address(tensor))

    def _asks(self, address: int) -> bool:
        if node.name_starts_with(address, ROUTING):
            return router_layer(node.name(address)) is not None
        if self._ahead is not None and node.name_starts_with(address, ROUTER):
            return self._ahead.asks(address)
        stop = self._stops.get(node.name(address)) if self._pending else None
        return stop is not None and self._is_awaited(stop[1])

    def _is_awaited(self, part: str) -> bool:
        """Whether compute has to stop before ``part`` is used: every stop costs a start."""
        jobs = self._pending.get(part, ())
        return self._watched or any(job.error is not None or not job.is_done for job in jobs)

    def _computed(self, address: int, counter: ReadCounter) -> None:
        if node.name_starts_with(address, ROUTING):
            self._stream(address, counter)
            return
        stop = self._stops.get(node.name(address))
        if stop is not None:
            self._wait_for(stop[0], [stop[1]], counter)
        elif self._ahead is not None:
            self._ahead.keep_input()

    def _stream(self, address: int, counter: ReadCounter) -> None:
        layer = router_layer(node.name(address))
        tensors = self.layout.layers.get(-1 if layer is None else layer)
        if layer is None or tensors is None:
            raise SystemFault(f"{self._path}: {node.name(address)} routes, but has no experts")
        view, flat = node.routing(address)
        self._pending, self._watching = {}, []
        if not len(view):
            return
        selected = np.asarray(self._seams.routing(view, flat))
        experts = sorted(set(selected.ravel().tolist()))
        if experts[0] < 0 or experts[-1] >= tensors[0].n_expert:
            raise SystemFault(f"layer {layer} routed to expert {experts[-1]} (or {experts[0]})")
        self._number += 1
        if self.cache is not None:
            self._load_cached(self.cache, layer, experts, counter)
        else:
            self._load_all_anew(tensors, experts, counter)
        # All this while the lanes read what this layer waits for.
        if self._standin is not None:
            self._standin.place(layer, view)
        if self._ahead is not None:
            self._ahead.look(layer, selected, self._number, counter)
        order = self._capture.orders[layer]
        later = self._later.get(layer, frozenset())
        self._wait_for(layer, [part for part in order if part not in later], counter)
        if later:
            # What was read ahead is not of the bytes that were asked for here.
            jobs = (j for part in later for j in self._pending.get(part, ()) if not j.is_ahead)
            counter.overlapped_bytes += sum(j.read.needed_bytes for j in jobs)

    def _load_all_anew(
        self, tensors: Sequence[ExpertTensor], experts: list[int], counter: ReadCounter
    ) -> None:
        alignment = self.reader.alignment
        arena = self._place
        assert isinstance(arena, Arena)
        if self.config.poison:
            for tensor in tensors:
                arena.poison(tensor)
        for tensor in tensors:
            if self.config.load_all:
                jobs = [Job(read) for read in arena.whole_reads(tensor, alignment)]
            else:
                jobs = [job for e in experts for job in self._slice_jobs(tensor, e, is_ahead=False)]
            self._pending[tensor.part] = jobs
        if self.config.load_all:
            experts = list(range(tensors[0].n_expert))
        counter.n_misses += len(experts)
        self._submit(tensors, experts, counter)

    def _load_cached(
        self, cache: ExpertCache, layer: int, experts: list[int], counter: ReadCounter
    ) -> None:
        tensors = self.layout.layers[layer]
        missing: list[int] = []
        awaited: list[Entry] = []
        for expert in experts:
            entry = cache.get((layer, expert))
            if entry is None:
                missing.append(expert)
                continue
            entry.needed_in = self._number
            counter.n_hits += 1
            if entry.is_in_flight() and self._seams.waits_for_ahead(layer, expert):
                awaited.append(entry)
            if entry.is_ahead:
                entry.is_ahead = False
                counter.n_ahead_used += 1
                counter.n_ahead_awaited += bool(entry.jobs)
        if self._ahead is not None:
            self._ahead.passed(layer)
        counter.n_misses += len(missing)
        evicted = cache.n_evicted
        loaded = cache.load(layer, missing, self._number) if missing else []
        counter.n_evicted += cache.n_evicted - evicted
        for entry in (*awaited, *loaded):
            for part, jobs in entry.jobs.items():
                self._pending.setdefault(part, []).extend(jobs)
        for entry in awaited:
            self.lanes.hurry(job for jobs in entry.jobs.values() for job in jobs)
        if loaded:
            self._submit(tensors, missing, counter)
        if self._watched:
            self._watching += [(tensor, entry.expert) for entry in awaited for tensor in tensors]

    def _submit(
        self, tensors: Sequence[ExpertTensor], experts: list[int], counter: ReadCounter
    ) -> None:
        """Queue what is pending and new, the part that is needed first before the others."""
        self.reader.check_unchanged()
        order = self._capture.orders[tensors[0].layer]
        jobs = [job for part in order for job in self._pending.get(part, ()) if not job.is_ahead]
        self.lanes.submit(jobs)
        counter.read_bytes += sum(job.read.needed_bytes for job in jobs)
        counter.slice_bytes += sum(t.slice_bytes for t in tensors) * len(experts)
        counter.n_slices += len(tensors) * len(experts)
        if self._watched:
            self._watching += [(tensor, expert) for tensor in tensors for expert in experts]

    def _wait_for(self, layer: int, parts: Iterable[str], counter: ReadCounter) -> None:
        for part in parts:
            jobs = self._pending.pop(part, None)
            if jobs and self._seams.waits(layer, part):
                counter.stall_s += self.lanes.wait(jobs)
            if self._watched:
                for tensor, expert in self._watching:
                    if tensor.part == part:
                        view = self._place.slice_view(tensor, expert)
                        self._seams.slice_read(layer, part, expert, view)

    def _plan_jobs(self, layer: int, expert: int, is_ahead: bool) -> JobsByPart:
        return {
            tensor.part: self._slice_jobs(tensor, expert, is_ahead=is_ahead)
            for tensor in self.layout.layers[layer]
        }

    def _slice_jobs(self, tensor: ExpertTensor, expert: int, *, is_ahead: bool) -> list[Job]:
        seams = self._seams
        source = seams.slice_source(tensor.layer, tensor.part, expert, tensor.n_expert)
        if source is None:
            return []
        shard = seams.slice_shard(tensor.shard, len(self.reader.paths))
        reads = self._place.slice_reads(tensor, expert, source, shard, self.reader.alignment)
        return [Job(read, is_ahead=is_ahead) for read in reads]

    def _settle_down(self) -> None:
        """After an error: no lane may still write into what the next pass uses."""
        self.lanes.cancel(job for jobs in self._pending.values() for job in jobs)
        self._pending = {}
        if self._ahead is not None:
            self._ahead.forget()
        if self.cache is not None:
            self.cache.drain()
