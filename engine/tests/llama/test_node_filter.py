"""Which nodes reach Python, on real graphs and through the machine code alone."""

from __future__ import annotations

import ctypes
import gc
import mmap
import platform
import weakref
from pathlib import Path
from typing import Any

import pytest
from llama_cpp import llama_cpp as api

from sluice.llama import ggml, libc, library, node_filter
from sluice.llama import tensor as node
from sluice.llama.context import Context, ContextShape
from sluice.llama.graph import opened
from sluice.llama.model import Model
from sluice.llama.node_filter import Entry, NodeFilter

from .filtering import IDS, MOE, Boom, Log, Make, closed, computed_nodes, row, runs_only

# On real graphs.


@runs_only
def test_a_closed_filter_shows_the_nodes_with_the_prefix_in_order(make: Make) -> None:
    everything, some = Log(), Log()
    logits = [row(make()), row(make(everything.hook)), row(make(some.hook, closed()))]
    assert some.shown == everything.of_experts()
    assert 3 * len(some.shown) < len(everything.shown)
    assert [name for name, ask in some.shown if not ask] == [f"ffn_moe_topk-{i}" for i in range(4)]
    assert len(set(logits)) == 1


def test_an_open_filter_shows_all(make: Make) -> None:
    everything, filtered = Log(), Log()
    assert row(make(everything.hook)) == row(make(filtered.hook, NodeFilter(MOE)))
    assert filtered.shown == everything.shown


@runs_only
def test_a_filter_opens_and_closes_in_the_middle_of_a_graph(make: Make) -> None:
    everything, some, nodes = Log(), Log(), closed()

    def hook(address: int, ask: bool) -> bool:
        if node.name(address) == "ffn_moe_topk-1" and not ask:
            nodes.is_open = True
        if node.name(address) == "ffn_moe_topk-2" and ask:
            nodes.is_open = False
        return some.hook(address, ask)

    assert row(make(everything.hook)) == row(make(hook, nodes))
    begin = everything.shown.index(("ffn_moe_topk-1", False))
    end = everything.shown.index(("ffn_moe_topk-2", True))
    assert [n for n in everything.shown[begin:end] if n not in everything.of_experts()]
    assert some.shown == [
        one
        for i, one in enumerate(everything.shown)
        if begin <= i <= end or one[0].startswith(MOE.decode())
    ]


def test_who_was_asked_is_told_though_the_filter_has_been_closed(make: Make) -> None:
    nodes, told = NodeFilter(MOE), []

    def hook(address: int, ask: bool) -> bool:
        if node.name(address) == "l_out-1":
            nodes.is_open = False
            if not ask:
                told.append(node.name(address))
            return True
        return False

    assert row(make(hook, nodes)) == row(make())
    assert told == ["l_out-1"]


@runs_only
def test_contexts_share_a_filter(make: Make, loaded: Model) -> None:
    nodes, logs = closed(), (Log(), Log())
    contexts = [make(log.hook, nodes) for log in logs]
    assert row(contexts[0]) == row(contexts[1])
    assert logs[0].shown == logs[1].shown == logs[0].of_experts()
    nodes.is_open = True
    for context, log in zip(contexts, logs, strict=True):
        log.shown.clear()
        row(context, [11], len(IDS))
        assert log.shown != log.of_experts()
    contexts[0].close()
    nodes.is_open = False
    logs[1].shown.clear()
    row(contexts[1], [12], len(IDS) + 1)
    assert logs[1].shown == logs[1].of_experts() != []


@runs_only
def test_filters_are_apart(make: Make) -> None:
    one, other, mine, theirs = Log(), Log(), closed(), NodeFilter(b"attn_nor")
    theirs.is_open = False
    contexts = make(one.hook, mine), make(other.hook, theirs)
    mine.is_open = True
    assert row(contexts[0]) == row(contexts[1])
    assert len(one.shown) > len(other.shown) > 0
    assert {name[:8] for name, _ in other.shown} == {"attn_nor"}


# An error.


@pytest.mark.parametrize("was_open", [False, True])
@pytest.mark.parametrize("when", [True, False], ids=["asked", "computed"])
@pytest.mark.parametrize("name", ["ffn_moe_topk-1", "ffn_moe_weights-1"])
def test_nothing_is_computed_after_an_error(
    make: Make, name: str, when: bool, was_open: bool
) -> None:
    """No more than without a filter, and every node is shown until the decode has ended."""
    is_armed, nodes = True, NodeFilter(MOE)
    nodes.is_open = was_open

    def hook(address: int, ask: bool) -> bool:
        if node.name(address) == name and ask is when and is_armed:
            raise Boom
        return node.name(address) == name

    plain, filtered = make(hook), make(hook, nodes)
    n, said = computed_nodes(filtered, lambda: nodes.is_open)
    assert n == computed_nodes(plain, lambda: None)[0] > 0
    assert set(said) == {when or was_open}
    assert nodes.is_open is was_open
    is_armed = False
    filtered.clear()
    assert row(filtered) == row(make())
    assert nodes.is_open is was_open


