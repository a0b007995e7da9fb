from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from sluice.errors import SystemFault
from sluice.llama import tensor as node
from sluice.llama.context import Context, ContextShape
from sluice.llama.model import Model

from .filtering import IDS, Make, row


def test_the_same_decode_gives_the_same_bits(make: Make) -> None:
    context = make()
    first = row(context)
    context.clear()
    assert row(context) == first
    assert row(make()) == first


def test_logits_are_of_the_rows_that_were_asked_for(make: Make) -> None:
    context = make()
    context.decode(IDS[:4], 0, outputs="all")
    rows = [context.logits(i).copy() for i in range(4)]
    assert len({r.tobytes() for r in rows}) == 4
    context.clear()
    context.decode(IDS[:4], 0, outputs="last")
    assert np.allclose(context.logits(3), rows[3], atol=1e-3)
    with pytest.raises(SystemFault, match="no output for batch row 2"):
        context.logits(2)
    context.decode(IDS[:2], 4, outputs="none")
    with pytest.raises(SystemFault, match="no output for batch row 1"):
        context.logits(1)


def test_hidden_states_are_of_every_row(make: Make, loaded: Model) -> None:
    context = make(hidden_states=True)
    context.decode(IDS, 0, outputs="last")
    rows = [context.hidden(i) for i in range(len(IDS))]
    assert all(r.shape == (loaded.n_embd,) and np.isfinite(r).all() for r in rows)
    assert len({r.tobytes() for r in rows}) == len(IDS)
    kept = rows[0].copy()
    context.decode([3], len(IDS), outputs="last")
    assert (rows[0] == kept).all()  # a copy, not a view of what the next decode overwrites


class Boom(Exception):
    pass


@pytest.mark.parametrize("when", [True, False], ids=["asked", "computed"])
@pytest.mark.parametrize("kind", [Boom, KeyboardInterrupt, SystemExit])
def test_what_the_hook_raises_comes_out_of_decode(
    make: Make, when: bool, kind: type[BaseException]
) -> None:
    raised: list[BaseException] = []
    armed = False

    def hook(address: int, ask: bool) -> bool:
        if not node.name_starts_with(address, b"ffn_moe_topk-2"):
            return False
        if armed and ask is when:
            raised.append(kind("from the hook"))
            raise raised[-1]
        return True

    context = make(hook)
    sound = row(context)
    context.clear()
    armed = True
    with pytest.raises(kind) as caught:
        row(context)
    assert caught.value is raised[0]
    armed = False
    context.clear()
    assert row(context) == sound


def test_only_the_first_error_is_raised_and_it_is_raised_once(
    make: Make,
) -> None:
    count = 0

    def hook(_address: int, _ask: bool) -> bool:
        nonlocal count
        count += 1
        if count <= 1:
            raise Boom(count)
        return False

    context = make(hook)
    with pytest.raises(Boom) as caught:
        row(context)
    assert caught.value.args == (1,)
    assert count == 1, "it is not asked any more"
    context.clear()
    row(context)


def test_a_hook_that_only_looks_changes_no_bit(make: Make) -> None:
    names: list[str] = []

    def hook(address: int, ask: bool) -> bool:
        if ask:
            names.append(node.name(address))
        return node.name_starts_with(address, b"ffn_moe_topk-")

    assert row(make(hook)) == row(make())
    assert [n for n in names if n.startswith("ffn_moe_topk-")] == [
        f"ffn_moe_topk-{i}" for i in range(4)
    ]


@pytest.mark.parametrize(
    ("ids", "outputs", "words"),
    [
        ([1] * 65, "last", "a decode of 65 rows with 1 outputs in a context of 64 rows"),
        ([1] * 5, "all", "a decode of 5 rows with 5 outputs in a context of 64 rows and 4 outputs"),
        ([], "none", "a decode of 0 rows"),
    ],
    ids=["too wide", "too many outputs", "nothing"],
)
def test_a_decode_that_would_abort_is_a_fault(
    make: Make, ids: list[int], outputs: str, words: str
) -> None:
    context = make()
    with pytest.raises(SystemFault, match=words):
        context.decode(ids, 0, outputs=outputs)
    row(context)


def test_a_full_context_is_a_fault_and_loses_nothing(make: Make) -> None:
    context = make()
    for position in range(0, 256, 64):
        context.decode([1] * 64, position, outputs="last")
    with pytest.raises(SystemFault, match=r"returned 1 .* at position 256: no free cells"):
        context.decode([1], 256, outputs="last")
    context.clear()
    assert row(context) == row(make())


@pytest.mark.parametrize("token", [-1, 10**6])
def test_a_token_that_is_none_is_a_fault_in_llama_cpps_words(make: Make, token: int) -> None:
    context = make()
    with pytest.raises(SystemFault, match=r"returned -1 for 2 rows at position 0: init: "):
        context.decode([1, token], 0, outputs="last")
    assert row(context) == row(make())


