"""The eval hook: sees the router's choice of each layer and puts those experts in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from sluice.config import Config
from sluice.errors import RequestError, SystemFault
from sluice.gguf.header import Header
from sluice.llama import tensor as node
from sluice.seams import Seams
from sluice.streaming import memory
from sluice.streaming.ahead import Predictor
from sluice.streaming.arena import Arena
from sluice.streaming.budget import cache_bytes
from sluice.streaming.cache import ExpertCache, Slot
from sluice.streaming.capture import MOE, ROUTER, ROUTING, Capture
from sluice.streaming.dense import DenseWeights, Progress
from sluice.streaming.lanes import Job, Lanes
from sluice.streaming.layout import ExpertLayout, ExpertTensor
from sluice.streaming.pages import Pages
from sluice.streaming.plan import streaming_plan
from sluice.streaming.reader import SliceReader
from sluice.streaming.router import RouterCopy, Selection
from sluice.telemetry.metrics import CacheReport, Metrics, ReadCounter

JobsByPart = dict[str, list[Job]]
F32 = npt.NDArray[np.float32]


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
        self._is_cached = bool(config.cache_mb)
        self.arena = Arena(layout, granule_bytes=reader.granule_bytes, shared=not self._is_cached)
        is_busy = config.overlap or config.prefetch or config.predict_prefetch
        self.lanes = Lanes(reader, config.io_threads, helps=not is_busy, seams=seams)
        self._stops: dict[str, tuple[int, str]] = {}
        self._later: dict[int, frozenset[str]] = {}
        self._predictor: Predictor | None = None
        self._keeps_input: frozenset[str] = frozenset()
        self._router_input = 0
        self._kept_input: F32 | None = None
        self._number = 0  # of the pass through a layer
        self._pending: JobsByPart = {}  # of this layer, to be waited for at its stops
        self._watching: list[tuple[ExpertTensor, int]] = []
        self._unused: dict[int, list[Slot]] = {}  # read ahead, by layer

    def hook(self, is_head: bool, address: int, ask: bool) -> bool:
        """The eval hook of every context: captures or streams, whichever pass this is."""
        if self._capturing:
            self._capture.see(address)
            return False
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
        """Rebind the experts of ``layers`` while ``build_only`` shows their graph.

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
        for tensor in wanted:
            for address in self._capture.found[tensor.name]:
                self._bind(tensor, address)

    def settle(self) -> None:
        """After every capture: bring the dense weights in, size the cache, find the routers.

        Raises:
            RequestError: a cache that is too small, or a router that cannot be run early.
            SystemFault: no memory, or a read failed.
        """
        config, found = self.config, self._capture.found
        if config.dense_weights == "anon":
            self.dense.own(found, self.reader, self.lanes, self._progress)
        elif config.dense_weights == "warm":
            self.dense.warm(found, self._progress)
        if self._is_cached:
            budget = cache_bytes(
                config,
                self.plan,
                available_bytes=memory.available_bytes(),
                mapped_bytes=self.dense.mapped_bytes(found),
            )
            pages = Pages(self.arena)
            self.cache = ExpertCache(
                self.layout, pages, self.lanes, self._plan_jobs, budget, self._seams
            )
        if config.overlap:
            self._stops = dict(self._capture.stops)
            for layer, part in self._stops.values():
                self._later[layer] = self._later.get(layer, frozenset()) | {part}
        if config.prefetch or config.predict_prefetch or config.predict_log:
            self._predictor = self._make_predictor()

    def resize(self, config: Config) -> None:
        """Another ``cache_mb`` from now on.

        Raises:
            RequestError: one that is too small.
        """
        assert self.cache is not None  # apply_overrides refuses it otherwise
        available = memory.available_bytes()
        if available is not None:
            available += self.cache.resident_bytes
        self.cache.resize(
            cache_bytes(
                config,
                self.plan,
                available_bytes=available,
                mapped_bytes=self.dense.mapped_bytes(self._capture.found),
            )
        )

    def begin(self, metrics: Metrics) -> None:
        """A new sequence begins, to be charged to ``metrics``."""
        self.target_counter = self.head_counter = metrics.prefill
        if self._predictor is not None:
            self._predictor.forget()
            if self.config.predict_log:
                self._predictor.counts = metrics.predictions
        if self.cache is not None:
            self.cache.report = metrics.cache = CacheReport(self.cache.budget_bytes)

    def close(self) -> None:
        """Stop the lanes; the buffers stay, for the model's tensors point into them."""
        self.lanes.close()

    @property
    def _path(self) -> str:
        return str(self._header.path)

    def _bind(self, tensor: ExpertTensor, address: int) -> None:
        shape, strides = node.shape(address), node.strides(address)
        if shape[2] != tensor.n_expert or strides[2] != tensor.slice_bytes:
            raise SystemFault(
                f"{self._path}: {tensor.name} is {shape} with slices of {strides[2]} bytes in"
                f" memory, {tensor.n_expert} of {tensor.slice_bytes} in the file"
            )
        node.rebind(address, self.arena.address(tensor))

    def _asks(self, address: int) -> bool:
        if node.name_starts_with(address, ROUTING):
            return True
        if self._predictor is not None and node.name_starts_with(address, ROUTER):
            self._router_input = node.sources(address)[1]
            return node.name(address) in self._keeps_input
        return bool(self._stops) and node.name(address) in self._stops

    def _computed(self, address: int, counter: ReadCounter) -> None:
        if node.name_starts_with(address, ROUTING):
            self._stream(address, counter)
            return
        name = node.name(address)
        stop = self._stops.get(name)
        if stop is not None:
            self._wait_for(stop[0], [stop[1]], counter)
        elif name in self._keeps_input:
            self._kept_input = self._inputs().copy()

    def _stream(self, address: int, counter: ReadCounter) -> None:
        layer = int(node.name(address).rpartition("-")[2])
        tensors = self.layout.layers.get(layer)
        if tensors is None:
            raise SystemFault(f"{self._path}: layer {layer} routes, but has no experts")
        view, flat = node.routing(address)
        selected = np.asarray(self._seams.routing(view, flat))
        experts = sorted(set(selected.ravel().tolist()))
        if experts[0] < 0 or experts[-1] >= tensors[0].n_expert:
            raise SystemFault(f"layer {layer} routed to expert {experts[-1]} (or {experts[0]})")
        self._number += 1
        self._pending = {}
        self._watching = []
        if self.cache is not None:
            self._load_cached(self.cache, layer, experts, counter)
        else:
            self._load_all_anew(tensors, experts, counter)
        order = self._capture.orders[layer]
        later = self._later.get(layer, frozenset())
        self._wait_for(layer, [part for part in order if part not in later], counter)
        if later:
            pending = (job for part in later for job in self._pending.get(part, ()))
            counter.overlapped_bytes += sum(
                job.read.needed_bytes for job in pending if not job.is_done
            )
        if self._predictor is not None:
            self._look_ahead(self._predictor, layer, selected, counter)

    def _load_all_anew(
        self, tensors: Sequence[ExpertTensor], experts: list[int], counter: ReadCounter
    ) -> None:
        alignment = self.reader.alignment
        if self.config.poison:
            for tensor in tensors:
                self.arena.poison(tensor)
        for tensor in tensors:
            if self.config.load_all:
                jobs = [Job(read) for read in self.arena.whole_reads(tensor, alignment)]
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
        awaited: list[Slot] = []
        for expert in experts:
            slot = cache.get((layer, expert))
            if slot is None:
                missing.append(expert)
                continue
            slot.needed_in = self._number
            counter.n_hits += 1
            if slot.is_in_flight() and self._seams.waits_for_ahead(layer, expert):
                awaited.append(slot)
            if slot.is_ahead:
                slot.is_ahead = False
                counter.n_ahead_used += 1
                counter.n_ahead_awaited += bool(slot.jobs)
        for slot in self._unused.pop(layer, ()):  # not asked for: now as old as it is
            slot.is_ahead = False
        counter.n_misses += len(missing)
        evicted = cache.n_evicted
        loaded = cache.load(layer, missing, self._number) if missing else []
        counter.n_evicted += cache.n_evicted - evicted
        for slot in (*awaited, *loaded):
            for part, jobs in slot.jobs.items():
                self._pending.setdefault(part, []).extend(jobs)
        for slot in awaited:
            self.lanes.hurry(job for jobs in slot.jobs.values() for job in jobs)
        if loaded:
            self._submit(tensors, missing, counter)
        self._charge_ahead(awaited)

    def _charge_ahead(self, awaited: list[Slot]) -> None:
        if self._watched:
            self._watching += [
                (tensor, slot.expert)
                for slot in awaited
                for tensor in self.layout.layers[slot.layer]
            ]

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
                        view = self.arena.slice_view(tensor, expert)
                        self._seams.slice_read(layer, part, expert, view)

    def _look_ahead(
        self,
        predictor: Predictor,
        layer: int,
        selected: npt.NDArray[np.int32],
        counter: ReadCounter,
    ) -> None:
        inputs = None
        if self._routers_run:
            inputs, self._kept_input = self._kept_input, None
            inputs = self._inputs() if inputs is None else inputs
        predictor.saw(layer, selected, inputs)
        if self.cache is None:
            return
        if self.config.predict_prefetch:
            named = predictor.by_early_router(layer + 1, selected.shape[1])
            self._read_ahead(layer + 1, named, self.config.predict_spec_max, counter)
        for ahead in range(1, self.config.prefetch + 1):
            named = predictor.by_previous_token(layer + ahead)
            self._read_ahead(layer + ahead, named, len(named), counter)

    def _read_ahead(self, layer: int, named: list[int], most: int, counter: ReadCounter) -> None:
        assert self.cache is not None
        cache, jobs, n_evicted = self.cache, [], self.cache.n_evicted
        if layer not in self.layout.layers:
            return
        for expert in [e for e in named if (layer, e) not in cache][:most]:
            slot = cache.load_ahead(layer, expert, self._number)
            if slot is None:
                break
            self._unused.setdefault(layer, []).append(slot)
            jobs += [job for part in slot.jobs.values() for job in part]
            counter.n_ahead += 1
        counter.n_evicted += cache.n_evicted - n_evicted
        if jobs:
            self.reader.check_unchanged()
            self.lanes.submit(jobs)
            n_bytes = sum(job.read.needed_bytes for job in jobs)
            counter.ahead_bytes += n_bytes
            counter.read_bytes += n_bytes
            if self.config.prefetch_sync:
                counter.stall_s += self.lanes.wait(jobs)

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
        reads = self.arena.slice_reads(tensor, expert, source, shard, self.reader.alignment)
        return [Job(read, is_ahead=is_ahead) for read in reads]

    def _settle_down(self) -> None:
        """After an error: no lane may still write into what the next pass uses."""
        self.lanes.cancel(job for jobs in self._pending.values() for job in jobs)
        self._pending = {}
        self._unused = {}
        if self.cache is not None:
            self.cache.drain()

    @property
    def _routers_run(self) -> bool:
        return self.config.predict_prefetch or self.config.predict_log

    def _inputs(self) -> F32:
        values = node.values(self._router_input)
        if values is None or values.dtype != np.float32:
            raise SystemFault(f"{self._path}: the router's input is not float32")
        return np.asarray(values, np.float32).reshape(-1, values.shape[-1])

    def _make_predictor(self) -> Predictor:
        routers: dict[int, RouterCopy] = {}
        if self._routers_run:
            selection = Selection.of(self._header)
            found = self._capture.routers
            routers = {n: self._router(n, selection) for n in found if n in self.layout.layers}
            if not routers:
                raise RequestError(
                    f"--predict-prefetch, --predict-log: {self._path} has no router of the usual"
                    " kind (ffn_moe_logits); drop the flag, or use --prefetch"
                )
            self._keeps_input = frozenset(
                f"{ROUTER.decode()}{n}" for n, router in found.items() if not router.lives
            )
        return Predictor(routers)

    def _router(self, layer: int, selection: Selection) -> RouterCopy:
        weight = node.values(self._capture.routers[layer].weight)
        if weight is None or weight.dtype != np.float32:
            raise RequestError(
                f"--predict-prefetch, --predict-log: {self._path}: the router of layer {layer} is"
                f" of type {node.type_name(self._capture.routers[layer].weight)}, and only an F32"
                " one can be run early; drop the flag, or use --prefetch"
            )
        return RouterCopy(
            np.asarray(weight, np.float32).reshape(weight.shape[-2:]),
            self._vector(f"blk.{layer}.ffn_gate_inp.bias"),
            self._vector(f"blk.{layer}.exp_probs_b.bias"),
            selection,
        )

    def _vector(self, name: str) -> F32 | None:
        addresses = self._capture.found.get(name)
        values = node.values(next(iter(addresses))) if addresses else None
        return None if values is None else np.asarray(values, np.float32).ravel()
