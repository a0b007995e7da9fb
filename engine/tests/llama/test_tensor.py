from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import quantize

from sluice.errors import SystemFault
from sluice.llama import ggml, library, tensor
from sluice.llama.graph import Graph, opened

N_COLS, N_ROWS, N_EXPERT = 256, 48, 6
STRIDE_MORE = 512 + 32
Type = GGMLQuantizationType
U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]


def test_the_layout_is_the_librarys_own() -> None:
    library.start()
    tensor.check_layout()


@pytest.mark.parametrize(
    "field", ["_TYPE", "_NE", "_NB", "_SRC", "_VIEW_SRC", "_DATA", "NAME", "_STRUCT_BYTES"]
)
@pytest.mark.parametrize("shift", [-8, 8])
def test_a_field_that_is_elsewhere_is_noticed(
    field: str, shift: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.start()
    monkeypatch.setattr(tensor, field, getattr(tensor, field) + shift)
    with pytest.raises(SystemFault, match=r"ggml_tensor is laid out differently .* install"):
        tensor.check_layout()


def test_llama_cpp_does_not_start_on_another_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor, "NAME", tensor.NAME + 8)
    with pytest.raises(SystemFault, match=library.version()):
        library.start.__wrapped__()


# A matmul over experts that takes them from slots.


@pytest.fixture
def graph() -> Iterator[Graph]:
    library.start()
    with opened(64 << 20) as one:
        yield one