def test_a_position_that_is_held_already_is_a_fault(make: Make) -> None:
    context = make()
    row(context)
    with pytest.raises(SystemFault, match="returned -1"):
        context.decode([1], 2, outputs="last")


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_rollback_within_the_width_leaves_no_trace(make: Make, depth: int) -> None:
    context = make(rollback=3)
    context.decode(IDS, 0, outputs="last")
    context.decode([20, 21, 22, 23], len(IDS), outputs="all")
    context.remove_from(len(IDS) + 4 - depth)
    left = [20, 21, 22, 23][: 4 - depth]
    after = row(context, [30], len(IDS) + len(left))

    replay = make(rollback=3)
    replay.decode(IDS, 0, outputs="last")
    replay.decode([20, 21, 22, 23], len(IDS), outputs="all")
    replay.remove_from(len(IDS) + 4 - depth)
    assert row(replay, [30], len(IDS) + len(left)) == after

    straight = make(rollback=3)
    straight.decode(IDS, 0, outputs="last")
    straight.decode(left, len(IDS), outputs="all")
    row(straight, [30], len(IDS) + len(left))
    got, expected = context.logits(0), straight.logits(0)
    assert np.allclose(got, expected, atol=0.05)
    assert int(got.argmax()) == int(expected.argmax())


def test_a_rollback_deeper_than_the_width_is_a_fault(make: Make) -> None:
    context = make(rollback=2)
    context.decode(IDS, 0, outputs="last")
    with pytest.raises(SystemFault, match=r"roll back to position 1 \(rollback width 2\)"):
        context.remove_from(1)
    context.clear()
    assert row(context) == row(make(rollback=2))


def test_a_second_rollback_without_a_decode_is_a_fault(make: Make) -> None:
    context = make(rollback=3)
    context.decode(IDS, 0, outputs="last")
    context.remove_from(5)
    with pytest.raises(SystemFault, match="could not roll back"):
        context.remove_from(3)


def test_the_graph_is_shown_and_leaves_no_trace(make: Make) -> None:
    names: set[str] = set()

    def hook(address: int, _ask: bool) -> bool:
        names.update(node.name(source) for source in node.sources(address))
        return False

    context = make(hook)
    context.build_only(0)
    assert {f"blk.{i}.ffn_{p}_exps.weight" for i in range(4) for p in ("gate", "up", "down")} <= (
        names
    )
    assert row(context) == row(make())


def test_the_heads_graph_is_shown(make: Make, loaded: Model) -> None:
    names: set[str] = set()

    def hook(address: int, _ask: bool) -> bool:
        names.update(node.name(source) for source in node.sources(address))
        return False

    head = make(hook, is_head=True)
    head.build_only(0, np.zeros((1, loaded.n_embd), np.float32))
    assert {n for n in names if "_exps.weight" in n} == {
        f"blk.4.ffn_{p}_exps.weight" for p in ("gate", "up", "down")
    }


def test_the_error_of_a_capture_pass_comes_out(make: Make) -> None:
    def hook(_address: int, _ask: bool) -> bool:
        raise Boom

    with pytest.raises(Boom):
        make(hook).build_only(0)


def test_a_closed_context_is_freed_without_a_collection(loaded: Model) -> None:
    def hook(_address: int, _ask: bool) -> bool:
        return False

    gc.collect()
    gc.disable()
    try:
        context = Context(loaded, ContextShape(n_ctx=256, rows_max=8, outputs_max=1), hook=hook)
        seen = weakref.ref(context)
        context.close()
        context.close()
        del context
        assert seen() is None
    finally:
        gc.enable()


def test_who_wants_to_know_that_a_decode_begins_is_told_in_order(
    make: Make,
) -> None:
    told: list[Any] = []

    def hook(_address: int, ask: bool) -> bool:
        if "node" not in told:
            told.append("node")
        return False

    context = make(hook)
    context.begins.append(lambda *what: told.append(("first", *what)))
    context.begins.append(lambda *what: told.append(("second", *what)))
    context.decode(IDS, 0, outputs="last")
    assert told == [
        ("first", IDS, 0, "last", None), ("second", IDS, 0, "last", None), "node",
    ]  # fmt: skip
    context.close()
    assert context.begins == []  # they may hold what holds the context


def test_what_is_raised_before_a_decode_begins_computes_nothing(
    make: Make,
) -> None:
    nodes: list[int] = []

    def hook(address: int, _ask: bool) -> bool:
        nodes.append(address)
        return False

    def refuse(*_what: Any) -> None:
        raise KeyError("no")

    context = make(hook)
    right = row(make())
    nodes.clear()
    context.begins.append(refuse)
    with pytest.raises(KeyError, match="no"):
        row(context)
    assert nodes == []
    context.begins.clear()
    assert row(context) == right
