"""The capture pass: which tensors a graph reads its weights from, and where it can be stopped."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.errors import SystemFault
from sluice.llama import tensor as node
from sluice.streaming.architectures import router_layer
from sluice.streaming.layout import ExpertTensor

ROUTING = b"ffn_moe_topk-"
ROUTER = b"ffn_moe_logits-"
MOE = b"ffn_moe_"
"""How the names of the expert path's nodes begin (``llm_graph_context::build_moe_ffn``).

8 bytes: see :func:`sluice.llama.tensor.name_test`.
"""

MATMUL = "MUL_MAT_ID"
"""The operation that multiplies by the weights of the experts that ids name."""


_LOGITS = re.compile(rf"{ROUTER.decode()}(\d+)")


def logits_layer(name: str) -> int | None:
    """The layer whose router computes the graph node ``name``; ``None`` for another node.

    The whole name counts: a view of the logits has their name and a word after it.
    """
    match = _LOGITS.fullmatch(name)
    return int(match[1]) if match else None


@dataclass(frozen=True, slots=True)
class Role:
    """What a node of the expert path is to the eval hook, by its name.

    ``layer`` is -1 but where it ``routes`` or ``is_router``.
    """

    name: str
    layer: int
    routes: bool
    is_router: bool

    @classmethod
    def of(cls, raw_name: bytes) -> Role:
        """As :func:`node.raw_name` gives it."""
        name = raw_name.decode("ascii", "replace")
        routed, logits = router_layer(name), logits_layer(name)
        layer = routed if routed is not None else logits
        return cls(name, -1 if layer is None else layer, routed is not None, logits is not None)


@dataclass(slots=True)
class Router:
    """One layer's router: its weight's address, and the name of the node that it takes.

    ``lives`` says that the input is still there when the choice is made: the experts' matmuls
    take it, too. ``norm`` is the address of the weight of the norm that the input comes from, 0
    where it is not of the usual kind; ``nearer`` is ``None`` there.
    """

    weight: int
    input_name: str
    norm: int = 0
    lives: bool = False
    nearer: Nearer | None = None


@dataclass(frozen=True, slots=True)
class Nearer:
    """How a router's input comes about: the norm of what the layer before gave, and attention.

    Attention begins after the ``n_matmuls``-th ``MUL_MAT`` from the choice of the layer before on.
    What that layer gave is then there: source ``index`` of the sum that the norm takes.
    """

    n_matmuls: int
    index: int

    def residual(self, logits: int) -> int:
        """The node that the layer before gave, from a router's own node."""
        return node.source(_sum(node.source(logits, 1)), self.index)


@dataclass(frozen=True, slots=True)
class Chain:
    """A layer's experts where they are ``down(glu(gate(x), up(x)))``, ``x`` being the router's.

    ``parts`` are gate, up and down, ``glu`` is a ``ggml_glu_op``, ``last`` the name of the node
    that multiplies by down.
    """

    parts: tuple[str, str, str]
    glu: int
    last: str


