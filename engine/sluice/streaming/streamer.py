"""The eval hook: sees the router's choice of each layer and puts those experts in place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from sluice.errors import SystemFault
from sluice.llama import tensor as node
from sluice.seams import Seams
from sluice.streaming.arena import Arena
from sluice.streaming.layout import ExpertLayout, ExpertTensor
from sluice.streaming.reader import Read, SliceReader
from sluice.telemetry.metrics import ReadCounter

_ROUTING = b"ffn_moe_topk-"


class Streamer:
    """Streams one model's experts, for every context over it.

    Give :meth:`hook` to each context, :meth:`capture` the context's graph once, and decode.
    Point :attr:`target_counter` and :attr:`head_counter` at what the next decode of either
    context should be charged to.

    Args:
        path: the gguf.
        layout: what is streamed.
        lanes, direct: see :class:`SliceReader`.
        load_all: read every expert of a layer (the control).
        poison: fill a layer's buffers with NaN before its slices are read (test mode).
        seams: see :mod:`sluice.seams`.
        warn: receives one-line warnings.
    """

    def __init__(
        self,
        path: Path,
        layout: ExpertLayout,
        *,
        lanes: int,
        direct: bool,
        load_all: bool,
        poison: bool,
        seams: Seams,
        warn: Callable[[str], None],
    ) -> None:
        self.layout = layout
        self.arena = Arena(layout)
        self.reader = SliceReader(path, lanes=lanes, direct=direct, warn=warn)
        self.target_counter = ReadCounter()
        self.head_counter = ReadCounter()
        self._load_all = load_all
        self._poison = poison
        self._seams = seams
        self._watched = type(seams).slice_read is not Seams.slice_read
        self._by_name = layout.by_name
        self._captured: set[str] = set()
        self._capturing = False
        self._planned: dict[tuple[str, int, int, int], Read] = {}

    def hook(self, is_head: bool, address: int, ask: bool) -> bool:
        """The eval hook of every context: captures or streams, whichever pass this is."""
        if self._capturing:
            self._capture(address)
            return False
        if ask:
            return node.name_starts_with(address, _ROUTING)
        self._stream(address, self.head_counter if is_head else self.target_counter)
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
        wanted = {t.name for layer in layers for t in self.layout.layers[layer]}
        missed = sorted(wanted - self._captured)
        if missed:
            raise SystemFault(
                f"{self.reader.path}: {missed[0]} is not used by the graph that llama.cpp built"
                f" ({len(missed)} of {len(wanted)} expert tensors missed); it would stay resident"
            )

    def close(self) -> None:
        """Stop the lanes; the buffers stay, for the model's tensors point into them."""
        self.reader.close()

    def _capture(self, address: int) -> None:
        for source in node.sources(address):
            tensor = self._by_name.get(node.name(source))
            if tensor is None or tensor.name in self._captured:
                continue
            shape, strides = node.shape(source), node.strides(source)
            if shape[2] != tensor.n_expert or strides[2] != tensor.slice_bytes:
                raise SystemFault(
                    f"{self.reader.path}: {tensor.name} is {shape} with slices of {strides[2]}"
                    f" bytes in memory, {tensor.n_expert} of {tensor.slice_bytes} in the file"
                )
            node.rebind(source, self.arena.address(tensor))
            self._captured.add(tensor.name)

    def _stream(self, address: int, counter: ReadCounter) -> None:
        layer = int(node.name(address).rpartition("-")[2])
        tensors = self.layout.layers.get(layer)
        if tensors is None:
            raise SystemFault(f"{self.reader.path}: layer {layer} routes, but has no experts")
        view, flat = node.routing(address)
        selected = self._seams.routing(view, flat)
        experts = np.unique(np.asarray(selected))
        if experts[0] < 0 or experts[-1] >= tensors[0].n_expert:
            raise SystemFault(f"layer {layer} routed to expert {experts[-1]} (or {experts[0]})")
        if self._poison:
            for tensor in tensors:
                self.arena.poison(tensor)
        if self._load_all:
            experts = np.arange(tensors[0].n_expert)
        self._read(tensors, [int(e) for e in experts], counter)

    def _read(
        self, tensors: tuple[ExpertTensor, ...], experts: list[int], counter: ReadCounter
    ) -> None:
        reads = [read for tensor in tensors for read in self._plan(tensor, experts)]
        began = time.perf_counter()
        counter.read_bytes += self.reader.read(reads)
        counter.stall_s += time.perf_counter() - began
        counter.slice_bytes += sum(t.slice_bytes for t in tensors) * len(experts)
        counter.n_slices += len(tensors) * len(experts)
        if not self._watched:
            return
        for tensor in tensors:
            for expert in experts:
                view = self.arena.slice_view(tensor, expert)
                self._seams.slice_read(tensor.layer, tensor.part, expert, view)

    def _plan(self, tensor: ExpertTensor, experts: list[int]) -> list[Read]:
        alignment = self.reader.alignment
        if self._load_all:
            return self.arena.whole_reads(tensor, alignment)
        reads = []
        for expert in experts:
            source = self._seams.slice_source(tensor.layer, tensor.part, expert, tensor.n_expert)
            if source is None:
                continue
            key = (tensor.name, expert, source, alignment)
            if key not in self._planned:
                self._planned[key] = self.arena.slice_read(tensor, expert, source, alignment)
            reads.append(self._planned[key])
        return reads
