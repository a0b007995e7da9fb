from __future__ import annotations

import dataclasses
import mmap
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.errors import ModelError
from sluice.gguf.header import Header, read_header
from sluice.streaming.layout import expert_layout
from sluice.streaming.plan import LayerPlan, StreamingPlan, streaming_plan

PAGE = mmap.PAGESIZE
Tiny = Callable[..., Path]

# Layer 0 is dense, 1 and 2 route, 3 is the head's. Slices of F32: 4 × 8 × 16 = 512 bytes,
# and half of that in the head.
KEYS = {
    "qwen35moe__block_count": 4,
    "qwen35moe__nextn_predict_layers": 1,
    "qwen35moe__expert_used_count": 3,
}
SHAPES = {
    "token_embd.weight": (64, 16),
    "blk.0.ffn_up.weight": (8, 16),
    "blk.1.ffn_gate_exps.weight": (4, 8, 16),
    "blk.1.ffn_up_exps.weight": (4, 8, 16),
    "blk.1.ffn_down_exps.weight": (4, 16, 8),
    "blk.1.ffn_gate_inp.weight": (4, 16),
    "blk.2.ffn_gate_exps.weight": (6, 8, 16),
    "blk.2.ffn_up_exps.weight": (6, 8, 16),
    "blk.2.ffn_down_exps.weight": (6, 16, 8),
    "blk.3.ffn_gate_exps.weight": (2, 4, 16),
    "blk.3.ffn_up_exps.weight": (2, 4, 16),
    "blk.3.ffn_down_exps.weight": (2, 16, 4),
    "blk.3.nextn.eh_proj.weight": (16, 32),
}


@pytest.fixture
def tiny(tiny_gguf: Tiny, tmp_path: Path) -> Header:
    return read_header(tiny_gguf(tmp_path / "m.gguf", SHAPES, **KEYS))


def plan_of(header: Header, *, with_head: bool = True) -> StreamingPlan:
    return streaming_plan(header, expert_layout(header, with_head=with_head))


def test_bytes_of_experts_layers_and_tokens(tiny: Header) -> None:
    plan = plan_of(tiny)
    assert [one.layer for one in plan.trunk] == [1, 2]
    assert [one.layer for one in plan.head] == [3]
    assert [plan.expert_bytes(n) for n in (1, 2, 3)] == [1536, 1536, 768]
    assert [one.layer_bytes for one in plan.layers] == [4 * 1536, 6 * 1536, 2 * 768]
    assert plan.layer_bytes_max == 6 * 1536
    assert plan.n_used == 3
    assert plan.token_bytes == 2 * 3 * 1536
    assert plan.head_token_bytes == 2 * 768  # it has no third expert
    assert plan.total_bytes == 10 * 1536 + 2 * 768


def test_what_is_not_streamed_stays_resident(tiny: Header) -> None:
    plan, trunk = plan_of(tiny), plan_of(tiny, with_head=False)
    assert plan.head_dense_bytes == 4 * 16 * 32
    assert plan.trunk_dense_bytes == 4 * (64 * 16 + 8 * 16 + 4 * 16)
    assert plan.dense_bytes == plan.trunk_dense_bytes + plan.head_dense_bytes
    assert trunk == plan.without_head()
    assert trunk.dense_bytes == plan.trunk_dense_bytes
    assert trunk.head_token_bytes == 0


def test_a_pass_asks_for_no_more_than_there_is(tiny: Header) -> None:
    plan = plan_of(tiny)
    assert plan.pass_bytes_max(1) == 3 * 1536
    assert plan.pass_bytes_max(2) == 6 * 1536
    assert plan.pass_bytes_max(512) == plan.layer_bytes_max


def layer(slice_pages: int, n_expert: int = 8, number: int = 0) -> LayerPlan:
    size = slice_pages * PAGE
    return LayerPlan(number, False, n_expert, size - 64, size)


