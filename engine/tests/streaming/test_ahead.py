from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from sluice.streaming.ahead import CONTROL, EARLY, PREVIOUS, ROWS_MAX, Predictor
from sluice.streaming.router import SOFTMAX, RouterCopy, Selection
from sluice.telemetry.metrics import Predictions


def f32(*rows: list[float]) -> npt.NDArray[np.float32]:
    return np.array(rows, np.float32)


def router(order: list[int]) -> RouterCopy:
    """Expert ``order[i]``'s logit is the input's element i."""
    weight = np.zeros((4, 4), np.float32)
    weight[order, range(4)] = 1
    return RouterCopy(weight, None, None, Selection(SOFTMAX, 0, 0))


@pytest.fixture
def early() -> Predictor:
    """Layer 0's router takes inputs as they are, layer 1's the other way round."""
    return Predictor({0: router([0, 1, 2, 3]), 1: router([3, 2, 1, 0])}, {0: 1})


def test_the_previous_token_is_the_last_row_of_the_last_pass() -> None:
    predictor = Predictor({}, {})
    assert predictor.by_previous_token(0) == []
    predictor.saw(0, [[1, 2], [3, 0]], None)
    predictor.saw(1, [[2, 1]], None)
    assert predictor.by_previous_token(0) == [3, 0]
    assert predictor.by_previous_token(1) == [2, 1]
    assert predictor.by_previous_token(2) == []
    predictor.saw(0, [[1, 3]], None)
    assert predictor.by_previous_token(0) == [1, 3]


def test_the_early_router_names_the_likeliest_of_every_row_first(early: Predictor) -> None:
    assert early.by_early_router(1) == []
    early.saw(0, [[3, 2]], f32([0, 1, 2, 3]))
    assert early.by_early_router(1) == [0, 1]
    early.early(1, f32([0, 1, 2, 3]), 4)
    assert early.by_early_router(1) == [0, 1, 2, 3]
    early.saw(0, [[3, 2], [0, 1]], f32([0, 1, 2, 3], [3, 1, 0, 2]))
    # Rows' choices: 0 then 1; 3 then 0. No expert twice.
    assert early.by_early_router(1) == [0, 3, 1]


def test_the_early_router_is_of_this_pass_only(early: Predictor) -> None:
    early.saw(0, [[3, 2]], f32([0, 1, 2, 3]))
    early.saw(1, [[0, 1]], f32([3, 2, 1, 0]))
    assert early.by_early_router(1) == []
    assert early.by_early_router(2) == []  # it has no router here
    early.saw(0, [[3, 2]], None)
    assert early.by_early_router(1) == []


def test_the_first_layers_router_runs_before_the_pass_does(early: Predictor) -> None:
    early.counts = {}
    early.early(0, f32([0, 1, 2, 3], [3, 2, 1, 0]), 2)
    assert early.by_early_router(0) == [3, 0, 2, 1]
    early.saw(0, [[3, 2], [0, 3]], f32([0, 1, 2, 3], [3, 2, 1, 0]))
    assert early.by_early_router(0) == []  # it has had its turn
    # Named: 3, 2 and 0, 1.
    assert early.counts[EARLY] == Predictions(4, 3)


def test_a_prediction_of_other_rows_is_not_counted(early: Predictor) -> None:
    early.counts = {}
    early.early(0, f32([0, 1, 2, 3], [3, 2, 1, 0]), 2)
    early.saw(0, [[3, 2]], None)
    assert EARLY not in early.counts


def test_the_early_router_is_of_the_next_layer_that_routes() -> None:
    predictor = Predictor({0: router([0, 1, 2, 3]), 3: router([3, 2, 1, 0])}, {0: 3})
    predictor.saw(0, [[3, 2]], f32([0, 1, 2, 3]))
    assert predictor.by_early_router(1) == []
    assert predictor.by_early_router(3) == [0, 1]


def test_a_new_sequence_remembers_nothing(early: Predictor) -> None:
    early.saw(0, [[3, 2]], f32([0, 1, 2, 3]))
    early.forget()
    assert early.by_early_router(1) == []
    assert early.by_previous_token(0) == []


def test_nothing_is_predicted_from_a_wide_pass(early: Predictor) -> None:
    early.counts = {}
    n = ROWS_MAX + 1
    early.saw(0, [[3, 2]] * n, f32(*[[0, 1, 2, 3]] * n))
    assert early.by_early_router(1) == []
    assert early.counts == {}
    assert early.by_previous_token(0) == [3, 2]  # but the next token has a last one
    early.saw(0, [[3, 2]] * ROWS_MAX, f32(*[[0, 1, 2, 3]] * ROWS_MAX))
    assert early.by_early_router(1) == [0, 1]


def test_how_often_each_is_right_is_counted(early: Predictor) -> None:
    early.counts = {}
    early.saw(0, [[3, 2]], f32([0, 1, 2, 3]))
    # The control alone: nothing came before.
    assert early.counts == {CONTROL: Predictions(2, 2)}
    # Layer 1's router on layer 0's input said 0, 1; on its own input it says 0, 2.
    early.saw(1, [[2, 0]], f32([0, 2, 1, 3]))
    assert early.counts == {EARLY: Predictions(2, 1), CONTROL: Predictions(4, 4)}
    # The next token: one of two as before, then two of two in another order.
    early.saw(0, [[0, 3]], f32([3, 1, 0, 2]))
    early.saw(1, [[0, 2]], f32([0, 2, 1, 3]))
    assert early.counts[PREVIOUS] == Predictions(4, 3)
    assert early.counts[CONTROL] == Predictions(8, 8)
    # Said by layer 1's router on [3, 1, 0, 2]: 3, 0; routed to: 0, 2.
    assert early.counts[EARLY] == Predictions(4, 2)


def test_every_row_has_the_row_before_it_as_its_previous_token() -> None:
    predictor = Predictor({}, {})
    predictor.counts = {}
    predictor.saw(0, [[0, 1], [1, 2], [1, 2]], None)
    assert predictor.counts == {PREVIOUS: Predictions(4, 3)}
    predictor.saw(0, [[3, 0], [3, 0]], None)
    assert predictor.counts == {PREVIOUS: Predictions(8, 5)}


def test_the_control_shows_a_router_that_is_not_the_models(early: Predictor) -> None:
    early.counts = {}
    early.saw(0, [[0, 1]], f32([0, 1, 2, 3]))
    assert early.counts == {CONTROL: Predictions(2, 0)}


def test_nothing_is_counted_where_nobody_asks(early: Predictor) -> None:
    early.saw(0, [[0, 1]], f32([0, 1, 2, 3]))
    assert early.counts is None
