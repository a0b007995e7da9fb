"""What a graph takes its experts by, on nodes that ggml made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.errors import SystemFault
from sluice.llama import ggml, library
from sluice.llama.graph import Graph, opened
from sluice.streaming.capture import Capture, Role
from sluice.streaming.layout import ExpertTensor

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
    with opened(1 << 20) as graph:
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
    with opened(1 << 20) as graph:
        yield Routed(graph)


def test_the_norm_before_a_router_is_found(routed: Routed) -> None:
    assert routed.norm_of(routed.multiplied(routed.normed(), routed.norm)) == routed.norm


def test_what_is_no_norm_with_a_weight_is_not_taken_for_one(routed: Routed) -> None:
    assert routed.norm_of(routed.rows) == 0
    assert routed.norm_of(routed.normed()) == 0
    assert routed.norm_of(routed.multiplied(routed.rows, routed.norm)) == 0
    wide = routed.graph.tensor(ggml.F32, N_COLS, 3)
    assert routed.norm_of(routed.multiplied(routed.normed(), wide)) == 0