# Where there is no machine code.


@pytest.fixture(params=["another processor", "a refusal to run", "a refusal to map"])
def fallen_back(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_args: Any, **_named: Any) -> mmap.mmap:
        raise PermissionError(13, "Permission denied")

    if request.param == "another processor":
        monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    elif request.param == "a refusal to run":
        monkeypatch.setattr(libc, "make_executable", lambda _mapping: False)
    else:
        monkeypatch.setattr(mmap, "mmap", refuses)


@pytest.mark.usefixtures("fallen_back")
def test_without_machine_code_every_node_is_shown(make: Make) -> None:
    callback = api.ggml_backend_sched_eval_callback(lambda _address, _ask, _data: False)
    assert NodeFilter(MOE).entry(callback) == Entry(callback)
    everything, filtered = Log(), Log()
    assert row(make(everything.hook)) == row(make(filtered.hook, closed()))
    assert filtered.shown == everything.shown


# The machine code alone.


NAMES = [b"ffn_moe_", b"ffn_moe_topk-12", b"ffn_moe", b"ffn_moe-", b"gfn_moe_", b" ffn_moe_", b""]


@runs_only
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("ask", [False, True])
@pytest.mark.parametrize("answer", [False, True])
def test_what_is_asked_of_python(name: bytes, is_open: bool, ask: bool, answer: bool) -> None:
    calls = []

    def see(address: int, ask: bool, data: int | None) -> bool:
        calls.append((address, ask, data))
        return answer

    library.start()
    nodes = NodeFilter(MOE)
    nodes.is_open = is_open
    assert nodes.is_open is is_open
    entry = nodes.entry(api.ggml_backend_sched_eval_callback(see))
    with opened(1 << 10) as graph:
        address = graph.tensor(ggml.F32, 4)
        graph.base.ggml_set_name(address, name)
        is_shown = is_open or not ask or name.startswith(MOE)
        assert entry.function(address, ask, 7) is (answer and is_shown)
        assert calls == ([(address, ask, 7)] if is_shown else [])
        # A bool is one byte of its register: the others may hold anything.
        calls.clear()
        kind = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p)
        function = ctypes.cast(entry.function, kind)
        assert function(address, 0xFFFF_FFFF_FFFF_FF00 + ask, 7) is (answer and is_shown)
        assert calls == ([(address, ask, 7)] if is_shown else [])


@pytest.mark.parametrize("prefix", [b"", b"ffn_moe", b"ffn_moe_t"])
def test_a_prefix_is_eight_bytes(prefix: bytes) -> None:
    with pytest.raises(AssertionError):
        NodeFilter(prefix)


# What lives how long.


def code_bytes() -> int:
    """Of memory that holds code and is no file's."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        extent, mode, _offset, _device, _inode, *path = line.split()
        if mode == "r-xp" and not path:
            begin, end = (int(part, 16) for part in extent.split("-"))
            total += end - begin
    return total


@runs_only
def test_code_is_never_writable_and_goes_with_its_context(make: Make) -> None:
    nodes = closed()
    make(Log().hook, nodes).close()
    gc.collect()
    gc.disable()
    try:
        before = code_bytes()
        for _ in range(100):
            context = make(Log().hook, nodes, n_ctx=32)
            assert code_bytes() == before + mmap.PAGESIZE
            context.close()
            assert code_bytes() == before
    finally:
        gc.enable()


@runs_only
def test_what_the_system_refuses_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = []

    def refuses(page: mmap.mmap) -> bool:
        pages.append(page)
        return False

    monkeypatch.setattr(libc, "make_executable", refuses)
    callback = api.ggml_backend_sched_eval_callback(lambda _address, _ask, _data: False)
    assert node_filter.NodeFilter(MOE).entry(callback).page is None
    assert [page.closed for page in pages] == [True]


@runs_only
def test_a_context_outlives_its_filter(make: Make) -> None:
    nodes, log = closed(), Log()
    gone, context = weakref.ref(nodes), make(log.hook, nodes)
    context._shows = None
    del nodes
    gc.collect()
    assert gone() is None
    assert row(context) == row(make())
    assert log.shown == log.of_experts() != []


def test_a_closed_context_is_freed_without_a_collection(loaded: Model) -> None:
    nodes = closed()
    gc.collect()
    gc.disable()
    try:
        shape = ContextShape(n_ctx=256, rows_max=8, outputs_max=1)
        context = Context(loaded, shape, Log().hook, nodes)
        seen = weakref.ref(context)
        context.close()
        del context
        assert seen() is None
    finally:
        gc.enable()
