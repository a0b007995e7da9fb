"""What a graph takes its experts by, on nodes that ggml made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from sluice.decoding.session import Session
from sluice.errors import SystemFault
from sluice.llama import ggml, library
from sluice.llama import graph as graphs
from sluice.llama import tensor as node
from sluice.llama.graph import Graph
from sluice.seams import Nodes as Looker
from sluice.streaming.architectures import router_layer
from sluice.streaming.capture import Capture, Chain, Nearer, Role, Router, logits_layer
from sluice.streaming.layout import ExpertTensor
from sluice_gates.zoo import zoo_model

UP = "blk.0.ffn_up_exps.weight"
N_COLS, N_ROWS, N_EXPERT = 32, 16, 4
TENSOR = ExpertTensor(UP, 0, "up", 0, 4 * N_COLS * N_ROWS, N_EXPERT)


class Nodes:
    """A layer's nodes by the names that llama.cpp gives them."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.weight = self.named(graph.tensor(ggml.F32, N_COLS, N_ROWS, N_EXPERT), UP)
        self.inputs = graph.tensor(ggml.F32, N_COLS, 1, 3)
        self.ids = self.named(graph.tensor(ggml.I32, 2, 3), "ffn_moe_topk-0")
        self.capture = Capture({UP: TENSOR}, frozenset({UP}))

    def named(self, address: int, name: str) -> int:
        self.graph.base.ggml_set_name(address, name.encode())
        return address

    def matmul(self, name: str, ids: int) -> int:
        base = self.graph.base
        made = base.ggml_mul_mat_id(self.graph.context, self.weight, self.inputs, ids)
        return self.named(int(made), name)


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    library.start()
    with graphs.opened(1 << 20) as graph:
        yield Nodes(graph)


def test_a_matmul_by_the_routers_ids_is_what_is_expected(nodes: Nodes) -> None:
    made = nodes.matmul("ffn_moe_up-0", nodes.ids)
    nodes.capture.see(made)
    nodes.capture.see(made)  # another context's graph
    assert nodes.capture.others == set()
    assert nodes.capture.found == {UP: {nodes.weight}}
    nodes.capture.check_sizes("m.gguf")


def test_a_second_matmul_of_the_same_weights_is_noted(nodes: Nodes) -> None:
    nodes.capture.see(nodes.matmul("ffn_moe_up-0", nodes.ids))
    nodes.capture.see(nodes.matmul("ffn_moe_up_again-0", nodes.ids))
    assert nodes.capture.others == {UP}


def test_a_matmul_by_other_ids_is_noted(nodes: Nodes) -> None:
    other = nodes.named(nodes.graph.tensor(ggml.I32, 2, 3), "groups-0")
    nodes.capture.see(nodes.matmul("ffn_moe_up-0", other))
    assert nodes.capture.others == {UP}


def test_weights_that_no_routing_chooses_from_are_noted(nodes: Nodes) -> None:
    base, context = nodes.graph.base, nodes.graph.context
    rows = nodes.graph.tensor(ggml.F32, N_COLS, 3, N_EXPERT)
    nodes.capture.see(int(base.ggml_mul_mat(context, nodes.weight, rows)))
    assert nodes.capture.others == {UP}


def test_weights_of_another_size_than_the_files_are_a_fault(nodes: Nodes) -> None:
    wrong = ExpertTensor(UP, 0, "up", 0, TENSOR.slice_bytes, N_EXPERT + 1)
    capture = Capture({UP: wrong}, frozenset({UP}))
    capture.check_sizes("m.gguf")  # none of them seen
    capture.see(nodes.matmul("ffn_moe_up-0", nodes.ids))
    with pytest.raises(SystemFault, match=rf"^m\.gguf: {UP} is \(32, 16, 4, 1\) .* in the file$"):
        capture.check_sizes(str(Path("m.gguf")))


# What a node is to the hook.


