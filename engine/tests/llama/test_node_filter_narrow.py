"""A narrow filter, through the machine code alone and on real graphs."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator

import pytest
from llama_cpp import llama_cpp as api

from sluice.llama import ggml, library, node_filter
from sluice.llama import tensor as node
from sluice.llama.graph import opened
from sluice.llama.node_filter import NodeFilter

from .filtering import MOE, Boom, Log, Make, closed, computed_nodes, row, runs_only

# Narrowed: the machine code alone, and on real graphs.

Shown = Callable[[bytes], bool]
EIGHT = [b"ffn_moe_%c_x-" % letter for letter in b"abcdefgh"]


@pytest.fixture
def asked() -> Iterator[Callable[[NodeFilter], Shown]]:
    """Whether a filter shows its hook a node of this name that llama.cpp asks about."""
    library.start()
    with opened(1 << 10) as graph:
        address = graph.tensor(ggml.F32, 4)

        def of(nodes: NodeFilter) -> Shown:
            callback = api.ggml_backend_sched_eval_callback(lambda _address, _ask, _data: True)
            entry = nodes.entry(callback)

            def is_shown(name: bytes) -> bool:
                ctypes.memmove(address + node.NAME, name.ljust(64, b"\0"), 64)
                return bool(entry.function(address, True, None))

            return is_shown

        yield of


@runs_only
@pytest.mark.parametrize("n", range(1, 9))
def test_up_to_eight_beginnings_are_shown_and_no_other(
    asked: Callable[[NodeFilter], Shown], n: int
) -> None:
    nodes = closed()
    is_shown = asked(nodes)  # contexts are made before anybody knows what to narrow to
    nodes.narrow(EIGHT[:n])
    assert [is_shown(name + b"3") for name in EIGHT] == [True] * n + [False] * (8 - n)
    assert not is_shown(b"ffn_moe_")
    assert not is_shown(b"gfn_moe_" + EIGHT[0][8:]), "the prefix still counts"


@runs_only
def test_three_bytes_after_the_prefix_count(asked: Callable[[NodeFilter], Shown]) -> None:
    nodes = closed()
    is_shown = asked(nodes)
    nodes.narrow([b"ffn_moe_topk-3"])
    assert is_shown(b"ffn_moe_topk")
    assert is_shown(b"ffn_moe_topk-12 (copy)")
    assert is_shown(b"ffn_moe_top")
    for name in (b"ffn_moe_to", b"ffn_moe_toqk-3", b"ffn_moe_uopk-3"):
        assert not is_shown(name), name


@runs_only
def test_a_name_that_ends_within_the_three_bytes_is_shown(
    asked: Callable[[NodeFilter], Shown],
) -> None:
    """ggml ends a name with one zero: what a longer name left behind it may still be there."""
    nodes = closed()
    is_shown = asked(nodes)
    nodes.narrow([b"ffn_moe_up"])
    assert is_shown(b"ffn_moe_up")
    assert is_shown(b"ffn_moe_up\0001")


@runs_only
@pytest.mark.parametrize(
    "names",
    [[], [b"attn_norm-1", b"ffn_moe"], [*EIGHT, b"ffn_moe_i_x-"]],
    ids=["none", "none with the prefix", "nine"],
)
def test_what_cannot_be_narrowed_to_shows_all_with_the_prefix(
    asked: Callable[[NodeFilter], Shown], names: list[bytes]
) -> None:
    nodes = closed()
    is_shown = asked(nodes)
    nodes.narrow([b"ffn_moe_topk-"])
    nodes.narrow(names)
    assert all(is_shown(name) for name in [*EIGHT, b"ffn_moe_topk-1", b"ffn_moe_"])
    assert not is_shown(b"attn_norm-1")


@runs_only
def test_eight_beginnings_may_have_any_number_of_names(
    asked: Callable[[NodeFilter], Shown],
) -> None:
    nodes = closed()
    is_shown = asked(nodes)
    nodes.narrow(iter([name + b"%d" % i for name in EIGHT for i in range(40)] + [b"attn_norm-1"]))
    assert all(is_shown(name) for name in EIGHT)
    assert not is_shown(b"ffn_moe_topk-1")
    assert not is_shown(b"attn_norm-1")


@runs_only
def test_narrowing_again_takes_the_place_of_the_last(
    asked: Callable[[NodeFilter], Shown],
) -> None:
    nodes = closed()
    is_shown = asked(nodes)
    nodes.narrow(EIGHT)
    nodes.narrow([b"ffn_moe_topk-"])
    assert is_shown(b"ffn_moe_topk-1")
    assert not any(is_shown(name) for name in EIGHT)


@runs_only
def test_while_a_narrow_filter_is_open_it_shows_all(
    asked: Callable[[NodeFilter], Shown],
) -> None:
    nodes = closed()
    is_shown = asked(nodes)
    nodes.narrow([b"ffn_moe_topk-"])
    nodes.is_open = True
    assert is_shown(b"ffn_moe_gate-1")
    assert is_shown(b"attn_norm-1")
    nodes.is_open = False
    assert not is_shown(b"ffn_moe_gate-1")


@runs_only
def test_narrowing_reaches_contexts_made_before(make: Make) -> None:
    everything, some, nodes = Log(), Log(), closed()
    narrow = make(some.hook, nodes)
    nodes.narrow([b"ffn_moe_topk-", b"ffn_moe_logits-1"])
    assert row(make(everything.hook)) == row(narrow)
    begins = "ffn_moe_top", "ffn_moe_log"
    assert some.shown == [one for one in everything.shown if one[0].startswith(begins)]
    assert 0 < len(some.shown) < len(everything.of_experts())


@runs_only
def test_who_was_asked_is_told_though_the_filter_was_narrowed(make: Make) -> None:
    nodes, told = closed(), []

    def hook(address: int, ask: bool) -> bool:
        if node.name(address) == "ffn_moe_weights-1":
            nodes.narrow([b"ffn_moe_topk-"])
            if not ask:
                told.append(node.name(address))
            return True
        return False

    assert row(make(hook, nodes)) == row(make())
    assert told == ["ffn_moe_weights-1"]


@runs_only
def test_nothing_is_computed_after_an_error_under_a_narrow_filter(make: Make) -> None:
    nodes = closed()
    nodes.narrow([b"ffn_moe_topk-"])

    def hook(address: int, ask: bool) -> bool:
        if node.name(address) == "ffn_moe_topk-1" and not ask:
            raise Boom
        return node.name(address).startswith("ffn_moe_topk-")

    n, _ = computed_nodes(make(hook, nodes), lambda: nodes.is_open)
    assert n == computed_nodes(make(hook), lambda: None)[0] > 0
    assert not nodes.is_open


def test_a_jump_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes 127 bytes forward at the most: 128 would be a jump back."""
    monkeypatch.setattr(node_filter, "_NEXT_MAX", 24)
    with pytest.raises(struct.error):
        node_filter._machine_code(MOE, 1, 2)


