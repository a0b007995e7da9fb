"""Which nodes take slots in the place of ids, and when."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from sluice.errors import SystemFault
from sluice.llama import ggml, library, tensor
from sluice.llama.graph import Graph, opened
from sluice.llama.node_filter import NodeFilter
from sluice.streaming.layout import ExpertLayout, ExpertTensor
from sluice.streaming.slots import SlotMemory
from sluice.streaming.standin import StandIn

from .parts import plan_of

N_COLS, N_ROWS, N_EXPERT, TOP_K = 32, 16, 4, 2
SLICE = 4 * N_COLS * N_ROWS


class Layer:
    """The nodes of one layer: two matmuls over experts, and their experts' file bytes."""

    def __init__(self, graph: Graph, layer: int) -> None:
        self.graph = graph
        self.ids = graph.tensor(ggml.I32, TOP_K, 3)
        self.inputs = graph.tensor(ggml.F32, N_COLS, 1, 3)
        self.weights, self.nodes, tensors = [], [], []
        noise = np.random.default_rng(layer)
        self.values = noise.standard_normal((2, N_EXPERT, SLICE // 4), np.float32)
        self.inputs_raw = noise.standard_normal((3, N_COLS), np.float32).tobytes()
        graph.fill(self.inputs, self.inputs_raw)
        for i, part in enumerate(("up", "gate")):
            name = f"blk.{layer}.ffn_{part}_exps.weight"
            tensors.append(ExpertTensor(name, layer, part, 4096 * layer + 32, SLICE, N_EXPERT))
            weight = graph.tensor(ggml.F32, N_COLS, N_ROWS, N_EXPERT)
            graph.fill(weight, self.values[i].tobytes())
            self.weights.append(weight)
            self.nodes.append(self.matmul(weight))
        self.tensors = tuple(tensors)

    def matmul(self, weight: int) -> int:
        graph = self.graph
        return int(graph.base.ggml_mul_mat_id(graph.context, weight, self.inputs, self.ids))

    def compute(self, i: int) -> bytes:
        return self.graph.compute(self.nodes[i], 3 * TOP_K * N_ROWS).tobytes()


class Stage:
    """Two layers, a memory with room for half of their experts, and the stand-in."""

    def __init__(self, graph: Graph) -> None:
        self.layers = [Layer(graph, 0), Layer(graph, 1)]
        layout = ExpertLayout({n: one.tensors for n, one in enumerate(self.layers)}, 2)
        self.memory = SlotMemory(
            layout, plan_of(layout, TOP_K), alignment=512, ubatch=1, budget_bytes=0
        )
        self.memory.set_budget(4 * self.memory.pools[0].slot_bytes)
        found = {
            t.name: {weight}
            for one in self.layers
            for t, weight in zip(one.tensors, one.weights, strict=True)
        }
        self.shown = NodeFilter(b"ffn_moe_")
        self.shown.is_open = False
        self.matmul = tensor.op_number(self.layers[0].nodes[0])
        self.standin = StandIn(
            self.memory, layout, found,
            rows=3, top_k=TOP_K, shown=self.shown, matmul=self.matmul,
        )  # fmt: skip

    def bring_in(self, layer: int, *experts: int) -> None:
        one = self.layers[layer]
        for expert in experts:
            self.memory.take(layer, expert)
            for i, t in enumerate(one.tensors):
                self.memory.slice_view(t, expert)[:] = one.values[i, expert].tobytes()


@pytest.fixture
def stage() -> Iterator[Stage]:
    library.start()
    with opened(1 << 20) as graph:
        yield Stage(graph)


def test_a_layers_matmuls_take_slots_and_nothing_else_does(stage: Stage) -> None:
    layer, standin = stage.layers[1], stage.standin
    routed = np.array([[3, 1], [1, 3], [3, 1]], np.int32)
    layer.graph.fill(layer.ids, routed.tobytes())
    right = [layer.compute(0), layer.compute(1)]
    assert not standin.is_expected
    stage.bring_in(0, 2)
    stage.bring_in(1, 1, 3)
    standin.place(1, routed.ravel().tolist(), TOP_K)
    assert standin.is_expected
    assert stage.shown.operation == stage.matmul
    standin.give(stage.layers[0].nodes[0])
    assert tensor.source(stage.layers[0].nodes[0], 2) == stage.layers[0].ids
    standin.give(layer.nodes[0])
    assert standin.is_expected, "one is still to come"
    assert stage.shown.operation == stage.matmul
    standin.give(layer.nodes[1])
    assert not standin.is_expected
    assert stage.shown.operation is None
    assert [layer.compute(0), layer.compute(1)] == right
    # The same graph, other experts elsewhere.
    stage.memory.give_back(0, 2)
    stage.memory.give_back(1, 1)
    stage.bring_in(1, 0)
    routed = np.array([[0, 3], [3, 0], [0, 3]], np.int32)
    standin.place(1, routed.ravel().tolist(), TOP_K)
    for node in layer.nodes:
        standin.give(node)
    got = [layer.compute(0), layer.compute(1)]
    layer.graph.fill(layer.ids, routed.tobytes())
    for i, weight in enumerate(layer.weights):
        plain = layer.values[i].copy()
        tensor.ExpertWeights(weight).bind(plain.ctypes.data, N_EXPERT, SLICE)
        again = layer.graph.compute(layer.matmul(weight), 3 * TOP_K * N_ROWS).tobytes()
        assert got[i] == again != right[i]


def test_what_was_expected_of_a_pass_that_failed_is_forgotten(stage: Stage) -> None:
    stage.bring_in(0, 0, 1)
    stage.bring_in(1, 0, 1)
    stage.standin.place(0, [1, 0] * 3, TOP_K)
    stage.standin.place(1, [1, 0] * 3, TOP_K)
    stage.standin.give(stage.layers[0].nodes[0])
    assert tensor.source(stage.layers[0].nodes[0], 2) == stage.layers[0].ids


def test_an_expert_that_is_not_there_binds_nothing(stage: Stage) -> None:
    stage.bring_in(0, 0)
    before = tensor.data(stage.layers[0].weights[0])
    with pytest.raises(SystemFault, match="layer 0: expert 1 has no slot in the cache"):
        stage.standin.place(0, [0, 1], TOP_K)
    assert tensor.data(stage.layers[0].weights[0]) == before
    assert not stage.standin.is_expected


# A layer whose experts are all here, in order.


@pytest.fixture
def roomy(stage: Stage) -> Stage:
    """Room for all, and all of layer 1 in it."""
    stage.memory.set_budget(2 * N_EXPERT * stage.memory.pools[0].slot_bytes)
    stage.bring_in(1, *range(N_EXPERT))
    return stage


@pytest.mark.parametrize("n_given", [0, 1, 2])
def test_a_layer_that_is_released_takes_its_own_ids_again(roomy: Stage, n_given: int) -> None:
    """However many of its matmuls had taken slots."""
    layer, standin = roomy.layers[1], roomy.standin
    routed = np.array([[3, 1], [1, 2], [3, 0]], np.int32)
    layer.graph.fill(layer.ids, routed.tobytes())
    right = [layer.compute(0), layer.compute(1)]
    standin.place(1, routed.ravel().tolist(), TOP_K)
    for made in layer.nodes[:n_given]:
        standin.give(made)
        assert tensor.source(made, 2) != layer.ids
    standin.release(1)
    assert standin.is_expected
    assert roomy.shown.operation == roomy.matmul
    for made in layer.nodes:
        standin.give(made)
        assert tensor.source(made, 2) == layer.ids
    assert not standin.is_expected
    for i, t in enumerate(layer.tensors):
        assert tensor.shape(layer.weights[i])[2] == N_EXPERT
        assert tensor.data(layer.weights[i]) == roomy.memory.address(t, N_EXPERT)
    assert [layer.compute(0), layer.compute(1)] == right
    # Other experts, and nobody is asked.
    other = np.array([[0, 2], [2, 3], [1, 0]], np.int32)
    layer.graph.fill(layer.ids, other.tobytes())
    again = [layer.compute(0), layer.compute(1)]
    standin.place(1, other.ravel().tolist(), TOP_K)
    for made in layer.nodes:
        standin.give(made)
        assert tensor.source(made, 2) != layer.ids
    assert [layer.compute(0), layer.compute(1)] == again != right


def test_a_release_is_of_one_layer(roomy: Stage) -> None:
    roomy.bring_in(0, 0, 2)
    roomy.standin.release(1)
    roomy.standin.place(0, [2, 0] * 3, TOP_K)
    for made in roomy.layers[0].nodes:
        roomy.standin.give(made)
        assert tensor.source(made, 2) != roomy.layers[0].ids