@pytest.mark.parametrize(
    ("name", "role"),
    [
        (b"ffn_moe_topk-12", Role("ffn_moe_topk-12", 12, routes=True, is_router=False)),
        (b"ffn_moe_logits-3", Role("ffn_moe_logits-3", 3, routes=False, is_router=True)),
        (b"ffn_moe_logits-3 (view)", Role("ffn_moe_logits-3 (view)", -1, False, False)),
        (b"ffn_moe_logits_biased-3", Role("ffn_moe_logits_biased-3", -1, False, False)),
        (b"ffn_moe_gate-0", Role("ffn_moe_gate-0", -1, False, False)),
        (b"ffn_moe_topk", Role("ffn_moe_topk", -1, False, False)),
        (b"ffn_moe_\xff-1", Role("ffn_moe_\ufffd-1", -1, False, False)),
    ],
    ids=str,
)
def test_the_role_of_a_node_is_in_its_name(name: bytes, role: Role) -> None:
    assert Role.of(name) == role


# The norm that a router's input comes from.


class Routed:
    """A router over an input that is made in one of several ways."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.router = graph.tensor(ggml.F32, N_COLS, N_EXPERT)
        self.norm = graph.tensor(ggml.F32, N_COLS)
        self.rows = graph.tensor(ggml.F32, N_COLS, 3)

    def normed(self) -> int:
        return int(self.graph.base.ggml_rms_norm(self.graph.context, self.rows, 1e-6))

    def multiplied(self, one: int, other: int) -> int:
        return int(self.graph.base.ggml_mul(self.graph.context, one, other))

    def norm_of(self, inputs: int) -> int:
        base, capture = self.graph.base, Capture({}, frozenset())
        logits = int(base.ggml_mul_mat(self.graph.context, self.router, inputs))
        base.ggml_set_name(logits, b"ffn_moe_logits-5")
        capture.see(logits)
        assert capture.routers[5].weight == self.router
        return capture.routers[5].norm


@pytest.fixture
def routed() -> Iterator[Routed]:
    library.start()
    with graphs.opened(1 << 20) as graph:
        yield Routed(graph)


def test_the_norm_before_a_router_is_found(routed: Routed) -> None:
    assert routed.norm_of(routed.multiplied(routed.normed(), routed.norm)) == routed.norm


def test_what_is_no_norm_with_a_weight_is_not_taken_for_one(routed: Routed) -> None:
    assert routed.norm_of(routed.rows) == 0
    assert routed.norm_of(routed.normed()) == 0
    assert routed.norm_of(routed.multiplied(routed.rows, routed.norm)) == 0
    wide = routed.graph.tensor(ggml.F32, N_COLS, 3)
    assert routed.norm_of(routed.multiplied(routed.normed(), wide)) == 0


# What the layer before gave, of which a router's input is made.


class Passed(Looker):
    """The last pass: its nodes in order, and by layer what its router adds attention to."""

    def __init__(self) -> None:
        self.routers: Mapping[int, Router] = {}
        self.chains: Mapping[int, Chain] = {}
        self.addresses: list[int] = []
        self.names: list[str] = []
        self.operations: list[str] = []
        self.residuals: dict[int, int] = {}

    def begins(self, *_of_the_decode: Any) -> None:
        for seen in (self.addresses, self.names, self.operations, self.residuals):
            seen.clear()

    def wants(self, is_head: bool, address: int) -> bool:
        self.addresses.append(address)
        self.names.append(node.name(address))
        self.operations.append(node.op(address))
        layer = logits_layer(node.name(address))
        nearer = None if layer is None else self.routers[layer].nearer
        if layer is not None and nearer is not None:
            self.residuals[layer] = nearer.residual(address)
        return False

    def n_matmuls(self, layer: int) -> int:
        """From the choice of the layer before on, until what the layer takes is there."""
        choices = [i for i, name in enumerate(self.names) if router_layer(name) is not None]
        last = self.addresses.index(self.residuals[layer])
        first = max(i for i in choices if i < last)
        return self.operations[first:last].count("MUL_MAT")

    def given(self, layer: int) -> str:
        """The name of what the layer takes, also where it takes some rows of it."""
        place = self.addresses.index(self.residuals[layer])
        while self.operations[place] == "GET_ROWS":
            place = self.addresses.index(node.source(self.addresses[place], 0))
        return self.names[place]


@pytest.fixture
def passed(opened: Callable[..., Session]) -> Callable[..., Passed]:
    """``passed(model=...)``: a pass of one row through it."""

    def passed_(**changes: Any) -> Passed:
        looker = Passed()
        streamed = {"moe_stream": True, "cache_mb": 16, "force_cache": True, "ctx": 64, "n": 2}
        session = opened(**streamed | changes, session={"nodes": looker})
        assert session.streamer is not None
        looker.routers = session.streamer._capture.routers
        looker.chains = session.streamer._capture.chains
        session.generate([5, 6]).run()
        return looker

    return passed_


def test_what_a_layer_gave_is_found_in_the_next_ones_sum(passed: Callable[..., Passed]) -> None:
    found = passed()
    assert found.routers[0].nearer is None, "no layer routes before it"
    assert {layer: found.given(layer) for layer in found.residuals} == {
        1: "l_out-0",
        2: "l_out-1",
        3: "l_out-2",
    }
    # Three of the shared experts, and one that says how much of them.
    assert {layer: found.n_matmuls(layer) for layer in found.residuals} == {1: 4, 2: 4, 3: 4}
    assert [found.routers[layer].nearer for layer in (1, 2, 3)] == [Nearer(4, 1)] * 3


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("qwen3moe", {1: "l_out-0", 2: "l_out-1"}),  # the last one takes rows of it, too late
        ("gpt-oss", {1: "l_out-0", 2: "l_out-1", 3: "l_out-2"}),
        ("glm4moe", {2: "l_out-1"}),
        ("lfm2moe", {2: "l_out-1"}),  # the first of the two that are added
        ("nemotron_h_moe", {3: "nemotron_h_block_out-1"}),  # and here attention alone
    ],
)
def test_what_a_layer_gave_is_found_in_other_layouts(
    passed: Callable[..., Passed], tmp_path: Path, name: str, given: dict[int, str]
) -> None:
    found = passed(model=str(zoo_model(name, tmp_path)))
    nearer = {layer: router.nearer for layer, router in found.routers.items() if router.nearer}
    assert {layer: found.given(layer) for layer in nearer} == given
    assert {layer: one.n_matmuls for layer, one in nearer.items()} == {
        layer: found.n_matmuls(layer) for layer in nearer
    }


@pytest.mark.parametrize(
    "name",
    ["gemma4", "phimoe", "dbrx", "smallthinker", "cohere2moe", "minimax-01", "arctic", "jamba"],
)
def test_a_router_that_takes_no_norm_of_such_a_sum_has_nothing_nearer(
    passed: Callable[..., Passed], tmp_path: Path, name: str
) -> None:
    found = passed(model=str(zoo_model(name, tmp_path)))
    assert len(found.routers) > 1
    assert [router.nearer for router in found.routers.values()] == [None] * len(found.routers)


@pytest.mark.parametrize(
    ("name", "glu"),
    [("qwen3moe", 2), ("deepseek2", 2), ("glm4moe", 2), ("dbrx", 2), ("qwen2moe", 2)],
)
def test_experts_of_the_usual_kind_are_a_chain(
    passed: Callable[..., Passed], tmp_path: Path, name: str, glu: int
) -> None:
    found = passed(model=str(zoo_model(name, tmp_path)))
    assert found.chains
    assert set(found.chains) == set(found.routers)
    for layer, chain in found.chains.items():
        assert chain == Chain(("gate", "up", "down"), glu, f"ffn_moe_down-{layer}")


@pytest.mark.parametrize("name", ["gpt-oss", "gemma4", "lfm2moe"])
def test_other_experts_are_none(passed: Callable[..., Passed], tmp_path: Path, name: str) -> None:
    assert passed(model=str(zoo_model(name, tmp_path))).chains == {}
