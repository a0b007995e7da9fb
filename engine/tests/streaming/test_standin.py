"""Which nodes take slots in the place of ids, and when."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from sluice.errors import SystemFault
from sluice.llama import ggml, library, tensor
from sluice.llama.graph import Graph, opened
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
        self.standin = StandIn(self.memory, layout, found, rows=3, top_k=TOP_K)

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
    standin.place(1, routed)
    assert standin.is_expected
    standin.give(stage.layers[0].nodes[0])
    assert tensor.source(stage.layers[0].nodes[0], 2) == stage.layers[0].ids
    standin.give(layer.nodes[0])
    assert standin.is_expected, "one is still to come"
    standin.give(layer.nodes[1])
    assert not standin.is_expected
    assert [layer.compute(0), layer.compute(1)] == right
    # The same graph, other experts elsewhere.
    stage.memory.give_back(0, 2)
    stage.memory.give_back(1, 1)
    stage.bring_in(1, 0)
    routed = np.array([[0, 3], [3, 0], [0, 3]], np.int32)
    standin.place(1, routed)
    for node in layer.nodes:
        standin.give(node)
    got = [layer.compute(0), layer.compute(1)]
    layer.graph.fill(layer.ids, routed.tobytes())
    for i, weight in enumerate(layer.weights):
        plain = layer.values[i].copy()
        tensor.bind_experts(weight, plain.ctypes.data, N_EXPERT, SLICE)
        again = layer.graph.compute(layer.matmul(weight), 3 * TOP_K * N_ROWS).tobytes()
        assert got[i] == again != right[i]


def test_what_was_expected_of_a_pass_that_failed_is_forgotten(stage: Stage) -> None:
    stage.bring_in(0, 0, 1)
    stage.bring_in(1, 0, 1)
    routed = np.array([[1, 0]] * 3, np.int32)
    stage.standin.place(0, routed)
    stage.standin.place(1, routed)
    stage.standin.give(stage.layers[0].nodes[0])
    assert tensor.source(stage.layers[0].nodes[0], 2) == stage.layers[0].ids


def test_an_expert_that_is_not_there_binds_nothing(stage: Stage) -> None:
    stage.bring_in(0, 0)
    before = tensor.data(stage.layers[0].weights[0])
    with pytest.raises(SystemFault, match="layer 0: routed expert 1 has no slot in the cache"):
        stage.standin.place(0, np.array([[0, 1]], np.int32))
    assert tensor.data(stage.layers[0].weights[0]) == before
    assert not stage.standin.is_expected
