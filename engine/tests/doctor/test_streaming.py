from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from sluice.doctor.streaming import examine_streaming
from sluice.gguf.header import Header, read_header
from sluice.gguf.shards import read_model
from sluice.streaming.budget import HEADROOM_BYTES
from sluice.streaming.layout import expert_layout
from sluice.streaming.plan import StreamingPlan, streaming_plan


def test_the_head_is_in_the_plan_and_apart(header: Header) -> None:
    found = examine_streaming(header, ubatch=512, available_bytes=1 << 30)
    assert found.plan is not None
    assert (len(found.plan.trunk), len(found.plan.head)) == (4, 1)
    plain = json.loads(json.dumps(found.as_dict()))
    assert plain["refusal"] is None
    plan = plain["plan"]
    assert plan["token_bytes"] == 4 * 2 * plan["layers"][0]["expert_bytes"]
    assert plan["head_total_bytes"] == 8 * plan["layers"][4]["expert_bytes"]
    streamed = plan["total_bytes"] + plan["head_total_bytes"]
    resident = plan["dense_bytes"] + plan["head_dense_bytes"]
    assert streamed + resident == sum(t.size_bytes for t in header.tensors.values())
    assert [size["name"] for size in plan["cache_sizes"]] == ["smallest", "a third", "all"]


def test_shards_have_the_plan_of_the_whole(header: Header, shards: tuple[Path, ...]) -> None:
    whole = examine_streaming(header, ubatch=8, available_bytes=None)
    found = examine_streaming(read_model(shards[1]), ubatch=8, available_bytes=None)
    assert found.plan == whole.plan
    assert (whole.n_files, found.n_files) == (1, 3)


def test_what_cannot_be_streamed_is_said_in_the_engines_words(
    tiny_gguf: Callable[..., Path], tmp_path: Path
) -> None:
    dense = read_header(tiny_gguf(tmp_path / "m.gguf", {"blk.0.ffn_up.weight": (8, 16)}))
    found = examine_streaming(dense, ubatch=8, available_bytes=None)
    assert found.plan is None
    assert found.refusal is not None
    assert "has no experts to stream" in found.refusal
    assert found.as_dict()["plan"] is None


def test_a_model_that_does_not_say_how_many_are_used(
    rewrite: Callable[..., Path], tmp_path: Path
) -> None:
    path = rewrite(tmp_path / "m.gguf", keys={"qwen35moe.expert_used_count": None})
    found = examine_streaming(read_header(path), ubatch=8, available_bytes=None)
    assert found.refusal is not None
    assert "expert_used_count is 0, must be 1 or more" in found.refusal


def test_the_size_of_auto_leaves_room_for_dense_weights(header: Header) -> None:
    def auto(available_bytes: int | None) -> int | None:
        found = examine_streaming(header, ubatch=8, available_bytes=available_bytes)
        assert found.plan is not None
        assert found.as_dict()["auto_cache_bytes"] == found.auto_cache_bytes
        return found.auto_cache_bytes

    plan = plan_of(header)
    assert auto(None) is None
    assert auto(1 << 30) == plan.total_page_bytes  # without the head's
    assert auto(HEADROOM_BYTES + plan.dense_bytes + 5000) == 5000
    assert auto(1 << 20) == 0


def plan_of(header: Header) -> StreamingPlan:
    return streaming_plan(header, expert_layout(header, with_head=False))
