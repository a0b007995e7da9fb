"""Read-ahead: experts of layers to come, when nothing is waited for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from sluice.config import Config
from sluice.errors import RequestError
from sluice.gguf.header import Header
from sluice.llama import tensor as node
from sluice.llama.embedding import NormedEmbedding
from sluice.streaming.ahead import ROWS_MAX, Predictor, Routed
from sluice.streaming.cache import Entry, ExpertCache
from sluice.streaming.capture import ROUTER, Capture
from sluice.streaming.lanes import Job, Lanes
from sluice.streaming.layout import ExpertLayout
from sluice.streaming.reader import SliceReader
from sluice.streaming.router import CORRECTIONS, RouterCopy, Selection
from sluice.telemetry.metrics import Metrics, ReadCounter

F32 = npt.NDArray[np.float32]


class ReadAhead:
    """Predicts, reads into the cache, and counts how often the predictions are right.

    Args:
        config: of the session; ``prefetch``, ``predict_prefetch`` and ``predict_log`` say what.
        header, layout, capture: of the model, after every capture.
        cache: where it reads to; without one predictions are only counted.
        lanes, reader: what reads.
        top_k: experts of one token in a layer.

    Raises:
        RequestError: a router that cannot be run early.
    """

    def __init__(
        self,
        config: Config,
        header: Header,
        layout: ExpertLayout,
        capture: Capture,
        cache: ExpertCache | None,
        lanes: Lanes,
        reader: SliceReader,
        *,
        top_k: int,
    ) -> None:
        self._config = config
        self._path = header.path
        self._capture = capture
        self._cache = cache
        self._lanes = lanes
        self._reader = reader
        self._runs_routers = config.predict_prefetch or config.predict_log
        trunk = [layer for layer in layout.layers if layer < layout.n_trunk]
        self._following = dict(itertools.pairwise(trunk))
        routers = self._routers(header, layout) if self._runs_routers else {}
        self._predictor = Predictor(routers, self._following)
        self.first = trunk[0] if trunk else -1
        """The first layer that routes."""
        self._top_k = top_k
        self._embedding = self._embedded(header) if self.first in routers else None
        self._router_input = 0  # address of the node that the router about to run takes
        self._kept_input: node.Matrix | None = None
        self._unused: dict[int, list[Entry]] = {}  # by layer

    def begin(self, metrics: Metrics) -> None:
        """A new sequence begins; predictions are counted in its ``metrics``."""
        self._predictor.forget()
        if self._config.predict_log:
            self._predictor.counts = metrics.predictions

    def begins(
        self,
        tokens: Sequence[int],
        number: int,
        counter: ReadCounter,
        passes_by: Callable[[int], bool],
    ) -> None:
        """A pass over ``tokens`` is about to start: predict its first layer by what they are."""
        self._kept_input = None
        if self._embedding is None or not 0 < len(tokens) <= ROWS_MAX:
            return
        if len(tokens) == 1 and passes_by(self.first):
            return
        first = self.first
        self._predictor.early(first, self._embedding.rows(tokens), self._top_k)
        if self._config.predict_prefetch:
            named = self._predictor.by_early_router(first)
            self._read(first, named, self._config.predict_spec_max, number, counter)

    def close(self) -> None:
        """Free what the predictors compute with."""
        self._predictor.close()
        if self._embedding is not None:
            self._embedding.close()

    def targets(self, layer: int) -> list[int] | None:
        """The layers that :meth:`look` reads ahead for; ``None`` where it counts as well."""
        if self._config.predict_log:
            return None
        return self._next(layer, max(self._config.prefetch, self._config.predict_prefetch))

    def asks(self, address: int, layer: int, passes_by: Callable[[int], bool]) -> bool:
        """A router's node is announced; whether to stop after it, for its input will not last.

        Not in a pass of one row through a layer that ``passes_by`` names.
        """
        if not self._runs_routers or (node.shape(address)[1] == 1 and passes_by(layer)):
            return False
        self._router_input = node.source(address, 1)
        router = self._capture.routers.get(layer)
        return router is not None and not router.lives

    def keep_input(self) -> None:
        """The router's node is computed: copy its input."""
        inputs = self._inputs()
        self._kept_input = inputs.copy() if isinstance(inputs, node.Rows) else inputs

    def passed(self, layer: int) -> None:
        """``layer`` has what it needs: whatever was read ahead for it is like any other now."""
        for entry in self._unused.pop(layer, ()):
            entry.is_ahead = False

    def look(self, layer: int, selected: Routed, number: int, counter: ReadCounter) -> None:
        """``layer`` has routed: predict, and read ahead.

        Args:
            layer: the layer.
            selected: the experts of each row.
            number: of this pass; what it needs is not evicted.
            counter: charged.
        """
        inputs = None
        if self._runs_routers:
            inputs, self._kept_input = self._kept_input, None
            inputs = self._inputs() if inputs is None else inputs
            # A router that runs before attention has rows that the last layer then drops.
            if inputs is not None and len(inputs) != len(selected):
                inputs = None
        self._predictor.saw(layer, selected, inputs)
        config = self._config
        following = self._following.get(layer)
        if config.predict_prefetch and following is not None:
            named = self._predictor.by_early_router(following)
            self._read(following, named, config.predict_spec_max, number, counter)
        for target in self._next(layer, config.prefetch):
            named = self._predictor.by_previous_token(target)
            self._read(target, named, len(named), number, counter)

    def forget(self) -> None:
        """After an error: nothing is on its way any more."""
        self._unused.clear()
        self._kept_input = None

    def _next(self, layer: int, n: int) -> list[int]:
        """The ``n`` layers after ``layer`` that route, or as many as there are."""
        found: list[int] = []
        while len(found) < n and layer in self._following:
            layer = self._following[layer]
            found.append(layer)
        return found

    def _read(
        self, layer: int, named: list[int], most: int, number: int, counter: ReadCounter
    ) -> None:
        cache = self._cache
        if cache is None:
            return
        jobs: list[Job] = []
        n_evicted = cache.n_evicted
        for expert in cache.absent(layer, named)[:most]:
            entry = cache.load_ahead(layer, expert, number)
            if entry is None:
                break
            self._unused.setdefault(layer, []).append(entry)
            jobs += entry.all_jobs()
            counter.n_ahead += 1
        counter.n_evicted += cache.n_evicted - n_evicted
        if not jobs:
            return
        self._reader.check_unchanged(number)
        self._lanes.submit(jobs)
        n_bytes = sum(job.read.needed_bytes for job in jobs)
        counter.ahead_bytes += n_bytes
        counter.read_bytes += n_bytes
        if self._config.prefetch_sync:
            counter.stall_s += self._lanes.wait(jobs)

    def _inputs(self) -> node.Matrix | None:
        """float32[rows, n_embd] that the router takes; ``None`` where the pass has no row for it.

        A last layer computes only the rows whose outputs are asked for: none of most of a prompt.
        """
        if not self._router_input:  # no router was announced
            return None
        return node.rows(self._router_input, most=ROWS_MAX)

    def _embedded(self, header: Header) -> NormedEmbedding | None:
        """The first layer's input as far as a token alone decides it; not after dense layers."""
        norm = self._capture.routers[self.first].norm
        tables = self._capture.found.get("token_embd.weight")
        if self.first != 0 or not norm or not tables:
            return None
        epsilon = header.real("attention.layer_norm_rms_epsilon", 1e-6)
        return NormedEmbedding(next(iter(tables)), norm, epsilon)

    def _routers(self, header: Header, layout: ExpertLayout) -> dict[int, RouterCopy]:
        selection = Selection.of(header)
        found = [layer for layer in self._capture.routers if layer in layout.layers]
        if not found:
            raise RequestError(
                f"--predict-prefetch, --predict-log: {self._path} has no router of the usual kind"
                f" ({ROUTER.decode()}N); drop the flag, or use --prefetch"
            )
        return {layer: self._router(layer, selection) for layer in found}

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
            self._correction(layer),
            selection,
        )

    def _correction(self, layer: int) -> F32 | None:
        named = (self._vector(f"blk.{layer}.{ending}") for ending in CORRECTIONS)
        return next((vector for vector in named if vector is not None), None)

    def _vector(self, name: str) -> F32 | None:
        addresses = self._capture.found.get(name)
        values = node.values(next(iter(addresses))) if addresses else None
        return None if values is None else np.asarray(values, np.float32).ravel()
