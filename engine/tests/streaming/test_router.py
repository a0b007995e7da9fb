from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from sluice.gguf.header import Header
from sluice.streaming.router import (
    RAW,
    SIGMOID,
    SOFTMAX,
    SQRT_SOFTPLUS,
    RouterCopy,
    Selection,
    right,
)

PLAIN = Selection(SOFTMAX, 0, 0)


def f32(*rows: list[float]) -> np.ndarray:
    return np.array(rows, np.float32)


def router(
    selection: Selection = PLAIN, *, bias: list[float] | None = None, correction: object = None
) -> RouterCopy:
    """Four experts whose logits are the four inputs."""
    return RouterCopy(
        np.eye(4, dtype=np.float32),
        None if bias is None else np.array(bias, np.float32),
        None if correction is None else np.array(correction, np.float32),
        selection,
    )


def test_the_weight_is_applied_row_by_row() -> None:
    weight = f32([1, 0], [0, 1], [1, 1])
    copy = RouterCopy(weight, None, None, PLAIN)
    rows = f32([2, 3], [-1, 0])
    assert copy.scores(rows).tolist() == [[2, 3, 5], [-1, 0, -1]]
    assert copy.choose(rows, 2) == [[2, 1], [1, 0]]  # a tie goes to the first


def test_a_bias_is_added_before_the_choice() -> None:
    assert router(bias=[0, 0, 5, 0]).choose(f32([4, 3, 2, 1]), 2) == [[2, 0]]


@pytest.mark.parametrize("gating", [SOFTMAX, SIGMOID, RAW, SQRT_SOFTPLUS])
def test_gating_alone_does_not_change_the_order(gating: int) -> None:
    logits = f32([0.3, -2.0, 5.0, 0.2])
    assert router(Selection(gating, 0, 0)).choose(logits, 4) == [[2, 0, 3, 1]]


def test_a_correction_is_added_to_what_was_gated() -> None:
    logits, correction = f32([0, 2, -2, 0]), [0.0, -0.5, 0.3, 0.0]
    # Sigmoids .5 .881 .119 .5: corrected .5 .381 .419 .5
    sigmoid = router(Selection(SIGMOID, 0, 0), correction=correction)
    assert sigmoid.scores(logits)[0] == pytest.approx([0.5, 0.3808, 0.4192, 0.5], abs=1e-4)
    assert sigmoid.choose(logits, 3) == [[0, 3, 2]]
    # The logits themselves: 0, 1.5, -1.7, 0
    raw = router(Selection(RAW, 0, 0), correction=correction)
    assert raw.choose(logits, 3) == [[1, 0, 3]]
    # Softmax: e^0, e^2, e^-2, e^0 of 9.524: .105 .776 .014 .105; corrected .105 .276 .314 .105
    soft = router(Selection(SOFTMAX, 0, 0), correction=correction)
    assert soft.scores(logits)[0] == pytest.approx([0.105, 0.2758, 0.3142, 0.105], abs=1e-3)
    # sqrt(log(1 + e^x)): .8326 1.4584 .3563 .8326
    root = router(Selection(SQRT_SOFTPLUS, 0, 0), correction=correction)
    assert root.scores(logits)[0] == pytest.approx([0.8326, 0.9584, 0.6563, 0.8326], abs=1e-3)


def test_large_logits_do_not_overflow() -> None:
    for gating in (SOFTMAX, SQRT_SOFTPLUS):
        copy = router(Selection(gating, 0, 0), correction=[0, 0, 0, 0])
        assert np.isfinite(copy.scores(f32([1000, -1000, 0, 500]))).all()
        assert copy.choose(f32([1000, -1000, 0, 500]), 1) == [[0]]


def test_only_the_best_groups_are_chosen_from() -> None:
    """Six experts in three groups, by the sum of each group's two best."""
    copy = RouterCopy(np.eye(6, dtype=np.float32), None, None, Selection(RAW, 3, 1))
    # Sums 5, 7, 6: the largest single score, 5, is in a group that goes.
    logits = f32([5, 0, 3, 4, 4.5, 1.5])
    assert copy.choose(logits, 2) == [[3, 2]]
    scores = copy.scores(logits)[0]
    assert scores[2:4].tolist() == [3, 4]
    assert np.isneginf(scores[[0, 1, 4, 5]]).all()
    two = RouterCopy(np.eye(6, dtype=np.float32), None, None, Selection(RAW, 3, 2))
    assert two.choose(logits, 3) == [[4, 3, 2]]
    all_three = RouterCopy(np.eye(6, dtype=np.float32), None, None, Selection(RAW, 3, 3))
    assert all_three.choose(logits, 2) == [[0, 4]]


def test_groups_are_chosen_by_the_row() -> None:
    copy = RouterCopy(np.eye(4, dtype=np.float32), None, None, Selection(RAW, 2, 1))
    assert copy.choose(f32([9, 0, 5, 5], [5, 5, 9, 0]), 2) == [[2, 3], [0, 1]]