def experts(kind: Type) -> U8:
    """Weights of every expert, uint8[expert, bytes]; K-quants are noise with small scales."""
    noise = np.random.default_rng(int(kind))
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if kind in (Type.Q4_K, Type.Q6_K):
        raw = noise.integers(0, 256, (N_EXPERT, N_ROWS * N_COLS // block, block_bytes), np.uint8)
        scale = np.array([0.01], np.float16).view(np.uint8)
        for at in (0, 2) if kind == Type.Q4_K else (208,):
            raw[..., at : at + 2] = scale
    else:
        values = noise.standard_normal((N_EXPERT, N_ROWS, N_COLS), np.float32)
        raw = quantize(values, kind).view(np.uint8)
    return raw.reshape(N_EXPERT, -1)


def routed(n_rows: int, top_k: int) -> I32:
    chance = np.random.default_rng(n_rows)
    return np.array(
        [chance.choice(N_EXPERT, top_k, replace=False) for _ in range(n_rows)], np.int32
    )


class Matmul:
    """``n_rows`` rows routed to ``top_k`` experts each."""

    def __init__(self, graph: Graph, kind: Type, ids: I32, *, each: bool = False) -> None:
        n_rows, top_k = ids.shape
        self.graph = graph
        self.weight = graph.tensor(int(kind), N_COLS, N_ROWS, N_EXPERT)
        self.inputs = graph.tensor(ggml.F32, N_COLS, top_k if each else 1, n_rows)
        self.ids = graph.tensor(ggml.I32, top_k, n_rows)
        noise = np.random.default_rng(3)
        values = noise.standard_normal((n_rows, top_k if each else 1, N_COLS), np.float32)
        graph.fill(self.weight, experts(kind).tobytes())
        graph.fill(self.inputs, values.tobytes())
        graph.fill(self.ids, ids.tobytes())
        self.n_values = n_rows * top_k * N_ROWS
        self.node = self.again()

    def again(self) -> int:
        return int(
            self.graph.base.ggml_mul_mat_id(self.graph.context, self.weight, self.inputs, self.ids)
        )

    def compute(self, node: int, threads: int = 1) -> bytes:
        return self.graph.compute(node, self.n_values, threads).tobytes()


def in_slots(weights: U8, slots: list[int], stride: int) -> U8:
    """Expert e's bytes in slot ``slots[e]``, and ones, a NaN, everywhere else."""
    memory = np.full(stride * (max(slots) + 1), 0xFF, np.uint8)
    for expert, slot in enumerate(slots):
        memory[slot * stride :][: weights.shape[1]] = weights[expert]
    return memory


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("n_rows", [1, 2, 7, 64])
@pytest.mark.parametrize(
    "kind",
    [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_K, Type.Q6_K, Type.MXFP4],
    ids=lambda kind: kind.name,
)
def test_a_matmul_from_slots_is_the_same_bytes(
    graph: Graph, kind: Type, n_rows: int, each: bool
) -> None:
    ids = routed(n_rows, 2)
    matmul = Matmul(graph, kind, ids, each=each)
    right = matmul.compute(matmul.node)
    assert np.isfinite(np.frombuffer(right, np.float32)).all()
    weights = experts(kind)
    slots = np.array([17, 3, 40, 5, 4, 29], np.int32)
    stride = weights.shape[1] + STRIDE_MORE
    memory = in_slots(weights, slots.tolist(), stride)
    low, high = int(slots[ids].min()), int(slots[ids].max())
    standin = tensor.Ids(n_rows, 2)
    standin.fill((slots[ids] - low).ravel().tolist(), 2)
    begin = memory.ctypes.data + low * stride
    weights_at = tensor.ExpertWeights(matmul.weight)
    weights_at.bind(begin, high - low + 1, stride)
    assert tensor.data(matmul.weight) == begin
    assert tensor.shape(matmul.weight)[2] == high - low + 1
    assert tensor.strides(matmul.weight)[2:] == (stride, (high - low + 1) * stride)
    for threads in (1, 2):
        node = matmul.again()
        standin.stand_in_for(node, 2)
        assert tensor.source(node, 2) == standin.address
        assert tensor.source(node, 0) == matmul.weight
        assert matmul.compute(node, threads) == right
    # The experts' own numbers would take other slots, or what nobody has put there.
    if n_rows < 64:
        standin.give_way(node, 2)
        assert tensor.source(node, 2) == matmul.ids
        weights_at.bind(memory.ctypes.data, 41, stride)
        assert matmul.compute(node) != right


def test_a_graph_that_is_used_again_keeps_the_stand_in(graph: Graph) -> None:
    """Its second pass has other ids, in the same tensor."""
    ids = routed(4, 2)
    matmul = Matmul(graph, Type.Q8_0, ids)
    right = matmul.compute(matmul.node)
    standin = tensor.Ids(4, 2)
    weights_at = tensor.ExpertWeights(matmul.weight)
    node = matmul.again()
    for moved in (np.array([3, 1, 0, 2, 5, 4], np.int32), np.arange(6, dtype=np.int32)[::-1]):
        stride = experts(Type.Q8_0).shape[1]
        memory = in_slots(experts(Type.Q8_0), moved.tolist(), stride)
        standin.fill(moved[ids].ravel().tolist(), 2)
        weights_at.bind(memory.ctypes.data, N_EXPERT, stride)
        standin.stand_in_for(node, 2)
        assert matmul.compute(node) == right


def test_a_stand_in_is_like_what_it_stands_for(graph: Graph) -> None:
    matmul = Matmul(graph, Type.F32, routed(3, 2))
    graph.base.ggml_set_name(matmul.ids, b"ffn_moe_topk-0")
    standin = tensor.Ids(5, 4)
    standin.fill([5, 4, 3, 2, 1, 0], 2)
    standin.stand_in_for(matmul.node, 2)
    assert tensor.name(standin.address) == "ffn_moe_topk-0"
    assert tensor.type_name(standin.address) == "i32"
    assert tensor.shape(standin.address) == tensor.shape(matmul.ids) == (2, 3, 1, 1)
    assert tensor.strides(standin.address) == tensor.strides(matmul.ids)
    view, _ = tensor.routing(standin.address)
    assert view.tolist() == [[5, 4], [3, 2], [1, 0]]
    standin.fill([7, 8, 9, 6], 4)
    view, _ = tensor.routing(standin.address)
    assert view.tolist() == [[7, 8, 9, 6]]
    assert tensor.routing(matmul.ids)[0].tolist() == routed(3, 2).tolist()


def test_more_ids_than_there_is_room_for_are_a_fault() -> None:
    standin = tensor.Ids(2, 2)
    standin.fill([0] * 4, 4)
    with pytest.raises(SystemFault, match=r"3 rows to 2 experts each, 6 ids, .* room for 4; use"):
        standin.fill([0] * 6, 2)


def test_sources_are_read_and_set_one_by_one(graph: Graph) -> None:
    matmul = Matmul(graph, Type.F32, routed(1, 2))
    assert [tensor.source(matmul.node, i) for i in range(4)] == [
        matmul.weight, matmul.inputs, matmul.ids, 0,
    ]  # fmt: skip
    other = graph.tensor(ggml.I32, 2, 1)
    tensor.set_source(matmul.node, 2, other)
    assert tensor.sources(matmul.node) == [matmul.weight, matmul.inputs, other]


def test_a_stand_in_gives_way_only_where_it_stands(graph: Graph) -> None:
    """And a second pass of the same graph finds it where it was put back."""
    matmul = Matmul(graph, Type.F32, routed(2, 2))
    other = matmul.again()
    standin = tensor.Ids(2, 2)
    standin.fill([0] * 4, 2)
    standin.give_way(other, 2)
    assert tensor.source(other, 2) == matmul.ids
    standin.stand_in_for(matmul.node, 2)
    standin.stand_in_for(matmul.node, 2)  # used again: the original is not forgotten
    standin.give_way(matmul.node, 2)
    assert tensor.source(matmul.node, 2) == matmul.ids
    standin.stand_in_for(matmul.node, 2)
    assert tensor.source(matmul.node, 2) == standin.address


@pytest.mark.parametrize("rows", [1, 3])
def test_what_is_routed_is_a_copy(graph: Graph, rows: int) -> None:
    """A stand-in, or the next graph, may write there while the ids are still in use."""
    ids = routed(rows, 2)
    matmul = Matmul(graph, Type.F32, ids)
    view, flat = tensor.routing(matmul.ids)
    plain = tensor.routed(matmul.ids)
    graph.fill(matmul.ids, bytes(ids.nbytes))
    assert view.tolist() == flat.tolist() == plain == ids.tolist()
    assert tensor.routing(matmul.ids)[0].tolist() == [[0, 0]] * rows
    assert tensor.routed(matmul.ids) == [[0, 0]] * rows


def test_rows_are_where_the_graph_has_them_until_they_are_copied(graph: Graph) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    matrix = graph.tensor(ggml.F32, 4, 3)
    graph.fill(matrix, values.tobytes())
    found = tensor.rows(matrix, most=3)
    assert found == tensor.Rows(tensor.data(matrix), 3, 4)
    assert len(found) == 3
    copy = found.copy()
    graph.fill(matrix, bytes(values.nbytes))
    assert copy.dtype == np.float32
    assert np.array_equal(copy, values)
    assert not found.copy().any()


def test_rows_that_are_too_many_or_none(graph: Graph) -> None:
    assert tensor.rows(graph.tensor(ggml.F32, 4, 3), most=2) is None
    assert tensor.rows(graph.tensor(ggml.F32, 4, 2, 2), most=3) is None
    assert tensor.rows(graph.tensor(ggml.F32, 4, 0), most=2) is None
    assert tensor.rows(graph.tensor(ggml.F16, 4, 3), most=2) is None


def test_further_dimensions_are_rows(graph: Graph) -> None:
    values = np.arange(24, dtype=np.float32).reshape(3, 2, 4)
    matrix = graph.tensor(ggml.F32, 4, 2, 3)
    graph.fill(matrix, values.tobytes())
    found = tensor.rows(matrix, most=6)
    assert found is not None
    assert np.array_equal(found.copy(), values.reshape(6, 4))


def test_rows_with_gaps_between_them(graph: Graph) -> None:
    values = np.arange(24, dtype=np.float32).reshape(3, 8)
    whole = graph.tensor(ggml.F32, 8, 3)
    graph.fill(whole, values.tobytes())
    half = graph.tensor(ggml.F32, 4, 3)
    for dimension, step in ((1, 32), (2, 96), (3, 96)):
        ctypes.c_int64.from_address(half + tensor._NB + 8 * dimension).value = step
    tensor.rebind(half, tensor.data(whole))
    found = tensor.rows(half, most=3)
    assert found is not None
    graph.fill(whole, bytes(values.nbytes))
    assert np.array_equal(found, values[:, :4])


def test_rows_of_another_type_are_a_fault(graph: Graph) -> None:
    with pytest.raises(SystemFault, match=r"its values are f16, not float32"):
        tensor.rows(graph.tensor(ggml.F16, 4, 3), most=3)


def test_a_name_as_it_stands_there(graph: Graph) -> None:
    one = graph.tensor(ggml.F32, 4)
    assert tensor.raw_name(one) == b""
    graph.base.ggml_set_name(one, b"ffn_moe_topk-12")
    assert tensor.raw_name(one) == b"ffn_moe_topk-12"
    graph.base.ggml_set_name(one, b"norm")  # no rest of the longer one
    assert tensor.raw_name(one) == b"norm"
    assert tensor.name(one) == "norm"
    graph.base.ggml_set_name(one, b"n" * 100)
    assert tensor.raw_name(one) == b"n" * 63


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.I32, Type.Q8_0, Type.Q4_K])
def test_the_number_of_a_type(graph: Graph, kind: Type) -> None:
    assert tensor.type_number(graph.tensor(int(kind), N_COLS, 2)) == kind


@pytest.mark.parametrize("name", ["ffn_moe_topk-7", "ffn_moe_", "ffn_moe", "ffn_mod_topk", ""])
def test_the_first_letters_of_a_name(graph: Graph, name: str) -> None:
    address = graph.tensor(ggml.F32, 4, 3)
    graph.base.ggml_set_name(address, name.encode())
    assert tensor.name_test(b"ffn_moe_")(address) is name.startswith("ffn_moe_")


def test_routed_experts_of_rows_with_gaps_and_of_no_row(graph: Graph) -> None:
    whole = graph.tensor(ggml.I32, 5, 3)
    graph.fill(whole, np.arange(15, dtype=np.int32).tobytes())
    view = graph.tensor(ggml.I32, 2, 3)
    ctypes.c_int64.from_address(view + tensor._NB + 8).value = 20
    tensor.rebind(view, tensor.data(whole))
    assert tensor.routed(view) == [[0, 1], [5, 6], [10, 11]]
    assert tensor.routed(graph.tensor(ggml.I32, 2, 0)) == []
