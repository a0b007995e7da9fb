"""Holding observed runs against each other, on decodes made by hand."""

from __future__ import annotations

import numpy as np

from sluice.triage.localise import locate, logits_rows, measured, paired_rows
from sluice.triage.observe import Decode, Look, layer_of

WIDTH = 4


def decode(tokens, position=0, *, head=False, hidden=None, **nodes) -> Decode:
    """A decode whose node ``x`` holds ``nodes["x"]``, one value a row."""
    made = Decode(head, tuple(tokens), position, "all", hidden)
    for name, rows in nodes.items():
        key = (f"{name}-2", "MUL", 0)
        digests = tuple(str(r).encode() for r in rows)
        made.looks[key] = Look(
            2, name, "MUL", "f32", None, None, (WIDTH, len(rows)), 0, 0, digests, 4 * WIDTH
        )
        made.values[key] = np.full(WIDTH, rows[0], np.float32)
    return made


def test_equal_runs() -> None:
    found = locate([decode([1, 2], x=[1, 2])], [decode([1, 2], x=[1, 2])], same_loop=True)
    assert (found.pair, found.n_compared, found.n_unmatched) == (None, 1, 0)


def test_the_first_node_in_graph_order_and_its_row() -> None:
    a = [decode([1, 2, 3], 10, x=[1, 2, 3], y=[1, 2, 3], z=[1, 2, 3])]
    b = [decode([1, 2, 3], 10, x=[1, 2, 3], y=[1, 2, 9], z=[1, 8, 9])]
    found = locate(a, b, same_loop=True)
    assert found.last_agreed == "layer 2 x"
    assert (found.pair.row_a, found.pair.position) == (2, 12)
    assert [key[0] for key in found.keys] == ["y-2", "z-2"]
    nodes = measured(found, a, b, n_prompt=11)
    assert (nodes[0].layer, nodes[0].name, nodes[0].step) == (2, "y", 2)
    assert nodes[0].max_abs == 0


def test_one_row_against_many_is_matched_by_position() -> None:
    wide = [decode([1, 2, 3], x=[1, 2, 3])]
    narrow = [decode([t], i, x=[v]) for i, (t, v) in enumerate([(1, 1), (2, 20), (3, 30)])]
    found = locate(wide, narrow, same_loop=False)
    assert (found.pair.row_a, found.pair.row_b, found.pair.b) == (1, 0, 1)
    assert found.pair.position == 1


def test_a_node_of_another_size_has_no_counterpart() -> None:
    a, b = decode([1], x=[1]), decode([1], x=[2])
    (key,) = b.looks
    look = b.looks[key]
    b.looks[key] = Look(**{n: getattr(look, n) for n in Look.__slots__} | {"sizes": 8})
    found = locate([a], [b], same_loop=False)
    assert (found.pair, found.n_compared, found.n_unmatched) == (None, 0, 1)


def test_a_rejected_draft_is_computed_over_again() -> None:
    plain = [decode([5], 0, x=[5]), decode([6], 1, x=[6]), decode([7], 2, x=[7])]
    drafted = [decode([5, 9, 9], 0, x=[5, 90, 90]), decode([6, 8], 1, x=[6, 80]),
               decode([7], 2, x=[70])]  # fmt: skip
    found = locate(plain, drafted, same_loop=False)
    assert found.pair.position == 2


def test_nothing_is_compared_after_another_token() -> None:
    a, b = [decode([1, 2, 3], x=[1, 2, 3])], [decode([1, 4, 3], x=[1, 2, 30])]
    assert [pair.position for pair in paired_rows(a, b)] == [0]
    assert locate(a, b, same_loop=False).pair is None


def test_the_loops_part() -> None:
    a = [decode([1], x=[1]), decode([2], 1, x=[2])]
    other_token = [decode([1], x=[1]), decode([3], 1, x=[3])]
    found = locate(a, other_token, same_loop=True)
    assert (found.parting.what, found.parting.index) == ("tokens", 1)
    hidden = [decode([1], x=[1]), decode([2], 1, head=True, hidden="u", x=[2])]
    again = [decode([1], x=[1]), decode([2], 1, head=True, hidden="v", x=[3])]
    found = locate(hidden, again, same_loop=True)
    assert (found.parting.what, found.parting.is_head) == ("hidden", True)
    assert locate(a, a[:1], same_loop=True).parting.index == 1


def test_logits_of_a_step_are_those_of_the_tokens_that_were_kept() -> None:
    first, second = decode([1, 2]), decode([7, 9], 2)
    first.logits = np.array([[2.0]], np.float32)  # of the last row only
    second.logits = np.array([[7.0], [9.0]], np.float32)
    rows = logits_rows([first, second], n_prompt=2, ids=[7, 8])
    assert {step: float(row[0]) for step, row in rows.items()} == {0: 2.0, 1: 7.0}


def test_layers_by_name() -> None:
    assert layer_of("ffn_norm-3") == 3
    assert layer_of("ffn_moe_topk-12 (copy)") == 12
    assert layer_of("node_7", ["blk.4.attn_q.weight", "x"]) == 4
    assert layer_of("get_rows(cache_s_l1 (reshaped))") == 1
    assert layer_of("result_output", ["output.weight"]) is None
