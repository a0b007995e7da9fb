from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from sluice.errors import SystemFault
from sluice.llama import ggml, library, tensor
from sluice.llama.repeated import Buffer, RepeatedGraph


@pytest.fixture
def graph() -> Iterator[RepeatedGraph]:
    library.start()
    one = RepeatedGraph()
    yield one
    one.close()


def values(buffer: Buffer) -> list[float]:
    return np.frombuffer(bytes(buffer.raw), np.float32).tolist()


def raw(*numbers: float) -> bytes:
    return np.array(numbers, np.float32).tobytes()


def test_a_buffer_is_zeros_until_it_is_filled() -> None:
    buffer = Buffer(12)
    assert values(buffer) == [0, 0, 0]
    buffer.fill(raw(1, 2))
    assert values(buffer) == [1, 2, 0]
    buffer.fill(raw(4, 5, 6))
    assert values(buffer) == [4, 5, 6]


def test_more_than_a_buffer_holds_is_refused() -> None:
    buffer = Buffer(8)
    with pytest.raises(ValueError, match="9 bytes for a buffer of 8"):
        buffer.fill(bytes(9))
    assert values(buffer) == [0, 0]


def test_computed_again_with_what_is_in_the_buffers_by_then(graph: RepeatedGraph) -> None:
    left, right, out, between = (Buffer(12) for _ in range(4))
    a = graph.tensor(ggml.F32, 3, 1, left.address)
    b = graph.tensor(ggml.F32, 3, 1, right.address)
    assert tensor.data(a) == left.address
    product = graph.node(graph.base.ggml_mul, a, b, into=between)
    graph.build(graph.node(graph.base.ggml_mul, product, b, into=out))
    for i in range(1, 4):
        left.fill(raw(1, 2, i))
        right.fill(raw(i, 3, -1))
        graph.compute()
        assert values(out) == [i * i, 18, i]
        assert values(between) == [i, 6, -i]
    assert values(left) == [1, 2, 3]


def test_a_result_that_does_not_fit_is_a_fault(graph: RepeatedGraph) -> None:
    given = Buffer(12)
    a = graph.tensor(ggml.F32, 3, 1, given.address)
    with pytest.raises(SystemFault, match="too little memory"):
        graph.node(graph.base.ggml_mul, a, a, into=Buffer(8))


def test_a_failure_of_ggml_is_a_fault(graph: RepeatedGraph) -> None:
    given, out = Buffer(12), Buffer(12)
    a = graph.tensor(ggml.F32, 3, 1, given.address)
    graph.build(graph.node(graph.base.ggml_mul, a, a, into=out))

    class Failing:
        @staticmethod
        def ggml_graph_compute(_graph: int, _plan: object) -> int:
            return -1

    graph._cpu = Failing()  # type: ignore[assignment]
    with pytest.raises(SystemFault, match="returned -1"):
        graph.compute()


def test_no_memory_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    library.start()

    class Empty:
        @staticmethod
        def ggml_graph_overhead_custom(_n: int, _grads: bool) -> int:
            return 0

        @staticmethod
        def ggml_init(_params: object) -> None:
            return None

    monkeypatch.setattr(ggml, "base", Empty)
    with pytest.raises(SystemFault, match="no memory"):
        RepeatedGraph()


def test_an_input_is_an_array_of_ours_or_what_a_graph_has(graph: RepeatedGraph) -> None:
    out = Buffer(24)
    given = graph.input(3, 2)
    graph.build(graph.node(graph.base.ggml_mul, given.tensor, given.tensor, into=out))
    elsewhere = Buffer(24)
    elsewhere.fill(raw(6, 5, 4, 3, 2, 1))
    where = tensor.Rows(elsewhere.address, 2, 3)
    ours = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    for matrix, squares in (
        (where, [36, 25, 16, 9, 4, 1]),
        (ours, [1, 4, 9, 16, 25, 36]),
        (where, [36, 25, 16, 9, 4, 1]),
    ):
        given.take(matrix)
        graph.compute()
        assert values(out) == squares
    assert values(elsewhere) == [6, 5, 4, 3, 2, 1]


@pytest.mark.parametrize("shape", [(1, 3), (3, 2), (2, 4)])
def test_an_input_of_another_shape_is_refused(graph: RepeatedGraph, shape: tuple[int, int]) -> None:
    given, elsewhere = graph.input(3, 2), Buffer(64)
    with pytest.raises(ValueError, match=rf"{shape[0]} rows of {shape[1]} for \(2, 3\)"):
        given.take(tensor.Rows(elsewhere.address, *shape))
