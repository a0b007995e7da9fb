"""Read-ahead: experts of layers to come, when nothing is waited for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from sluice.config import Config
from sluice.errors import RequestError
from sluice.gguf.header import Header
from sluice.llama import tensor as node
from sluice.llama.aside import Matmul, aside
from sluice.llama.embedding import NormedEmbedding, NormedRow
from sluice.streaming.ahead import ROWS_MAX, Predictor, Routed
from sluice.streaming.cache import Entry, ExpertCache
from sluice.streaming.capture import ROUTER, Capture
from sluice.streaming.lanes import Job, Lanes
from sluice.streaming.layout import ExpertLayout
from sluice.streaming.reader import SliceReader
from sluice.streaming.router import CORRECTIONS, RouterCopy, Selection
from sluice.telemetry.metrics import Metrics, ReadCounter

F32 = npt.NDArray[np.float32]
Work = Callable[[], None]


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
        # Without another thread nothing is done beside anything, and what counts or waits is not
        # for later.
        is_at_once = config.threads < 2 or config.predict_log or config.prefetch_sync
        self._aside = None if is_at_once else aside()
        self._owed: Work | None = None  # of what was left for later: this has to be done
        self._again = self._second_looks(header)
        self._residuals: dict[int, int] = {}  # by layer, what it takes: the node's address

    def begin(self, metrics: Metrics) -> None:
        """A new sequence begins; predictions are counted in its ``metrics``."""
        self._leave()  # the last one may have been broken off
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
        self.catch_up()
        self._kept_input = None
        self._residuals.clear()
        if self._embedding is None or not 0 < len(tokens) <= ROWS_MAX:
            return
        if len(tokens) == 1 and passes_by(self.first):
            return
        self._do(partial(self._start, tokens, number, counter), "MUL_MAT", now=len(tokens) > 1)

    def close(self) -> None:
        """Free what the predictors compute with."""
        self.forget()
        for normed in self._again.values():
            normed.close()
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
        if router is None:
            return False
        if layer in self._again and router.nearer is not None:
            self._residuals[layer] = router.nearer.residual(address)
        return not router.lives

    def keep_input(self) -> None:
        """The router's node is computed: copy its input."""
        inputs = _inputs(self._router_input)
        self._kept_input = inputs.copy() if isinstance(inputs, node.Rows) else inputs

    def passed(self, layer: int) -> None:
        """``layer`` has what it needs: whatever was read ahead for it is like any other now."""
        for entry in self._unused.pop(layer, ()):
            entry.is_ahead = False

    def look(
        self, layer: int, selected: Routed, number: int, counter: ReadCounter, *, now: bool
    ) -> None:
        """``layer`` has routed: predict, and read ahead.

        Args:
            layer: the layer.
            selected: the experts of each row.
            number: of this pass; what it needs is not evicted.
            counter: charged.
            now: the layer waits anyhow. Else this may be done beside its first matmul.
        """
        kept, self._kept_input = self._kept_input, None
        # The next router's node is announced before this is done, where that is later.
        look = partial(self._look, layer, selected, kept, self._router_input, number, counter)
        self._do(look, "MUL_MAT_ID", now=now or len(selected) > 1, is_owed=True)

    def catch_up(self) -> None:
        """Do what was left for later and has to be done.

        Raises:
            BaseException: whatever was raised by what was done meanwhile.
        """
        owed, self._owed = self._owed, None
        work = None if self._aside is None else self._aside.take_back()
        if work is not None and work is owed:
            work()

    def forget(self) -> None:
        """After an error: nothing is on its way any more."""
        self._leave()
        self._unused.clear()
        self._kept_input = None

    def _leave(self) -> None:
        """What was left for later is not done."""
        self._owed = None
        if self._aside is not None:
            self._aside.drop()

    def _do(self, work: Work, matmul: Matmul, *, now: bool, is_owed: bool = False) -> None:
        """Beside the next such matmul, or at once."""
        if now or self._aside is None or not self._aside.give(work, matmul):
            work()
        elif is_owed:
            self._owed = work

    def _start(self, tokens: Sequence[int], number: int, counter: ReadCounter) -> None:
        assert self._embedding is not None
        self._predictor.early(self.first, self._embedding.rows(tokens), self._top_k)
        self._read_named(self.first, self._top_k * len(tokens), number, counter)

    def _look(
        self,
        layer: int,
        selected: Routed,
        kept: node.Matrix | None,
        address: int,
        number: int,
        counter: ReadCounter,
    ) -> None:
        inputs = None
        if self._runs_routers:
            inputs = _inputs(address) if kept is None else kept
            # A router that runs before attention has rows that the last layer then drops.
            if inputs is not None and len(inputs) != len(selected):
                inputs = None
        self._predictor.saw(layer, selected, inputs)
        following = self._following.get(layer)
        if following is not None and self._config.predict_prefetch:
            looks_again = len(selected) == 1 and self._looks_again(following, number, counter)
            n = self._top_k * len(selected)
            self._read_named(following, n - n // 4 if looks_again else n, number, counter)
        for target in self._next(layer, self._config.prefetch):
            named = self._predictor.by_previous_token(target)
            self._read(target, named, len(named), number, counter)

    def _looks_again(self, layer: int, number: int, counter: ReadCounter) -> bool:
        """Whether ``layer`` is looked at once more, before its attention."""
        nearer = self._capture.routers[layer].nearer if layer in self._again else None
        if nearer is None or self._aside is None:
            return False
        look = partial(self._look_again, layer, number, counter)
        return self._aside.give(look, "MUL_MAT", after=nearer.n_matmuls)

    def _look_again(self, layer: int, number: int, counter: ReadCounter) -> None:
        residual = self._residuals.pop(layer, 0)
        inputs = _inputs(residual)  # none where the layer is passed by
        if inputs is not None and len(inputs) == 1:
            self._predictor.early(layer, self._again[layer].row(inputs), self._top_k)
            self._read_named(layer, self._top_k, number, counter)

    def _read_named(self, layer: int, n: int, number: int, counter: ReadCounter) -> None:
        """Read ahead what is not there of the ``n`` likeliest that the early router named."""
        if self._config.predict_prefetch:
            most = self._config.predict_spec_max - len(self._unused.get(layer, ()))
            named = self._predictor.by_early_router(layer)[:n]
            self._read(layer, named, max(most, 0), number, counter)

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

    def _embedded(self, header: Header) -> NormedEmbedding | None:
        """The first layer's input as far as a token alone decides it; not after dense layers."""
        norm = self._capture.routers[self.first].norm
        tables = self._capture.found.get("token_embd.weight")
        if self.first != 0 or not norm or not tables:
            return None
        return NormedEmbedding(next(iter(tables)), norm, _epsilon(header))

    def _second_looks(self, header: Header) -> dict[int, NormedRow]:
        """By layer, what makes its router's input of what the layer before gave."""
        if self._aside is None or not self._config.predict_prefetch:
            return {}
        routers = self._capture.routers
        return {
            layer: NormedRow(routers[layer].norm, _epsilon(header))
            for layer in self._following.values()
            if layer in routers and routers[layer].nearer is not None
        }

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


def _inputs(address: int) -> node.Matrix | None:
    """float32[rows, n_embd] of a node; ``None`` where the pass has no row for it.

    A last layer computes only the rows whose outputs are asked for: none of most of a prompt.
    """
    if not address:  # no router was announced
        return None
    return node.rows(address, most=ROWS_MAX)


def _epsilon(header: Header) -> float:
    return header.real("attention.layer_norm_rms_epsilon", 1e-6)
