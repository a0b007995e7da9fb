"""The eval hook: sees the router's choice of each layer and puts those experts in place."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from sluice.config import Config
from sluice.errors import SystemFault
from sluice.gguf.header import Header
from sluice.interrupts import raise_if_pending
from sluice.llama import tensor as node
from sluice.llama.context import EvalHook
from sluice.llama.node_filter import NodeFilter
from sluice.seams import Seams, acts, replaces
from sluice.streaming import memory
from sluice.streaming.arena import Arena
from sluice.streaming.budget import cache_bytes
from sluice.streaming.cache import CacheMemory, ExpertCache
from sluice.streaming.capture import MOE, ROUTER, ROUTING, Capture, Role
from sluice.streaming.demand import CachedDemand, LayerReads, UncachedDemand
from sluice.streaming.dense import DenseWeights, Progress
from sluice.streaming.kernel_lanes import lanes_for
from sluice.streaming.late import LateExperts, late_experts
from sluice.streaming.layout import ExpertLayout
from sluice.streaming.pages import PagedMemory
from sluice.streaming.pending import Pending
from sluice.streaming.plan import streaming_plan
from sluice.streaming.readahead import ReadAhead
from sluice.streaming.reader import SliceReader
from sluice.streaming.slice_jobs import SliceJobs
from sluice.streaming.slots import slot_memory
from sluice.streaming.standin import StandIn
from sluice.streaming.whole import WholeLayers
from sluice.telemetry.metrics import CacheReport, Metrics, ReadCounter


class Streamer:
    """Streams one model's experts, for every context over it.

    Give :meth:`hook` and :attr:`shown` to each context, :meth:`capture` each context's graph once,
    then :meth:`settle`, and decode. Point :attr:`target_counter` and :attr:`head_counter` at what
    the next decode of either context should be charged to.

    Args:
        config: of the session, resolved.
        header: of the whole model.
        layout: what is streamed.
        reader: the model's files, as they were before llama.cpp opened them.
        seams: see :mod:`sluice.seams`.
        progress: called with (stage, done, total).
        is_looked_at: somebody looks at the nodes of the graph: rows are in order in each, then.
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
        is_looked_at: bool = False,
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
        self._reroutes = replaces(seams, "routing")
        self._is_looked_at = is_looked_at
        self._progress = progress
        self._capture = Capture(layout.by_name, frozenset(header.tensors))
        self._capturing = False
        self.shown = NodeFilter(MOE)
        """The nodes that :meth:`hook` has to see; it may be shown all."""
        self._place: Arena | CacheMemory  # settle() says which
        self._standin: StandIn | None = None
        self.lanes = lanes_for(config, reader, seams)
        self._n_kernel_reads = 0  # that were charged to a counter
        self._roles: dict[bytes, Role] = {}
        self._ahead: ReadAhead | None = None
        self._whole: WholeLayers | None = None
        # Of passes through a layer, and of decodes begun: what is needed, and when files are
        # looked at, is told by it.
        self._number = 0
        self._late: LateExperts | None = None
        self._pending: Pending  # settle() makes both
        self._demand: CachedDemand | UncachedDemand

    def hook(self, *, is_head: bool) -> EvalHook:
        """The eval hook of a context: captures or streams, whichever pass this is."""
        roles, is_of_experts = self._roles, node.name_test(MOE)

        def see(address: int, ask: bool) -> bool:
            if self._capturing:
                self._capture.see(address)
                return False
            standin = self._standin
            if ask and standin is not None and standin.is_expected:
                standin.give(address)  # a matmul need not have a name: a scale after it may
            if not is_of_experts(address):  # most of a graph is not
                return False
            name = node.raw_name(address)
            role = roles.get(name)
            if role is None:
                role = roles[name] = Role.of(name)
            counter = self.head_counter if is_head else self.target_counter
            try:
                if ask:
                    return self._asks(address, role, counter)
                raise_if_pending()
                self._computed(address, role, counter)
            except BaseException:
                self._settle_down()
                raise
            return True

        return see

    def begins(self, tokens: Sequence[int], _position: int, _outputs: str, _hidden: object) -> None:
        """A decode of the target is about to start (see :data:`Begins`).

        Raises:
            ReadFault: a file is no longer the one that was opened.
        """
        if self._ahead is None:
            return
        self._number += 1  # who pauses between two tokens may have changed a file
        try:
            self._ahead.begins(tokens, self._number, self.target_counter, self._passes_by)
            self._charge_kernel_reads(self.target_counter)
        except BaseException:
            self._settle_down()
            raise

    def ends(self) -> None:
        """A decode has ended: whatever was raised beside its last matmuls is raised now."""
        if self._ahead is None:
            return
        try:
            self._ahead.catch_up()
        except BaseException:
            self._settle_down()
            raise

    def capture(self, build_only: Callable[[], None], layers: Iterable[int]) -> None:
        """See the experts of ``layers`` while ``build_only`` shows their graph.

        Raises:
            SystemFault: the graph did not use an expert tensor that the file holds.
        """
        self._capturing = self.shown.is_open = True
        try:
            build_only()
        finally:
            self._capturing = self.shown.is_open = False
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
        place = self._cache_memory() if config.cache_mb else self._arena(shared=True)
        self._place = place
        jobs = SliceJobs(self.layout, self.reader, place, self._seams)
        stops = self._capture.stops if config.overlap else {}
        # Who looks at a row's experts, or changes them, wants them in order.
        if config.overlap and not self._is_looked_at and not acts(self._seams, "routing"):
            self._late = late_experts(
                self._standin, self.layout, self._capture, threads=config.threads, seams=self._seams
            )
        last = {} if self._late is None else self._late.last
        self._pending = Pending(self.lanes, self._seams, stops, place.slice_view, last)
        reads = LayerReads(self.layout, self.reader, self._pending, self._capture.orders)
        if isinstance(place, Arena):
            self._demand = UncachedDemand(
                reads, jobs, place, load_all=config.load_all, poison=config.poison
            )
        else:
            self.cache = ExpertCache(place, self.lanes, jobs.of_expert, self._seams)
            if config.cache_fill:
                self.reader.check_unchanged()
                n_experts = {n: tensors[0].n_expert for n, tensors in self.layout.layers.items()}
                self.cache.fill(n_experts, partial(self._progress, "experts"))
        if config.reads_ahead or config.predict_log:
            self._ahead = ReadAhead(
                config, self._header, self.layout, self._capture, self.cache, self.lanes,
                self.reader, top_k=self.plan.n_used,
            )  # fmt: skip
        if self.cache is not None:
            self._demand = CachedDemand(reads, self.cache, self._ahead, self._seams, self._late)
            # A seam that changes what is routed has to see all of it.
            if not acts(self._seams, "routing"):
                targets = (lambda _layer: ()) if self._ahead is None else self._ahead.targets
                self._whole = WholeLayers(
                    self.layout.layers, self.cache, self._standin, targets, self._seams
                )
        routers = [] if self._ahead is None else [ROUTER]
        self.shown.narrow([ROUTING, *routers, *map(str.encode, [*stops, *last.values()])])
        self.lanes.serve(memory_stays=self._standin is not None)

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
        self._pending.wait_for_all()

    @property
    def place(self) -> Arena | CacheMemory:
        """Where the experts stand."""
        return self._place

    @property
    def computes_late(self) -> bool:
        """Whether experts may be computed after the others of their layer."""
        return self._late is not None

    @property
    def cache_mb(self) -> int:
        """The cache's budget as a setting: never 0 where there is one."""
        return 0 if self.cache is None else max(self.cache.budget_bytes >> 20, 1)

    def begin(self, metrics: Metrics) -> None:
        """A new sequence begins, to be charged to ``metrics``."""
        self.target_counter = self.head_counter = metrics.prefill
        self._n_kernel_reads = self.lanes.n_kernel_reads
        self._pending.cancel()  # the last sequence may have been broken off before its stops
        if self._late is not None:
            self._late.forget()
        if self._ahead is not None:
            self._ahead.begin(metrics)
        if self._whole is not None:
            # Another budget, or the last sequence was broken off while a graph was being changed.
            self._whole.forget()
        if self.cache is not None:
            self.cache.report = metrics.cache = CacheReport(
                self.cache.budget_bytes, self.cache.resident_bytes
            )

    def close(self) -> None:
        """Stop the lanes; the buffers stay, for the model's tensors point into them."""
        self.lanes.close()
        # The cache refers to this object: a cycle would keep the buffers until a collection.
        if self._ahead is not None:
            self._ahead.close()
        if self._late is not None:
            self._late.close()
        self.cache = self._ahead = self._whole = self._late = None

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
            config.replace(ubatch=ubatch), self.layout, self.plan, others=self._capture.others,
            alignment=self.reader.alignment, budget_bytes=budget,
        )  # fmt: skip
        if slots is not None:
            found, top_k = self._capture.found, self.plan.n_used
            self._standin = StandIn(
                slots, self.layout, found, rows=ubatch, top_k=top_k, shown=self.shown,
                matmul=self._capture.matmul,
            )  # fmt: skip
            return slots
        arena = self._arena(shared=False)
        return PagedMemory(self.layout, arena, budget)

    def _arena(self, *, shared: bool) -> Arena:
        """One that every expert tensor is bound to."""
        arena = Arena(self.layout, self.reader.alignment, self.reader.granule_bytes, shared=shared)
        for tensor in self._capture.found_experts():
            for address in self._capture.found[tensor.name]:
                node.rebind(address, arena.address(tensor))
        return arena

    def _asks(self, address: int, role: Role, counter: ReadCounter) -> bool:
        if role.routes:
            top_k, rows = node.shape(address)[:2]
            if rows == 1 and self._passes_by(role.layer):
                counter.n_hits += top_k
                return False
            return True
        if role.is_router:
            return self._ahead is not None and self._ahead.asks(
                address, role.layer, self._passes_by
            )
        return self._pending.stops_after(role.name)

    def _passes_by(self, layer: int) -> bool:
        return self._whole is not None and layer in self._whole.passed_by

    def _computed(self, address: int, role: Role, counter: ReadCounter) -> None:
        if role.routes:
            self._stream(address, role.layer, counter)
        elif self._pending.wait_after(role.name, counter):
            if self._late is not None and self._late.completes(role.name):
                self._late.complete(address)
        elif self._ahead is not None:
            self._ahead.keep_input()
        self._charge_kernel_reads(counter)

    def _charge_kernel_reads(self, counter: ReadCounter) -> None:
        n = self.lanes.n_kernel_reads
        counter.n_kernel_reads += n - self._n_kernel_reads
        self._n_kernel_reads = n

    def _stream(self, address: int, layer: int, counter: ReadCounter) -> None:
        tensors = self.layout.layers.get(layer)
        if tensors is None:
            raise SystemFault(f"{self._path}: {node.name(address)} routes, but has no experts")
        routed = node.routed(address)
        self._pending.begin(layer)
        if not routed:
            return
        selected = self._rerouted(address) if self._reroutes else routed
        experts = sorted(set(itertools.chain.from_iterable(selected)))
        if experts[0] < 0 or experts[-1] >= tensors[0].n_expert:
            raise SystemFault(f"layer {layer} routed to expert {experts[-1]} (or {experts[0]})")
        self._number += 1
        if self._ahead is not None:
            self._ahead.catch_up()
        self.lanes.reap()
        late = self._demand.meet(layer, experts, self._number, counter, rows=len(routed))
        # All this while the lanes read what this layer waits for.
        is_whole = self._whole is not None and self._whole.check(layer, has_all=not self._pending)
        if self._late is not None and late:
            self._late.place(layer, routed[0], late)
        elif self._standin is not None and not is_whole:
            self._standin.place(layer, list(itertools.chain.from_iterable(routed)), len(routed[0]))
        if self._ahead is not None:
            waits = bool(self._pending) and not late
            self._ahead.look(layer, selected, self._number, counter, now=waits)
        self._pending.wait(layer, self._capture.orders[layer], counter)

    def _rerouted(self, address: int) -> list[list[int]]:
        view, flat = node.routing(address)
        changed = self._seams.routing(view, flat)  # an array, or something like one
        selected: list[list[int]] = np.asarray(changed).tolist()
        return selected

    def _settle_down(self) -> None:
        """After an error: no lane may still write into what the next pass uses."""
        self._pending.cancel()
        if self._late is not None:
            self._late.forget()
        if self._ahead is not None:
            self._ahead.forget()
        if self.cache is not None:
            self.cache.drain()
