from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from sluice.errors import SystemFault
from sluice.llama import library
from sluice.llama.projection import Projection, Weight
from sluice.llama.repeated import Buffer
from sluice.llama.tensor import Rows

N_IN, N_OUT = 96, 40
F32 = npt.NDArray[np.float32]


@pytest.fixture(autouse=True)
def started() -> None:
    library.start()


def weight(dtype: type) -> Weight:
    noise = np.random.default_rng(4)
    return np.ascontiguousarray(noise.standard_normal((N_OUT, N_IN)).astype(dtype))


def rows_of(n: int, seed: int = 6) -> F32:
    return np.random.default_rng(seed).standard_normal((n, N_IN), np.float32)


def wanted(rows: F32, matrix: Weight) -> F32:
    """ggml rounds the rows to the type of the weights."""
    return (rows.astype(matrix.dtype).astype(np.float64) @ matrix.astype(np.float64).T).astype("f4")


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("n", [1, 5])
def test_scores_are_the_product(n: int, dtype: type) -> None:
    matrix, rows = weight(dtype), rows_of(n)
    projection = Projection(matrix)
    found = projection.scores(rows)
    assert found.shape == (n, N_OUT)
    assert found.dtype == np.float32
    assert np.allclose(found, wanted(rows, matrix), atol=1e-4)
    projection.close()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("n_rows", [1, 5])
@pytest.mark.parametrize("n", [1, 2, 8, N_OUT])
def test_the_largest_come_in_order(n: int, n_rows: int, dtype: type) -> None:
    matrix, rows = weight(dtype), rows_of(n_rows)
    projection = Projection(matrix)
    scores = projection.scores(rows).copy()
    order = np.argsort(-scores, axis=1, kind="stable")[:, :n]
    assert projection.largest(rows, n) == order.tolist()
    assert projection.largest(rows, n) == np.argsort(-wanted(rows, matrix))[:, :n].tolist()
    projection.close()


def test_one_after_the_other_with_other_rows_and_numbers() -> None:
    """Graphs are kept by their shapes, and their inputs are not."""
    matrix = weight(np.float32)
    projection = Projection(matrix)
    for seed, n_rows, n in ((1, 1, 3), (2, 5, 3), (3, 1, 3), (4, 1, 7), (5, 5, 3), (6, 1, 3)):
        rows = rows_of(n_rows, seed)
        assert projection.largest(rows, n) == np.argsort(-(rows @ matrix.T))[:, :n].tolist()
        assert np.allclose(projection.scores(rows), rows @ matrix.T, atol=1e-4)
    assert len(projection._graphs) == 5  # (1, 3), (5, 3), (1, 7); and one largest for the scores
    projection.close()
    projection.close()


def test_rows_that_do_not_lie_side_by_side() -> None:
    matrix = weight(np.float32)
    rows = np.asfortranarray(rows_of(5))
    projection = Projection(matrix)
    assert np.allclose(projection.scores(rows), rows @ matrix.T, atol=1e-4)
    projection.close()


def test_rows_that_a_graph_has_are_taken_where_they_are() -> None:
    projection, others = Projection(weight(np.float32)), rows_of(2, 1)
    memory = Buffer(others.nbytes)
    where = Rows(memory.address, 2, N_IN)
    for seed in (2, 3):
        rows = rows_of(2, seed)
        memory.fill(rows.tobytes())
        assert np.array_equal(projection.scores(where).copy(), projection.scores(rows))
        assert projection.largest(where, 3) == projection.largest(rows, 3)
        assert np.array_equal(where.copy(), rows)  # nothing is written there
        projection.scores(others)
        assert np.array_equal(where.copy(), rows)
    projection.close()


def test_scores_are_a_view_of_the_next_call() -> None:
    projection = Projection(weight(np.float32))
    first = projection.scores(rows_of(1, 1))
    kept = first.copy()
    projection.scores(rows_of(1, 2))
    assert not np.array_equal(first, kept)
    projection.close()


@pytest.mark.parametrize(
    "other", [np.zeros((4, 4)), np.zeros((4, 4), np.int32), np.zeros((4, 4), np.float32)[:, ::2]]
)
def test_other_weights_are_a_fault(other: Weight) -> None:
    with pytest.raises(SystemFault, match=r"contiguous weights, float32 or float16"):
        Projection(other)