@pytest.mark.parametrize(
    ("rows", "columns", "pages"),
    [
        (1, PAGE // 4, 2),  # a page's bytes, from the middle of a page on
        (1, PAGE // 4 + 1, 3),
        (1, PAGE // 4 * 2, 3),
        (1, 1, 2),  # four bytes may lie across two pages, as a block of 18 bytes can put them
    ],
)
def test_the_pages_that_an_experts_slices_touch_at_most(
    tiny_gguf: Tiny, tmp_path: Path, rows: int, columns: int, pages: int
) -> None:
    shapes = {
        f"blk.0.ffn_{part}_exps.weight": (2, rows, columns) for part in ("gate", "up", "down")
    }
    keys = {"qwen35moe__block_count": 1, "qwen35moe__expert_used_count": 1}
    plan = plan_of(read_header(tiny_gguf(tmp_path / "m.gguf", shapes, **keys)))
    assert plan.page_bytes(0) == 3 * pages * PAGE
    most = 0
    size = 4 * rows * columns
    for start in range(PAGE):
        most = max(most, (start + size - 1) // PAGE + 1)
    assert pages == most


def test_the_smallest_cache_holds_a_token_and_a_pass() -> None:
    deep = StreamingPlan(tuple(layer(2, number=n) for n in range(10)), 3, 0, 0)
    assert deep.token_page_bytes == 10 * 3 * 2 * PAGE
    assert deep.smallest_cache_bytes(1) == deep.token_page_bytes
    shallow = dataclasses.replace(deep, layers=(layer(2, 256), layer(3, 64, 1)))
    assert shallow.token_page_bytes == 3 * 5 * PAGE
    assert shallow.smallest_cache_bytes(1) == shallow.token_page_bytes
    assert shallow.smallest_cache_bytes(20) == 60 * 3 * PAGE
    assert shallow.smallest_cache_bytes(80) == 240 * 2 * PAGE
    assert shallow.smallest_cache_bytes(512) == 256 * 2 * PAGE


def test_the_sizes_that_make_sense_and_what_they_hold() -> None:
    plan = StreamingPlan(tuple(layer(2, 64, n) for n in range(10)), 4, 0, 0)
    smallest, third, whole = plan.cache_sizes(1)
    assert (smallest.name, third.name, whole.name) == ("smallest", "a third", "all")
    assert smallest.cache_bytes == plan.token_page_bytes
    assert whole.cache_bytes == plan.total_page_bytes == 10 * 64 * 2 * PAGE
    assert third.cache_bytes == whole.cache_bytes // 3
    assert (smallest.n_tokens, whole.n_tokens) == (1, 16)
    assert third.n_tokens == pytest.approx(16 / 3)


def test_sizes_that_come_to_the_same_are_one() -> None:
    few = StreamingPlan((layer(2, 8), layer(2, 8, 1)), 4, 0, 0)
    assert [one.name for one in few.cache_sizes(1)] == ["smallest", "all"]
    one = StreamingPlan((layer(2, 8),), 4, 0, 0)
    assert [size.name for size in one.cache_sizes(2)] == ["all"]
    assert one.cache_sizes(2)[0].n_tokens == 2


def test_a_count_of_used_experts_a_layer(tiny: Header) -> None:
    keys = dict(tiny.metadata) | {"qwen35moe.expert_used_count": [0, 2, 1]}
    assert plan_of(dataclasses.replace(tiny, metadata=keys)).n_used == 2


@pytest.mark.parametrize("used", [None, 0, "3"])
def test_a_header_that_does_not_say_how_many_are_used(tiny: Header, used: object) -> None:
    keys = dict(tiny.metadata) | {"qwen35moe.expert_used_count": used}
    with pytest.raises(ModelError, match=r"m\.gguf: malformed: .*expert_used_count is 0"):
        plan_of(dataclasses.replace(tiny, metadata=keys))