@dataclass(slots=True)
class Capture:
    """Fill it by :meth:`see` with every node of a graph, in order.

    ``found`` are the addresses of each named weight: one, or two where a model uses a tensor
    twice. ``stops`` are the names of nodes to stop after, each with the layer and the part that
    the next matmul takes. ``orders`` are each layer's parts as their matmuls come, ``routers`` its
    router where that is of the usual kind. ``others`` are experts' weights that are not taken by
    one matmul over experts alone, by the router's ids. ``matmul`` is the number of that operation.
    ``chains`` are the layers' whose experts are of the usual kind.
    """

    experts: Mapping[str, ExpertTensor]
    weights: frozenset[str]
    found: dict[str, set[int]] = field(default_factory=dict)
    stops: dict[str, tuple[int, str]] = field(default_factory=dict)
    orders: dict[int, list[str]] = field(default_factory=dict)
    routers: dict[int, Router] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)
    matmul: int = -1
    chains: dict[int, Chain] = field(default_factory=dict)
    _takers: dict[int, str] = field(default_factory=dict)
    _last: str = ""
    # How many MUL_MATs came before each node, and before the last choice.
    _before: dict[int, int] = field(default_factory=dict)
    _n_matmuls: int = 0
    _n_at_choice: int | None = None
    _is_at_experts: bool = False  # no MUL_MAT came between the last choice and its experts
    _normed: set[int] = field(default_factory=set)

    def see(self, address: int) -> None:
        """One node of the graph."""
        name = node.name(address)
        sources = node.sources(address)
        for source in sources:
            weight = node.name(source)
            if weight not in self.weights:
                continue
            self.found.setdefault(weight, set()).add(source)
            expert = self.experts.get(weight)
            if expert is not None:
                self._part(expert, sources)
                if not self._is_one_matmul(address, name, source, sources):
                    self.others.add(weight)
                chain = self._chain(name, sources)
                if chain is not None:
                    self.chains[expert.layer] = chain
        layer = logits_layer(name)
        if layer is not None and len(sources) > 1:
            self.routers[layer] = Router(
                sources[0],
                node.name(sources[1]),
                _norm(sources[1]),
                nearer=self._nearer(sources[1]),
            )
        if router_layer(name) is not None:
            self._n_at_choice, self._is_at_experts = self._n_matmuls, False
        operation = node.op(address)
        if operation == MATMUL and self._n_matmuls == self._n_at_choice:
            self._is_at_experts = True
        if operation == "RMS_NORM":
            self._normed.add(sources[0])
        self._before[address] = self._n_matmuls
        self._n_matmuls += operation == "MUL_MAT"
        if name.startswith(MOE.decode()):
            self._last = name

    def found_experts(self) -> list[ExpertTensor]:
        """The experts' weights that a graph uses."""
        return [t for t in self.experts.values() if t.name in self.found]

    def check_sizes(self, path: str) -> None:
        """Hold the experts' weights in memory against the file's header.

        Raises:
            SystemFault: one has another size.
        """
        for tensor in self.found_experts():
            for address in self.found[tensor.name]:
                shape, strides = node.shape(address), node.strides(address)
                if shape[2] != tensor.n_expert or strides[2] != tensor.slice_bytes:
                    raise SystemFault(
                        f"{path}: {tensor.name} is {shape} with slices of {strides[2]} bytes"
                        f" in memory, {tensor.n_expert} of {tensor.slice_bytes} in the file"
                    )

    def _is_one_matmul(self, address: int, name: str, weight: int, sources: list[int]) -> bool:
        if node.op(address) != MATMUL:
            return False
        self.matmul = node.op_number(address)
        return (
            weight == sources[0]
            and node.name_starts_with(sources[2], ROUTING)
            and self._takers.setdefault(weight, name) == name
        )

    def _part(self, expert: ExpertTensor, sources: list[int]) -> None:
        order = self.orders.setdefault(expert.layer, [])
        if expert.part in order:
            return
        if order and self._last not in self.stops:
            self.stops[self._last] = expert.layer, expert.part
        order.append(expert.part)
        router = self.routers.get(expert.layer)
        if router is not None and len(sources) > 1:
            router.lives = router.lives or node.name(sources[1]).startswith(router.input_name)

    def _chain(self, name: str, sources: list[int]) -> Chain | None:
        """See :class:`Chain`; of the node ``name``."""
        glu = node.glu(sources[1]) if len(sources) == 3 else None
        # A matmul without such a name is scaled afterwards, and the hook is not shown it.
        if glu is None or not name.startswith(MOE.decode()):
            return None
        nodes = node.sources(sources[1])
        weights, inputs, ids = ([node.source(n, i) for n in nodes] for i in range(3))
        weights.append(sources[0])
        experts = [self.experts.get(node.name(weight)) for weight in weights if weight]
        parts = [expert.part for expert in experts if expert is not None]
        is_usual = (
            len(parts) == len(set(parts)) == 3
            and all(node.op(n) == MATMUL for n in nodes)
            and len({expert.layer for expert in experts if expert is not None}) == 1
            and inputs[0] == inputs[1]
            and ids == [sources[2]] * 2
        )
        router = self.routers.get(experts[0].layer) if is_usual and experts[0] is not None else None
        if router is None or not router.lives:
            return None
        gate, up, down = parts
        return Chain((gate, up, down), glu, name)

    def _nearer(self, taken: int) -> Nearer | None:
        """See :class:`Nearer`; ``taken`` is the router's input."""
        added = _sum(taken) if _norm(taken) else 0
        if not added or self._n_at_choice is None or not self._is_at_experts:
            return None
        terms = node.sources(added)
        n_before = [self._before.get(term, -1) for term in terms]
        n_first = min(n_before)
        index = n_before.index(n_first)
        # The other is what attention gave: of the norm of the first, and multiplied since.
        if not self._n_at_choice <= n_first < max(n_before) or terms[index] not in self._normed:
            return None
        return Nearer(n_first - self._n_at_choice, index)


def _sum(normed: int) -> int:
    """What ``rms_norm(a + b) * weight`` adds; 0 where the norm is of something else."""
    added = node.source(node.source(normed, 0), 0)
    return added if added and node.op(added) == "ADD" else 0


def _norm(address: int) -> int:
    """The weight of ``rms_norm(x) * weight``, where the node is that; else 0."""
    if node.op(address) != "MUL":
        return 0
    normed, weight = node.sources(address)
    is_usual = node.op(normed) == "RMS_NORM" and node.type_name(weight) == "f32"
    return weight if is_usual and node.shape(weight)[1:] == (1, 1, 1) else 0