@runs_only
def test_an_operation_is_shown_whatever_the_names(
    asked: Callable[[NodeFilter], Shown],
) -> None:
    nodes = closed()
    is_shown = asked(nodes)
    nodes.narrow([b"ffn_moe_topk"])
    assert nodes.operation is None
    nodes.operation = 0  # of a tensor that nothing computes, as this one is
    assert nodes.operation == 0
    assert is_shown(b"attn_norm-1")
    nodes.operation = 1
    assert not is_shown(b"attn_norm-1")
    assert is_shown(b"ffn_moe_topk-1")
    nodes.operation = None
    assert not is_shown(b"attn_norm-1")


@runs_only
def test_of_a_graph_the_nodes_of_an_operation_are_shown(make: Make) -> None:
    numbers: dict[str, int] = {}
    all_nodes: list[str] = []

    def see(address: int, ask: bool) -> bool:
        if ask:
            numbers[node.op(address)] = node.op_number(address)
            all_nodes.append(node.op(address))
        return False

    row(make(see))
    nodes, shown = closed(), []

    def look(address: int, ask: bool) -> bool:
        if ask and not node.name(address).startswith(MOE.decode()):
            shown.append(node.op(address))
        return False

    context = make(look, nodes)
    nodes.operation = numbers["RMS_NORM"]
    row(context)
    assert set(shown) == {"RMS_NORM"}
    assert 0 < len(shown) <= all_nodes.count("RMS_NORM")