def test_groups_see_the_correction() -> None:
    copy = RouterCopy(
        np.eye(4, dtype=np.float32), None, np.array([0, 0, 9, 9], np.float32), Selection(RAW, 2, 1)
    )
    assert copy.choose(f32([5, 5, 0, 1]), 2) == [[3, 2]]


@pytest.mark.parametrize("bias", [None, [0.0, 0.0, 0.0, 0.0]])
def test_the_largest_comes_first_with_a_bias_and_without(bias: list[float] | None) -> None:
    copy = router(bias=bias)
    rows = f32([1, 3, 4, 2], [-1, -4, -2, -3])
    assert copy.choose(rows, 3) == [[2, 1, 3], [0, 2, 3]]
    assert copy.choose(rows[:1], 4) == [[2, 1, 3, 0]]
    assert copy.choose(rows[1:], 1) == [[0]]
    assert copy.choose(rows, 3) == [[2, 1, 3], [0, 2, 3]]  # others came in between


def test_a_bias_that_ties_leaves_the_order_of_places() -> None:
    assert router(bias=[2, 0, 0, 1]).choose(f32([1, 3, 3, 2]), 4) == [[0, 1, 2, 3]]


def test_a_choice_may_round_and_the_scores_do_not() -> None:
    """The choice is by weights rounded to Q8_0, the scores it is held against by the model's."""
    weight = np.zeros((3, 32), np.float32)
    weight[:, 0] = 127  # of each block, a step is 1
    weight[:, 1] = 0, 0.4, 0.6  # becomes 0, 0 and 1
    weight[2, 2] = -0.45  # becomes 0
    rows = np.zeros((1, 32), np.float32)
    rows[0, :3] = 127, 127, 127
    copy = RouterCopy(weight, None, None, PLAIN)
    scores = copy.scores(rows)
    assert np.argsort(-scores[0]).tolist() == [1, 2, 0]
    assert copy.choose(rows, 1) == [[2]]
    kept = scores.copy()
    copy.scores(-rows)
    assert np.array_equal(scores, kept)


def test_a_closed_router_can_be_used_again() -> None:
    copy = router()
    assert copy.choose(f32([4, 3, 2, 1]), 2) == [[0, 1]]
    copy.close()
    assert copy.choose(f32([1, 2, 3, 4]), 2) == [[3, 2]]
    copy.close()


def test_what_was_chosen_is_right_where_it_is_among_the_best() -> None:
    scores = np.array([1, 2, 3, 4], np.float32)
    for chosen, n_right in (([3, 2], 2), ([2, 3], 2), ([3, 1], 1), ([0, 1], 0), ([0, 1, 2, 3], 4)):
        assert right(scores, chosen) == n_right


def test_a_near_tie_is_not_held_against_a_choice() -> None:
    scores = np.array([0, 10, 5, 5 + 1e-4], np.float32)
    assert right(scores, [1, 2]) == 2
    scores[3] = 5.1
    assert right(scores, [1, 2]) == 1
    # Excluded groups do not widen the spread.
    scores = np.array([-np.inf, 10, 5, 5.1], np.float32)
    assert right(scores, [1, 2]) == 1


def header_of(header: Header, names: tuple[str, ...] = (), **keys: int) -> Header:
    """The bundled model's header with other keys, and more tensors."""
    arch = header.architecture
    info = next(iter(header.tensors.values()))
    return dataclasses.replace(
        header,
        metadata=dict(header.metadata) | {f"{arch}.{k}": v for k, v in keys.items()},
        tensors=dict(header.tensors) | dict.fromkeys(names, info),
    )


def test_how_a_model_selects_is_read_from_its_header(header: Header) -> None:
    assert Selection.of(header) == PLAIN
    corrected = ("blk.1.exp_probs_b.bias",)
    assert Selection.of(header_of(header, corrected)) == Selection(SIGMOID, 0, 0)
    said = header_of(
        header, corrected, expert_gating_func=SOFTMAX, expert_group_count=8,
        expert_group_used_count=4,
    )  # fmt: skip
    assert Selection.of(said) == Selection(SOFTMAX, 8, 4)


def test_a_correction_may_be_named_without_its_last_word(header: Header) -> None:
    assert Selection.of(header_of(header, ("blk.1.exp_probs_b",))) == Selection(SIGMOID, 0, 0)


@pytest.mark.parametrize("keys", [{}, {"expert_gating_func": SIGMOID}])
def test_ernie_takes_the_softmax_whatever_it_corrects(header: Header, keys: dict[str, int]) -> None:
    named = dict(header.metadata) | {"general.architecture": "ernie4_5-moe"}
    ernie = dataclasses.replace(header, metadata=named)
    corrected = header_of(ernie, ("blk.1.exp_probs_b.bias",), **keys)
    assert Selection.of(corrected).gating == SOFTMAX


def test_scores_that_are_no_numbers_are_never_right() -> None:
    scores = np.full(4, np.nan, np.float32)
    assert right(scores, [0, 1]) == 0
