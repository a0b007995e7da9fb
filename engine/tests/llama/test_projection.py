from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from sluice.errors import SystemFault
from sluice.llama import library
from sluice.llama.projection import Projection
from sluice.llama.repeated import Buffer
from sluice.llama.tensor import Rows

N_IN, N_OUT = 96, 40
F32 = npt.NDArray[np.float32]


@pytest.fixture(autouse=True)
def started() -> None:
    library.start()


def weight() -> F32:
    return np.random.default_rng(4).standard_normal((N_OUT, N_IN), np.float32)


def rows_of(n: int, seed: int = 6) -> F32:
    return np.random.default_rng(seed).standard_normal((n, N_IN), np.float32)


@pytest.mark.parametrize("n", [1, 5])
def test_scores_are_the_product(n: int) -> None:
    matrix, rows = weight(), rows_of(n)
    projection = Projection(matrix)
    found = projection.scores(rows)
    assert found.shape == (n, N_OUT)
    assert found.dtype == np.float32
    assert np.allclose(found, rows @ matrix.T, atol=1e-4)
    projection.close()


@pytest.mark.parametrize("n", [1, 5])
def test_rough_scores_are_near_and_not_the_same(n: int) -> None:
    matrix, rows = weight(), rows_of(n)
    projection = Projection(matrix, is_rough=True)
    error = np.abs(projection.scores(rows) - rows @ matrix.T).max()
    assert 1e-4 < error < 0.03 * np.sqrt(N_IN)  # a rounding of 1/254 in each factor
    projection.close()


def test_rough_scores_of_weights_that_no_scale_holds_are_finite() -> None:
    projection = Projection(weight() * np.float32(1e30), is_rough=True)
    assert np.isfinite(projection.scores(rows_of(1))).all()
    projection.close()


def test_rows_that_are_no_whole_blocks_are_not_rough() -> None:
    matrix = np.ascontiguousarray(weight()[:, :50])
    rows = np.ascontiguousarray(rows_of(1)[:, :50])
    projection = Projection(matrix, is_rough=True)
    assert np.allclose(projection.scores(rows), rows @ matrix.T, atol=1e-4)
    projection.close()


@pytest.mark.parametrize("is_rough", [False, True])
@pytest.mark.parametrize("n_rows", [1, 5])
@pytest.mark.parametrize("n", [1, 2, 8, N_OUT])
def test_the_largest_come_in_order(n: int, n_rows: int, is_rough: bool) -> None:
    projection, rows = Projection(weight(), is_rough=is_rough), rows_of(n_rows)
    scores = projection.scores(rows).copy()
    order = np.argsort(-scores, axis=1, kind="stable")[:, :n]
    assert projection.largest(rows, n) == order.tolist()
    projection.close()


def test_one_after_the_other_with_other_rows_and_numbers() -> None:
    """Graphs are kept by their shapes, and their inputs are not."""
    matrix = weight()
    projection = Projection(matrix)
    for seed, n_rows, n in ((1, 1, 3), (2, 5, 3), (3, 1, 3), (4, 1, 7), (5, 5, 3), (6, 1, 3)):
        rows = rows_of(n_rows, seed)
        assert projection.largest(rows, n) == np.argsort(-(rows @ matrix.T))[:, :n].tolist()
        assert np.allclose(projection.scores(rows), rows @ matrix.T, atol=1e-4)
    assert len(projection._graphs) == 5  # (1, 3), (5, 3), (1, 7); and one largest for the scores
    projection.close()
    projection.close()


def test_rows_that_do_not_lie_side_by_side() -> None:
    matrix = weight()
    rows = np.asfortranarray(rows_of(5))
    projection = Projection(matrix)
    assert np.allclose(projection.scores(rows), rows @ matrix.T, atol=1e-4)
    projection.close()


def test_rows_that_a_graph_has_are_taken_where_they_are() -> None:
    projection, others = Projection(weight()), rows_of(2, 1)
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
    projection = Projection(weight())
    first = projection.scores(rows_of(1, 1))
    kept = first.copy()
    projection.scores(rows_of(1, 2))
    assert not np.array_equal(first, kept)
    projection.close()


@pytest.mark.parametrize(
    "other", [np.zeros((4, 4)), np.zeros((4, 4), np.float16), np.zeros((4, 4), np.float32)[:, ::2]]
)
def test_other_weights_are_a_fault(other: F32) -> None:
    with pytest.raises(SystemFault, match=r"contiguous weights of float32"):
        Projection(other)
